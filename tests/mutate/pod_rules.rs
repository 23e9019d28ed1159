//! Tolerations by lifespan, and rules for pod names.

use serde_json::json;

use crate::mutated_cluster::{MutatedCluster, pod};

#[tokio::test]
async fn adds_tolerations_for_requested_lifespan() {
    let mut cluster = MutatedCluster::start("lifespan: {}", &[], &["inject"]).await;
    let mut requesting = pod(json!({}));
    requesting["metadata"]["labels"] = json!({"acme.com/lifespan-requested": "12"});
    let (stored, _) = cluster.applied(&requesting).await;
    assert_eq!(cluster.guard.new_verdicts().await, ["CREATE allowed Injected"]);
    let tolerations = stored["spec"]["tolerations"].as_array().unwrap();
    let values: Vec<_> = tolerations
        .iter()
        .filter(|toleration| toleration["key"] == "acme.com/lifespan-remaining")
        .map(|toleration| toleration["value"].as_str().unwrap())
        .collect();
    assert_eq!(values, ["12", "13", "14"]);

    for bad in ["0", "15", "three"] {
        requesting["metadata"]["labels"]["acme.com/lifespan-requested"] = json!(bad);
        requesting["metadata"]["name"] = json!(format!("bad-{bad}"));
        let output = cluster.create(&requesting, &[]).await;
        assert!(!output.success);
        let denial = format!(
            "Error from server (Forbidden): error when creating \"{}\": admission webhook \"inject.etcd-guard.io\" denied \
             the request: BadLifespan: label acme.com/lifespan-requested: \"{bad}\" is not a whole number from 1 to 14",
            cluster.files.join("object.json").display()
        );
        assert!(output.stderr.contains(&denial), "{}", output.stderr);
    }
    assert_eq!(cluster.guard.new_verdicts().await, ["CREATE denied BadLifespan"]);
}

#[tokio::test]
async fn denies_forbidden_word_in_pod_name() {
    let rule = "podNames: {forbiddenWords: [offensive]}";
    let mut cluster = MutatedCluster::start(rule, &[], &["pod-names"]).await;
    let mut named = pod(json!({}));
    named["metadata"]["name"] = json!("an-offensive-pod");
    let output = cluster.create(&named, &[]).await;
    let denial = "admission webhook \"rules.etcd-guard.io\" denied the request: ForbiddenName: pod name \
                  \"an-offensive-pod\" contains the forbidden word \"offensive\". Choose another name, then retry";
    assert!(!output.success && output.stderr.contains(denial), "{output:?}");

    named["metadata"] = json!({"generateName": "offensive-"});
    let output = cluster.create(&named, &[]).await;
    assert!(
        !output.success && output.stderr.contains("ForbiddenName: pod name \"offensive-\" contains"),
        "{output:?}"
    );
    assert_eq!(cluster.guard.new_verdicts().await, ["CREATE denied ForbiddenName"]);

    named["metadata"] = json!({"generateName": "fine-"});
    assert!(cluster.create(&named, &[]).await.success);
    assert_eq!(cluster.guard.new_verdicts().await, ["CREATE allowed NameAllowed"]);
}

#[tokio::test]
async fn admits_forbidden_name_without_guard() {
    let rule = "podNames: {forbiddenWords: [offensive]}";
    let mut cluster = MutatedCluster::start(rule, &[], &["pod-names"]).await;
    let mut named = pod(json!({}));
    named["metadata"]["name"] = json!("an-offensive-pod");
    assert!(!cluster.create(&named, &[]).await.success);
    assert_eq!(
        cluster.guard.new_verdicts().await,
        ["CREATE denied ForbiddenName"],
        "the API server calls the running guard"
    );
    cluster.guard.kill();
    let output = cluster.create(&named, &[]).await;
    assert!(output.success, "{output:?}");
}
