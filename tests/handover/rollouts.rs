//! Handovers during rollouts.

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    wait::wait_until,
};

use crate::cluster::{Turn, annotate, start, term, wait_for_note};

#[tokio::test]
#[ignore = "another way of the same move; scripts/prove tests runs it"]
async fn leadership_leaves_the_last_member_of_a_rollout() {
    let _turn = Turn::start().await;
    let etcd = start(true).await;
    // The controller deletes no pod itself.
    let strategy = r#"{"spec": {"updateStrategy": {"type": "OnDelete", "rollingUpdate": null}}}"#;
    let output = etcd.kubectl(&["patch", "statefulset/etcd", "-p", strategy]).await;
    assert!(output.success, "{output:?}");
    etcd.make_leader("etcd-1").await;
    let output = etcd.kubectl(&["rollout", "restart", "statefulset/etcd"]).await;
    assert!(output.success, "{output:?}");
    for follower in ["etcd-0", "etcd-2"] {
        assert_eq!(etcd.leader().await, "etcd-1", "not all other members are updated");
        let uid = etcd.uid(follower).await;
        wait_until("the deletion is approved", START_TIMEOUT, async || etcd.delete(follower).await.is_ok())
            .await;
        etcd.wait_until_replaced(follower, &uid).await;
    }
    let start =
        "the rollout of StatefulSet etcd has updated all other members: leadership moved from etcd-1 to ";
    wait_for_note(&etcd, "StatefulSet/etcd", "LeaderMoved", start).await;
    assert_ne!(etcd.leader().await, "etcd-1");

    // Since Kubernetes 1.37 the controller completes the rollout in the status under `OnDelete`, too.
    let uid = etcd.uid("etcd-1").await;
    wait_until("the deletion is approved", START_TIMEOUT, async || etcd.delete("etcd-1").await.is_ok()).await;
    etcd.wait_until_replaced("etcd-1", &uid).await;
    let revisions = "jsonpath={.status.currentRevision} {.status.updateRevision}";
    if etcd.kubernetes_minor().await >= 37 {
        wait_until("the rollout is complete", START_TIMEOUT, async || {
            let output = etcd.kubectl(&["get", "statefulset/etcd", "-o", revisions]).await;
            output.stdout.split_once(' ').is_some_and(|(current, update)| current == update)
        })
        .await;
    }
    annotate(&etcd, "statefulset/etcd", "etcd-guard.io/leader=deny").await;
}

/// Sets the lowest ordinal that the StatefulSet controller updates.
async fn update_from(etcd: &GuardedCluster, ordinal: u32) {
    let rolling = format!(
        r#"{{"spec": {{"updateStrategy": {{"type": "RollingUpdate", "rollingUpdate": {{"partition": {ordinal}}}}}}}}}"#
    );
    let output = etcd.kubectl(&["patch", "statefulset/etcd", "-p", &rolling]).await;
    assert!(output.success, "{output:?}");
}

/// The partition delays the deletion of the last pod, which the controller otherwise requests as soon as the others are ready.
#[tokio::test]
async fn leadership_leaves_last_pod_before_the_controller_deletes_it() {
    let _turn = Turn::start().await;
    let etcd = start(true).await;
    update_from(&etcd, 1).await;
    etcd.make_leader("etcd-0").await;
    let before = [etcd.uid("etcd-0").await, etcd.uid("etcd-1").await, etcd.uid("etcd-2").await];
    let output = etcd.kubectl(&["rollout", "restart", "statefulset/etcd"]).await;
    assert!(output.success, "{output:?}");
    etcd.wait_until_replaced("etcd-2", &before[2]).await;
    etcd.wait_until_replaced("etcd-1", &before[1]).await;
    let start =
        "the rollout of StatefulSet etcd has updated all other members: leadership moved from etcd-0 to ";
    wait_for_note(&etcd, "StatefulSet/etcd", "LeaderMoved", start).await;
    assert_ne!(etcd.leader().await, "etcd-0");
    assert_eq!(etcd.uid("etcd-0").await, before[0]);

    update_from(&etcd, 0).await;
    etcd.wait_until_replaced("etcd-0", &before[0]).await;
    let verdicts = etcd.guard.logged_deletions("etcd-0");
    let is_reason = |reason: &str| verdicts.iter().any(|line| line["reason"] == reason);
    assert!(is_reason("SafeToDelete") && !is_reason("LeaderTransferred"), "{verdicts:?}");
    annotate(&etcd, "statefulset/etcd", "etcd-guard.io/leader=deny").await;
}

/// The rollout and the deletion of the last pod require the same move at the same time.
#[tokio::test]
async fn rollout_by_the_controller_moves_leadership_once() {
    let _turn = Turn::start().await;
    let etcd = start(true).await;
    etcd.make_leader("etcd-0").await;
    let (uid, before) = (etcd.uid("etcd-0").await, term(&etcd).await);
    let output = etcd.kubectl(&["rollout", "restart", "statefulset/etcd"]).await;
    assert!(output.success, "{output:?}");
    etcd.wait_until_replaced("etcd-0", &uid).await;
    assert_ne!(etcd.leader().await, "etcd-0");
    assert_eq!(term(&etcd).await, before + 1, "one move");
    annotate(&etcd, "statefulset/etcd", "etcd-guard.io/leader=deny").await;
}
