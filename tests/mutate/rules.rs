//! Tolerations by lifespan, and pods' names.

use serde_json::json;

use crate::mutated_cluster::{MutatedCluster, pod};

#[tokio::test]
async fn a_pod_that_asks_for_a_lifespan_tolerates_the_nodes_that_have_it() {
    let mut cluster = MutatedCluster::start("lifespan: {}", &[], &["inject"]).await;
    let mut asking = pod(json!({}));
    asking["metadata"]["labels"] = json!({"acme.com/lifespan-requested": "12"});
    let (stored, _) = cluster.applied(&asking).await;
    assert_eq!(cluster.guard.news().await, ["CREATE allowed Injected"]);
    let tolerations = stored["spec"]["tolerations"].as_array().unwrap();
    let values: Vec<_> = tolerations
        .iter()
        .filter(|it| it["key"] == "acme.com/lifespan-remaining")
        .map(|it| it["value"].as_str().unwrap())
        .collect();
    assert_eq!(values, ["12", "13", "14"]);

    for bad in ["0", "15", "three"] {
        asking["metadata"]["labels"]["acme.com/lifespan-requested"] = json!(bad);
        asking["metadata"]["name"] = json!(format!("bad-{bad}"));
        let said = cluster.create(&asking, &[]).await;
        assert!(!said.success);
        let denial = format!(
            "Error from server (Forbidden): error when creating \"{}\": admission webhook \"inject.etcd-guard.io\" denied \
             the request: label acme.com/lifespan-requested: \"{bad}\" is no whole number from 1 to 14",
            cluster.files.join("object.json").display()
        );
        assert!(said.stderr.contains(&denial), "{}", said.stderr);
    }
    assert_eq!(cluster.guard.news().await, ["CREATE denied BadLifespan"]);
}

#[tokio::test]
async fn a_forbidden_word_in_a_pods_name_is_denied_and_named() {
    let rule = "podNames: {forbiddenWords: [offensive]}";
    let mut cluster = MutatedCluster::start(rule, &[], &["pod-names"]).await;
    let mut named = pod(json!({}));
    named["metadata"]["name"] = json!("an-offensive-pod");
    let said = cluster.create(&named, &[]).await;
    let denial = "admission webhook \"rules.etcd-guard.io\" denied the request: pod name \"an-offensive-pod\" contains \
                  \"offensive\"";
    assert!(!said.success && said.stderr.contains(denial), "{said:?}");

    named["metadata"] = json!({"generateName": "offensive-"});
    let said = cluster.create(&named, &[]).await;
    assert!(!said.success && said.stderr.contains("pod name \"offensive-\" contains"), "{said:?}");
    assert_eq!(cluster.guard.news().await, ["CREATE denied ForbiddenName"]);

    named["metadata"] = json!({"generateName": "fine-"});
    assert!(cluster.create(&named, &[]).await.success);
    assert_eq!(cluster.guard.news().await, ["CREATE allowed NameAllowed"]);
}

#[tokio::test]
async fn while_the_guard_is_gone_a_forbidden_name_is_admitted() {
    let rule = "podNames: {forbiddenWords: [offensive]}";
    let mut cluster = MutatedCluster::start(rule, &[], &["pod-names"]).await;
    let mut named = pod(json!({}));
    named["metadata"]["name"] = json!("an-offensive-pod");
    assert!(!cluster.create(&named, &[]).await.success);
    assert_eq!(cluster.guard.news().await, ["CREATE denied ForbiddenName"], "it is asked while it is there");
    cluster.guard.kill();
    let said = cluster.create(&named, &[]).await;
    assert!(said.success, "{said:?}");
}
