//! Evictions from a tainted node, which are plain deletions by a controller that stops after five attempts.

use test_support::{
    guarded_cluster::{GuardedCluster, LEADER_DENY, START_TIMEOUT, Setup},
    kubernetes::control_plane::TAINTED_NODES,
    wait::wait_until,
};

const CONTROLLER: &str = "system:serviceaccount:kube-system:node-controller";

#[tokio::test]
async fn taint_evicts_follower_and_not_leader() {
    let setup = Setup { nodes: &TAINTED_NODES, config: LEADER_DENY, ..Setup::default() };
    let etcd = GuardedCluster::start_as(setup).await;
    let leader = etcd.leader().await;
    let [follower, _] = etcd.followers().await;
    let (uid, leader_uid) = (etcd.uid(&follower).await, etcd.uid(&leader).await);

    taint(&etcd, node_of(&leader), "maintenance=soon:NoExecute").await;
    let line = etcd.guard.wait_for_verdict(CONTROLLER, "denied", "LeaderProtected").await;
    assert_eq!(line["pod"], leader);
    // The controller marks the pod first, and stops after five attempts.
    wait_until("the pod is marked", START_TIMEOUT, async || {
        let output = etcd.kubectl(&["get", "pod", &leader, "-o", "jsonpath={.status.conditions}"]).await;
        output.stdout.contains("DeletionByTaintManager")
    })
    .await;
    taint(&etcd, node_of(&leader), "maintenance-").await;

    taint(&etcd, node_of(&follower), "maintenance=soon:NoExecute").await;
    let line = etcd.guard.wait_for_verdict(CONTROLLER, "allowed", "SafeToDelete").await;
    assert_eq!(line["pod"], follower);
    taint(&etcd, node_of(&follower), "maintenance-").await;
    etcd.wait_until_replaced(&follower, &uid).await;
    assert_eq!(etcd.uid(&leader).await, leader_uid);
}

async fn taint(etcd: &GuardedCluster, node: &str, taint: &str) {
    let output = etcd.kubectl_everywhere().run(&["taint", "node", node, taint]).await;
    assert!(output.success, "{output:?}");
}

/// Returns the node of a member; the members are distributed over the nodes in order.
fn node_of(pod: &str) -> &'static str {
    let position = GuardedCluster::names().iter().position(|name| *name == pod).unwrap();
    TAINTED_NODES[position]
}
