//! Preemption by the real scheduler, which is a plain deletion: a budget would not even be asked.

use k8s_openapi::api::{core::v1::Pod, scheduling::v1::PriorityClass};
use kube::{Api, api::PostParams};
use serde_json::json;

use crate::support::{
    control_plane::CROWDED_NODES,
    guarded_cluster::{GuardedCluster, START_LIMIT},
    scheduler::{SCHEDULER, Scheduler},
    wait::until,
};

const USER: &str = "system:kube-scheduler";

#[tokio::test]
async fn a_more_important_pod_does_not_take_the_leaders_place_and_takes_a_followers() {
    let etcd = GuardedCluster::start_on(&CROWDED_NODES).await;
    let leader = etcd.leader().await;
    let [follower, _] = etcd.followers().await;
    let (uid, leader_uid) = (etcd.uid(&follower).await, etcd.uid(&leader).await);
    let _scheduler = Scheduler::start(etcd.control_plane);
    let class = json!({"metadata": {"name": "more-important"}, "value": 1000});
    let class: PriorityClass = serde_json::from_value(class).unwrap();
    Api::all(etcd.client.clone()).create(&PostParams::default(), &class).await.unwrap();

    fill(&etcd, node_of(&leader)).await;
    let line = etcd.guard.told(USER, "denied", "LeaderProtected").await;
    assert_eq!(line["pod"], leader);

    fill(&etcd, node_of(&follower)).await;
    let line = etcd.guard.told(USER, "allowed", "SafeToDelete").await;
    assert_eq!(line["pod"], follower);
    etcd.wait_until_back(&follower, &uid).await;
    until("the more important pod has the place", START_LIMIT, async || {
        node_that_runs(&etcd, node_of(&follower)).await.is_some()
    })
    .await;
    assert_eq!(etcd.uid(&leader).await, leader_uid);
    assert_eq!(node_that_runs(&etcd, node_of(&leader)).await, None);
}

/// Asks for all that a node has.
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
    // The apiserver learns of a new class a moment later.
    until("the pod is accepted", START_LIMIT, async || {
        etcd.pods.create(&PostParams::default(), &pod).await.is_ok()
    })
    .await;
}

/// Where the pod that wants all of this node runs.
async fn node_that_runs(etcd: &GuardedCluster, node: &str) -> Option<String> {
    etcd.pods.get(&format!("fills-{node}")).await.unwrap().spec.unwrap().node_name
}

/// The members go round the nodes.
fn node_of(pod: &str) -> &'static str {
    let position = GuardedCluster::names().iter().position(|name| *name == pod).unwrap();
    CROWDED_NODES[position]
}
