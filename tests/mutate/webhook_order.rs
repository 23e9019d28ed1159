//! The order of several mutating webhooks.

use serde_json::json;

use crate::mutated_cluster::{MutatedCluster, another_guard, mount_paths, pod};

#[tokio::test]
async fn injects_into_containers_of_later_webhooks() {
    let mut cluster = MutatedCluster::start("", &[], &["inject"]).await;
    let late = another_guard(
        "sidecars: {templates: [{name: late, match: {podSelector: {}}, native: false, containers: [{name: late, image: 'late:1'}]}]}",
    )
    .await;
    cluster.register("inject", &late, "zz-").await;
    cluster.guard.new_verdicts().await;
    let (calls, late_calls) = (cluster.guard.request_count().await, late.request_count().await);
    let (stored, _) = cluster.applied(&pod(json!({"sidecar-injector.lxcfs/inject": "true"}))).await;
    let containers = stored["spec"]["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 2);
    for container in containers {
        assert!(mount_paths(container).contains(&"/proc/meminfo"), "{container:#}");
    }
    assert_eq!(cluster.guard.new_verdicts().await, ["CREATE allowed Injected"]);
    assert!(cluster.guard.request_count().await >= calls + 2, "calls again after the other");
    assert!(late.request_count().await > late_calls);
}
