//! Handovers during rollouts.

use test_support::{guarded_cluster::START_TIMEOUT, wait::wait_until};

use crate::cluster::{Turn, annotate, start, wait_for_note};

#[tokio::test]
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
    annotate(&etcd, "statefulset/etcd", "etcd-guard.io/leader=deny").await;
}
