//! Handovers off nodes that are cordoned or tainted.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use test_support::{
    guard::process::ALL_NETWORKS,
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    kubernetes::control_plane::DRAINED_NODES,
    process_node::ProcessAction,
    telemetry::trace_receiver::TraceReceiver,
    wait::wait_until,
};

use crate::cluster::{
    LIFECYCLE_CONDITIONS, QUIET_TIME, Turn, annotate, cordon, node_of, notes, patch_node, set_condition,
    start, start_replica, start_with, term, uncordon, wait_for_move, wait_for_note,
};

/// Longer than the interval at which the guard evaluates nodes with a signal again.
const RECHECK_TIME: Duration = Duration::from_secs(20);

/// Time in which a handover has begun and its first probe round has not ended: each of the two rounds waits a second for a
/// member that does not answer.
const PROBE_TIME: Duration = Duration::from_millis(500);

async fn taint(etcd: &GuardedCluster, node: &str, key: &str) {
    // `NoExecute` would evict the pods as well.
    let taints = json!([{"key": key, "effect": "NoSchedule", "value": "x"}]);
    patch_node(etcd, node, json!({"taints": taints})).await;
}

async fn remove_taints(etcd: &GuardedCluster, node: &str) {
    patch_node(etcd, node, json!({"taints": null})).await;
}

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
    assert_eq!(etcd.guard.metric("etcd_guard_handover_duration_seconds_count").await, 1);

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

/// Two of the keys, with their triggers. The unit tests of `signals.rs` have all.
const TAINTS: [(&str, &str); 2] =
    [("ToBeDeletedByClusterAutoscaler", "cluster_autoscaler"), ("example.com/retiring", "configured")];

#[tokio::test]
async fn taint_moves_leadership_once() {
    let _turn = Turn::start().await;
    let config = ALL_NETWORKS.to_owned() + "  handover:\n    taints: [example.com/retiring]\n";
    let etcd = start_with(true, &config).await;
    let moves = async |trigger: &str| {
        let series = format!("etcd_guard_handovers_total{{trigger=\"{trigger}\",result=\"moved\"}}");
        etcd.guard.metric(&series).await
    };
    for (key, trigger) in TAINTS {
        let (leader, before, counted) = (etcd.leader().await, term(&etcd).await, moves(trigger).await);
        taint(&etcd, node_of(&leader), key).await;
        let next = wait_for_move(&etcd, &leader).await;
        let note = format!(
            "node {} has the taint {key}: leadership moved from {leader} to {next} ",
            node_of(&leader)
        );
        for object in [format!("Pod/{leader}"), String::from("StatefulSet/etcd")] {
            wait_for_note(&etcd, &object, "LeaderMoved", &note).await;
        }
        sleep(QUIET_TIME).await;
        assert_eq!((etcd.leader().await, term(&etcd).await), (next, before + 1), "{key}");
        assert_eq!(moves(trigger).await, counted + 1, "{key}");
        remove_taints(&etcd, node_of(&leader)).await;
    }
}

#[tokio::test]
async fn lifecycle_condition_moves_leadership_once() {
    const MOVED: &str = "etcd_guard_handovers_total{trigger=\"condition\",result=\"moved\"}";
    let _turn = Turn::start().await;
    let etcd = start(true).await;
    let kind = LIFECYCLE_CONDITIONS[0];
    let (leader, before) = (etcd.leader().await, term(&etcd).await);
    let doomed = node_of(&leader);
    set_condition(&etcd, doomed, kind, true).await;
    let next = wait_for_move(&etcd, &leader).await;
    let note = format!("node {doomed} has the condition {kind}: leadership moved from {leader} to {next} ");
    wait_for_note(&etcd, "StatefulSet/etcd", "LeaderMoved", &note).await;
    sleep(QUIET_TIME).await;
    assert_eq!((etcd.leader().await, term(&etcd).await), (next, before + 1));
    assert_eq!(etcd.guard.metric(MOVED).await, 1);
    set_condition(&etcd, doomed, kind, false).await;

    // `MaintenancePlanned` is no signal: it does not state when the maintenance begins.
    let (leader, before) = (etcd.leader().await, term(&etcd).await);
    set_condition(&etcd, node_of(&leader), "MaintenancePlanned", true).await;
    sleep(QUIET_TIME).await;
    assert_eq!((etcd.leader().await, term(&etcd).await), (leader.clone(), before));
    set_condition(&etcd, node_of(&leader), "MaintenancePlanned", false).await;
}

/// Returns the followers in the order of the uids of their pods, by which the guard chooses between equal voters: the last is
/// preferred.
async fn followers_by_uid(etcd: &GuardedCluster) -> [String; 2] {
    let [first, second] = etcd.followers().await;
    if etcd.uid(&first).await < etcd.uid(&second).await { [first, second] } else { [second, first] }
}

/// Both followers have applied the same entries, and the guard would prefer the one whose node is off.
#[tokio::test]
async fn no_transferee_on_a_node_that_is_shut_down() {
    let _turn = Turn::start().await;
    let etcd = start(true).await;
    let leader = etcd.leader().await;
    let [other, off] = followers_by_uid(&etcd).await;
    taint(&etcd, node_of(&off), "node.kubernetes.io/out-of-service").await;
    sleep(QUIET_TIME).await;
    cordon(&etcd, node_of(&leader)).await;
    assert_eq!(wait_for_move(&etcd, &leader).await, other);
    uncordon(&etcd, node_of(&leader)).await;
    remove_taints(&etcd, node_of(&off)).await;
}

/// The node is off before its taint: an election replaces the leader, and the guard has no leader to move.
#[tokio::test]
async fn no_handover_from_a_leader_that_does_not_answer() {
    let _turn = Turn::start().await;
    let etcd = start(true).await;
    let leader = etcd.leader().await;
    let [first, second] = etcd.followers().await;
    etcd.apply(&leader, ProcessAction::Pause).await;
    taint(&etcd, node_of(&leader), "node.kubernetes.io/out-of-service").await;
    wait_until("a follower is elected", START_TIMEOUT, async || {
        let statuses = [etcd.member(&first).status().await, etcd.member(&second).status().await];
        let leaders = statuses.map(|status| Some((status.as_ref()?.leader(), status?.header()?.member_id())));
        leaders.iter().flatten().any(|(leader, own)| leader == own)
    })
    .await;
    sleep(QUIET_TIME).await;
    etcd.apply(&leader, ProcessAction::Resume).await;
    let elected = etcd.leader().await;
    assert_ne!(elected, leader);
    for reason in ["LeaderMoved", "LeaderMoveFailed"] {
        assert_eq!(notes(&etcd, "StatefulSet/etcd", reason).await, [""; 0], "{reason}");
    }

    // The former leader answers again, but its node keeps the taint.
    cordon(&etcd, node_of(&elected)).await;
    let next = wait_for_move(&etcd, &elected).await;
    assert_ne!(next, leader, "the transferee is on the node that was shut down");
    uncordon(&etcd, node_of(&elected)).await;
    remove_taints(&etcd, node_of(&leader)).await;
}

/// The node is uncordoned while the guard probes the members, of which one does not answer.
#[tokio::test]
async fn leadership_stays_if_the_cordon_is_withdrawn_before_the_transfer() {
    let _turn = Turn::start().await;
    let receiver = TraceReceiver::start().await;
    let endpoint = receiver.endpoint();
    let setup = Setup { nodes: &DRAINED_NODES, handover: true, otlp_endpoint: &endpoint, ..Setup::default() };
    let etcd = GuardedCluster::start_as(setup).await;
    annotate(&etcd, "statefulset/etcd", "etcd-guard.io/leader=transfer").await;
    sleep(QUIET_TIME).await;
    let (leader, before) = (etcd.leader().await, term(&etcd).await);
    let [_, silent] = etcd.followers().await;
    etcd.apply(&silent, ProcessAction::Pause).await;
    cordon(&etcd, node_of(&leader)).await;
    sleep(PROBE_TIME).await;
    uncordon(&etcd, node_of(&leader)).await;
    let ended = receiver.span("the handover ends", |span| span.name == "handover").await;
    assert_eq!((ended.attribute("trigger"), ended.attribute("result")), ("cordon", "withdrawn"));
    etcd.apply(&silent, ProcessAction::Resume).await;
    assert_eq!((etcd.leader().await, term(&etcd).await), (leader.clone(), before));

    // The withdrawn signal was not handled: it can be given again.
    cordon(&etcd, node_of(&leader)).await;
    wait_for_move(&etcd, &leader).await;
    uncordon(&etcd, node_of(&leader)).await;
}

/// The entry of a cordon that is withdrawn while no replica runs must not prevent the handover of the next cordon.
#[tokio::test]
async fn new_cordon_moves_leadership_after_missed_withdrawal() {
    let _turn = Turn::start().await;
    let mut etcd = start(true).await;
    let leader = etcd.leader().await;
    cordon(&etcd, node_of(&leader)).await;
    wait_for_move(&etcd, &leader).await;
    etcd.guard.kill();
    uncordon(&etcd, node_of(&leader)).await;
    etcd.make_leader(&leader).await;
    etcd.guard.restart().await;
    sleep(QUIET_TIME).await;
    cordon(&etcd, node_of(&leader)).await;
    wait_for_move(&etcd, &leader).await;
    uncordon(&etcd, node_of(&leader)).await;
}

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

    // The cause changes while the signal persists: another event states the new one, on the pod and on the StatefulSet.
    etcd.apply(&first, ProcessAction::Pause).await;
    let object = format!("Pod/{second}");
    wait_until("an event states the new cause", START_TIMEOUT, async || {
        let stated = notes(&etcd, &object, "LeaderMoveFailed").await;
        stated.iter().any(|note| note.contains(&format!("{first} is not healthy")))
    })
    .await;
    etcd.apply(&first, ProcessAction::Resume).await;

    // A voter that can take over appears while the signal persists.
    uncordon(&etcd, node_of(&first)).await;
    assert_eq!(wait_for_move(&etcd, &second).await, first);
    for pod in GuardedCluster::names() {
        uncordon(&etcd, node_of(pod)).await;
    }
}

#[tokio::test]
async fn three_replicas_make_one_move() {
    let _turn = Turn::start().await;
    let etcd = start(true).await;
    let _replicas = [start_replica(&etcd, 1, true).await, start_replica(&etcd, 2, true).await];
    let (leader, before) = (etcd.leader().await, term(&etcd).await);
    cordon(&etcd, node_of(&leader)).await;
    wait_for_move(&etcd, &leader).await;
    sleep(QUIET_TIME).await;
    assert_eq!(term(&etcd).await, before + 1);
    wait_until("one replica records the event", START_TIMEOUT, async || {
        notes(&etcd, "StatefulSet/etcd", "LeaderMoved").await.len() == 1
    })
    .await;
    uncordon(&etcd, node_of(&leader)).await;
}
