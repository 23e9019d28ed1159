//! Beside other webhooks.

use serde_json::json;

use crate::mutated_cluster::{MutatedCluster, another_guard, mount_paths, pod};

#[tokio::test]
async fn a_container_that_a_later_webhook_adds_gets_its_files_in_the_second_round() {
    let mut cluster = MutatedCluster::start("", &[], &["inject"]).await;
    let late = another_guard(
        "sidecars: {templates: [{name: late, match: {podSelector: {}}, native: false, containers: [{name: late, image: 'late:1'}]}]}",
    )
    .await;
    cluster.register("inject", &late, "zz-").await;
    cluster.guard.news().await;
    let (asked, late_asked) = (cluster.guard.requests().await, late.requests().await);
    let (stored, _) = cluster.applied(&pod(json!({"sidecar-injector.lxcfs/inject": "true"}))).await;
    let containers = stored["spec"]["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 2);
    for container in containers {
        assert!(mount_paths(container).contains(&"/proc/meminfo"), "{container:#}");
    }
    assert_eq!(cluster.guard.news().await, ["CREATE allowed Injected"]);
    assert!(cluster.guard.requests().await >= asked + 2, "asked again after the other");
    assert!(late.requests().await > late_asked);
}
