//! Without a running guard, living pods are protected, and pods that have ended can be deleted.

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT, UNRELATED_POD},
    kubernetes::pods::create_failed_pod,
    process_node::ProcessAction,
    wait::{wait_for, wait_until},
};

#[tokio::test]
async fn without_guard_only_ended_pods_can_be_deleted() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [leaving, staying] = etcd.followers().await;
    let uid = etcd.uid(&leaving).await;
    create_failed_pod(&etcd.pods, "failed").await;
    etcd.apply(&leaving, ProcessAction::Isolate).await;
    etcd.delete(&leaving).await.unwrap();
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE allowed SafeToDelete"]);

    etcd.guard.kill();
    for name in [&staying, &leader, UNRELATED_POD] {
        let output = etcd.kubectl(&["delete", "pod", name]).await;
        assert!(!output.success, "{output:?}");
        assert!(
            output.stderr.contains("failed calling webhook \"guard.etcd-guard.io\""),
            "{}",
            output.stderr
        );
    }
    // Pods that have ended can be deleted, and a terminating pod can be deleted again, for example with a shorter grace
    // period.
    for harmless in [&["failed"][..], &[&leaving, "--grace-period=5"]] {
        let output = etcd.kubectl(&[&["delete", "pod", "--wait=false"], harmless].concat()).await;
        assert!(output.success, "{}", output.stderr);
    }
    // The kubelet's final delete works, and the StatefulSet controller creates the next pod.
    etcd.apply(&leaving, ProcessAction::Rejoin).await;
    etcd.wait_until_replaced(&leaving, &uid).await;

    etcd.guard.restart().await;
    wait_until("the API server reaches the guard again", START_TIMEOUT, async || {
        etcd.delete(&staying).await.is_ok()
    })
    .await;
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE allowed SafeToDelete"]);
}

#[tokio::test]
async fn new_guard_counts_approval_of_earlier_guard() {
    let mut etcd = GuardedCluster::start().await;
    let [leaving, staying] = etcd.followers().await;
    // The pod is terminating and its process continues, so only the API has this information.
    etcd.apply(&leaving, ProcessAction::Isolate).await;
    etcd.delete(&leaving).await.unwrap();
    etcd.guard.kill();
    etcd.guard.restart().await;
    assert!(etcd.member(&leaving).serves().await);

    let denial = wait_for("the API server reaches the new guard", START_TIMEOUT, async || {
        let denial = etcd.delete(&staying).await.expect_err("a second deletion is denied");
        Some(denial).filter(|denial| !denial.contains("failed calling webhook"))
    })
    .await;
    assert!(denial.contains(&format!("{leaving} is being deleted")), "{denial}");
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE denied DisruptionInProgress"]);
}
