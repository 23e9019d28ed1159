//! While no guard answers, nothing that matters is deleted, and what is over is not held up.

use crate::support::{
    guarded_cluster::{BYSTANDER, GuardedCluster, START_LIMIT},
    pods::create_failed_pod,
    process_node::Order,
    wait::{some, until},
};

#[tokio::test]
async fn while_the_guard_is_down_living_pods_stay_and_ended_ones_go() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [leaving, staying] = etcd.followers().await;
    let uid = etcd.uid(&leaving).await;
    create_failed_pod(&etcd.pods, "failed").await;
    etcd.order(&leaving, Order::Isolate).await;
    etcd.delete(&leaving).await.unwrap();
    assert_eq!(etcd.guard.news().await, ["DELETE allowed SafeToDelete"]);

    etcd.guard.kill();
    for name in [&staying, &leader, BYSTANDER] {
        let said = etcd.kubectl(&["delete", "pod", name]).await;
        assert!(!said.success, "{said:?}");
        assert!(said.stderr.contains("failed calling webhook \"guard.etcd-guard.io\""), "{}", said.stderr);
    }
    // Neither what has ended is held up, nor a terminating pod's further deletions: a shorter grace period, for one.
    for harmless in [&["failed"][..], &[&leaving, "--grace-period=5"]] {
        let said = etcd.kubectl(&[&["delete", "pod", "--wait=false"], harmless].concat()).await;
        assert!(said.success, "{}", said.stderr);
    }
    // The kubelet's last delete, and the StatefulSet's next pod.
    etcd.order(&leaving, Order::Rejoin).await;
    etcd.wait_until_back(&leaving, &uid).await;

    etcd.guard.start_again().await;
    until("the apiserver reaches the guard again", START_LIMIT, async || etcd.delete(&staying).await.is_ok())
        .await;
    assert_eq!(etcd.guard.news().await, ["DELETE allowed SafeToDelete"]);
}

#[tokio::test]
async fn a_new_guard_counts_a_pod_that_an_earlier_one_allowed_to_go() {
    let mut etcd = GuardedCluster::start().await;
    let [leaving, staying] = etcd.followers().await;
    // The pod terminates, and its process goes on: only the apiserver knows.
    etcd.order(&leaving, Order::Isolate).await;
    etcd.delete(&leaving).await.unwrap();
    etcd.guard.kill();
    etcd.guard.start_again().await;
    assert!(etcd.member(&leaving).serves().await);

    let denial = some("the apiserver reaches the new guard", START_LIMIT, async || {
        let denial = etcd.delete(&staying).await.expect_err("two of three must not go");
        Some(denial).filter(|denial| !denial.contains("failed calling webhook"))
    })
    .await;
    assert!(denial.contains(&format!("{leaving} is on the way out")), "{denial}");
    assert_eq!(etcd.guard.news().await, ["DELETE denied DisruptionInProgress"]);
}
