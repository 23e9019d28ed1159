//! Handovers off nodes that are cordoned or tainted.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use test_support::{
    guard::process::ALL_NETWORKS,
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    wait::wait_until,
};

use crate::cluster::{
    QUIET_TIME, Turn, annotate, cordon, node_of, notes, patch_node, start, start_replica, start_with, term,
    uncordon, wait_for_move, wait_for_note,
};

/// Longer than the interval at which the guard evaluates nodes with a signal again.
const RECHECK_TIME: Duration = Duration::from_secs(20);

/// Edge case 152.
#[tokio::test]
async fn cordon_moves_leadership_before_an_eviction() {
    let _turn = Turn::start().await;
    let etcd = start(true).await;
    let (leader, before) = (etcd.leader().await, term(&etcd).await);
    cordon(&etcd, node_of(&leader)).await;
    let next = wait_for_move(&etcd, &leader).await;
    let start = format!("node {} is cordoned: leadership moved from {leader} to {next} ", node_of(&leader));
    for object in [format!("Pod/{leader}"), String::from("StatefulSet/etcd")] {
        wait_for_note(&etcd, &object, "LeaderMoved", &start).await;
    }
    assert_eq!(etcd.guard.metric("etcd_guard_handovers_total{trigger=\"cordon\",result=\"moved\"}").await, 1);

    // Leadership returns, and the node is still cordoned: one move for one signal.
    etcd.make_leader(&leader).await;
    sleep(RECHECK_TIME).await;
    assert_eq!((etcd.leader().await, term(&etcd).await), (leader.clone(), before + 2));

    // The signal is withdrawn and given again.
    uncordon(&etcd, node_of(&leader)).await;
    sleep(QUIET_TIME).await;
    cordon(&etcd, node_of(&leader)).await;
    wait_for_move(&etcd, &leader).await;
    uncordon(&etcd, node_of(&leader)).await;
}

#[tokio::test]
async fn leadership_stays_without_the_flag_or_the_policy() {
    let _turn = Turn::start().await;
    let off = start(false).await;
    let (leader, before) = (off.leader().await, term(&off).await);
    cordon(&off, node_of(&leader)).await;
    sleep(QUIET_TIME).await;
    assert_eq!((off.leader().await, term(&off).await), (leader.clone(), before), "without --handover");
    uncordon(&off, node_of(&leader)).await;
    // The pods remain in the API, and later members can get their addresses.
    annotate(&off, "statefulset/etcd", "etcd-guard.io/leader=deny").await;
    drop(off);

    let deny = start(true).await;
    annotate(&deny, "statefulset/etcd", "etcd-guard.io/leader=deny").await;
    sleep(QUIET_TIME).await;
    let (leader, before) = (deny.leader().await, term(&deny).await);
    cordon(&deny, node_of(&leader)).await;
    sleep(QUIET_TIME).await;
    assert_eq!((deny.leader().await, term(&deny).await), (leader.clone(), before), "the policy is `deny`");
    uncordon(&deny, node_of(&leader)).await;
}

#[tokio::test]
async fn taints_move_leadership() {
    let _turn = Turn::start().await;
    let config = ALL_NETWORKS.to_owned() + "  handover:\n    taints: [example.com/retiring]\n";
    let etcd = start_with(true, &config).await;
    for key in ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "example.com/retiring"] {
        let (leader, before) = (etcd.leader().await, term(&etcd).await);
        let taints = json!([{"key": key, "effect": "NoSchedule", "value": "x"}]);
        patch_node(&etcd, node_of(&leader), json!({"taints": taints})).await;
        wait_for_move(&etcd, &leader).await;
        assert_eq!(term(&etcd).await, before + 1, "{key}");
        patch_node(&etcd, node_of(&leader), json!({"taints": null})).await;
    }
}

/// Edge case 153.
#[tokio::test]
async fn no_transferee_on_a_doomed_node() {
    let _turn = Turn::start().await;
    let etcd = start(true).await;
    let leader = etcd.leader().await;
    let [first, second] = etcd.followers().await;
    cordon(&etcd, node_of(&first)).await;
    sleep(QUIET_TIME).await;
    cordon(&etcd, node_of(&leader)).await;
    assert_eq!(wait_for_move(&etcd, &leader).await, second);

    // All nodes are cordoned: leadership stays, and an event states the reason.
    let before = term(&etcd).await;
    cordon(&etcd, node_of(&second)).await;
    let start = format!("node {} is cordoned: leadership stays at {second}", node_of(&second));
    let note = wait_for_note(&etcd, "StatefulSet/etcd", "LeaderMoveFailed", &start).await;
    assert!(note.contains(&format!("{first}: node {} is cordoned", node_of(&first))), "{note}");
    assert_eq!((etcd.leader().await, term(&etcd).await), (second.clone(), before));

    // A voter that can take over appears while the signal persists.
    uncordon(&etcd, node_of(&first)).await;
    assert_eq!(wait_for_move(&etcd, &second).await, first);
    for pod in GuardedCluster::names() {
        uncordon(&etcd, node_of(pod)).await;
    }
}

#[tokio::test]
async fn two_and_three_replicas_make_one_move() {
    let _turn = Turn::start().await;
    let etcd = start(true).await;
    let mut replicas = Vec::new();
    for number in 1..=2 {
        replicas.push(start_replica(&etcd, number, true).await);
        let (leader, before) = (etcd.leader().await, term(&etcd).await);
        let events = notes(&etcd, "StatefulSet/etcd", "LeaderMoved").await.len();
        cordon(&etcd, node_of(&leader)).await;
        wait_for_move(&etcd, &leader).await;
        sleep(QUIET_TIME).await;
        assert_eq!(term(&etcd).await, before + 1, "{} replicas", number + 1);
        wait_until("one replica records the event", START_TIMEOUT, async || {
            notes(&etcd, "StatefulSet/etcd", "LeaderMoved").await.len() == events + 1
        })
        .await;
        uncordon(&etcd, node_of(&leader)).await;
        sleep(QUIET_TIME).await;
    }
}
