//! Eviction from a tainted node, which is a plain deletion by a controller that soon gives up.

use crate::support::{
    control_plane::TAINTED_NODES,
    guarded_cluster::{GuardedCluster, START_LIMIT},
    wait::until,
};

const CONTROLLER: &str = "system:serviceaccount:kube-system:node-controller";

#[tokio::test]
async fn a_taint_does_not_take_the_leader_and_takes_a_follower() {
    let etcd = GuardedCluster::start_on(&TAINTED_NODES).await;
    let leader = etcd.leader().await;
    let [follower, _] = etcd.followers().await;
    let (uid, leader_uid) = (etcd.uid(&follower).await, etcd.uid(&leader).await);

    taint(&etcd, node_of(&leader), "maintenance=soon:NoExecute").await;
    let line = etcd.guard.told(CONTROLLER, "denied", "LeaderProtected").await;
    assert_eq!(line["pod"], leader);
    // The controller marks the pod first, and gives up after five tries.
    until("the pod is marked", START_LIMIT, async || {
        let said = etcd.kubectl(&["get", "pod", &leader, "-o", "jsonpath={.status.conditions}"]).await;
        said.stdout.contains("DeletionByTaintManager")
    })
    .await;
    taint(&etcd, node_of(&leader), "maintenance-").await;

    taint(&etcd, node_of(&follower), "maintenance=soon:NoExecute").await;
    let line = etcd.guard.told(CONTROLLER, "allowed", "SafeToDelete").await;
    assert_eq!(line["pod"], follower);
    taint(&etcd, node_of(&follower), "maintenance-").await;
    etcd.wait_until_back(&follower, &uid).await;
    assert_eq!(etcd.uid(&leader).await, leader_uid);
}

async fn taint(etcd: &GuardedCluster, node: &str, taint: &str) {
    let said = etcd.kubectl_everywhere().run(&["taint", "node", node, taint]).await;
    assert!(said.success, "{said:?}");
}

/// The members go round the nodes.
fn node_of(pod: &str) -> &'static str {
    let position = GuardedCluster::names().iter().position(|name| *name == pod).unwrap();
    TAINTED_NODES[position]
}
