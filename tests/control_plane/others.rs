//! What is none of the guard's business passes at once, or is not even asked about.

use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Pod};
use kube::{Api, ResourceExt, api::PostParams};
use serde_json::json;

use crate::support::{
    guarded_cluster::{BYSTANDER, GuardedCluster, START_LIMIT},
    http_client::Connection,
    pods::{create_pod, delete, new_namespace},
    review::dry_run_of,
    wait::until,
};

/// An annotation that makes members of pods that do not look like it.
const MEMBER: &str = "etcd-guard.io/member=true";

#[tokio::test]
async fn a_pod_without_etcd_may_go() {
    let mut etcd = GuardedCluster::start().await;
    let said = etcd.kubectl(&["delete", "pod", BYSTANDER]).await;
    assert!(said.success, "{}", said.stderr);
    assert_eq!(etcd.guard.news().await, ["DELETE allowed NotEtcd"]);
}

#[tokio::test]
async fn in_a_namespace_without_the_label_nobody_asks() {
    let mut etcd = GuardedCluster::start().await;
    let asked_before = etcd.guard.requests().await;
    let pods = Api::namespaced(etcd.client.clone(), &new_namespace(&etcd.client, false).await);
    create_pod(&pods, "free").await;
    delete(&pods, "free").await.unwrap();
    until("the pod is gone", START_LIMIT, async || pods.get_opt("free").await.is_ok_and(|pod| pod.is_none()))
        .await;
    assert_eq!(etcd.guard.requests().await, asked_before);

    // It is there to be asked.
    etcd.delete(BYSTANDER).await.unwrap();
    assert_eq!(etcd.guard.news().await, ["DELETE allowed NotEtcd"]);
}

/// Only a dry run is asked for: until the guard's watch knows of the annotation, the pod is nobody's.
#[tokio::test]
async fn a_pod_that_names_etcd_nowhere_is_held_where_its_namespace_says_that_it_is_a_member() {
    let etcd = GuardedCluster::start().await;
    let said = etcd.kubectl(&["annotate", "namespace", &etcd.namespace, MEMBER]).await;
    assert!(said.success, "{said:?}");
    until("its deletion is denied", START_LIMIT, async || {
        !etcd.kubectl(&["delete", "pod", BYSTANDER, "--dry-run=server"]).await.success
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_names_etcd_nowhere_is_looked_at_where_its_stateful_set_says_that_it_is_a_member() {
    let etcd = GuardedCluster::start().await;
    let set = json!({
        "metadata": {"name": "plain"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "plain"}},
            "serviceName": "plain",
            "template": {
                "metadata": {"labels": {"app": "plain"}},
                "spec": {"containers": [{"name": "app", "image": "app"}]},
            },
        },
    });
    let sets: Api<StatefulSet> = Api::namespaced(etcd.client.clone(), &etcd.namespace);
    let set = sets.create(&PostParams::default(), &serde_json::from_value(set).unwrap()).await.unwrap();
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "plain", "uid": set.uid(), "controller": true,
    });
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "plain-7", "namespace": etcd.namespace, "uid": "u", "ownerReferences": [owner]},
        "spec": {"containers": [{"name": "app", "image": "app"}]},
        "status": {"phase": "Running"},
    }))
    .unwrap();
    assert!(is_passed_by(&etcd, &pod).await, "nobody says yet that it is a member");

    let said = etcd.kubectl(&["annotate", "statefulset/plain", MEMBER]).await;
    assert!(said.success, "{said:?}");
    until("it is looked at", START_LIMIT, async || !is_passed_by(&etcd, &pod).await).await;
}

/// Whether this pod, which nobody has to have made, is taken for one that runs no etcd.
async fn is_passed_by(etcd: &GuardedCluster, pod: &Pod) -> bool {
    let review = dry_run_of(pod);
    assert!(!review.contains("etcd"), "{review}");
    let mut connection = Connection::tls(etcd.guard.https(), &etcd.guard.ca_pem).await.unwrap();
    connection.post("/validate?timeout=5s", review).await.unwrap().body.contains("NotEtcd")
}
