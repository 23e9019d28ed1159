//! Preemption by the real scheduler, which is a plain deletion and not an eviction, so that budgets do not apply.

use k8s_openapi::api::{core::v1::Pod, scheduling::v1::PriorityClass};
use kube::{Api, api::PostParams};
use serde_json::json;

use test_support::{
    guarded_cluster::{GuardedCluster, LEADER_DENY, START_TIMEOUT, Setup, without_priority_class},
    kubernetes::{
        control_plane::FULL_NODES,
        scheduler::{SCHEDULER, Scheduler},
    },
    wait::wait_until,
};

const USER: &str = "system:kube-scheduler";

#[tokio::test]
async fn preemption_removes_follower_and_not_leader() {
    // The shipped class would exclude the members from preemption.
    let setup = Setup {
        nodes: &FULL_NODES,
        config: LEADER_DENY,
        change_manifest: without_priority_class,
        ..Setup::default()
    };
    let etcd = GuardedCluster::start_as(setup).await;
    let leader = etcd.leader().await;
    let [follower, _] = etcd.followers().await;
    let (uid, leader_uid) = (etcd.uid(&follower).await, etcd.uid(&leader).await);
    let _scheduler = Scheduler::start(etcd.control_plane);
    let class = json!({"metadata": {"name": "more-important"}, "value": 1000});
    let class: PriorityClass = serde_json::from_value(class).unwrap();
    Api::all(etcd.client.clone()).create(&PostParams::default(), &class).await.unwrap();

    fill(&etcd, node_of(&leader)).await;
    let line = etcd.guard.wait_for_verdict(USER, "denied", "LeaderProtected").await;
    assert_eq!(line["pod"], leader);

    fill(&etcd, node_of(&follower)).await;
    let line = etcd.guard.wait_for_verdict(USER, "allowed", "SafeToDelete").await;
    assert_eq!(line["pod"], follower);
    etcd.wait_until_replaced(&follower, &uid).await;
    wait_until("the more important pod is scheduled", START_TIMEOUT, async || {
        node_that_runs(&etcd, node_of(&follower)).await.is_some()
    })
    .await;
    assert_eq!(etcd.uid(&leader).await, leader_uid);
    assert_eq!(node_that_runs(&etcd, node_of(&leader)).await, None);
}

/// Creates a pod that requests the whole capacity of a node.
async fn fill(etcd: &GuardedCluster, node: &str) {
    let pod = json!({
        "metadata": {"name": format!("fills-{node}")},
        "spec": {
            "automountServiceAccountToken": false,
            "priorityClassName": "more-important",
            "schedulerName": SCHEDULER,
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [{"name": "app", "image": "app", "resources": {"requests": {"cpu": "64"}}}],
        },
    });
    let pod: Pod = serde_json::from_value(pod).unwrap();
    // The API server learns of a new class a moment later.
    wait_until("the pod is accepted", START_TIMEOUT, async || {
        etcd.pods.create(&PostParams::default(), &pod).await.is_ok()
    })
    .await;
}

/// Returns the node of the pod that requests the whole capacity of this node.
async fn node_that_runs(etcd: &GuardedCluster, node: &str) -> Option<String> {
    etcd.pods.get(&format!("fills-{node}")).await.unwrap().spec.unwrap().node_name
}

/// Returns the node of a member; the members are distributed over the nodes in order.
fn node_of(pod: &str) -> &'static str {
    let position = GuardedCluster::names().iter().position(|name| *name == pod).unwrap();
    FULL_NODES[position]
}
