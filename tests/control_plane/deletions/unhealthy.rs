//! While one member does not serve, the healthy members' pods are protected, and the pod of the broken one may be
//! deleted.

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    process_node::ProcessAction,
    wait::wait_until,
};

#[tokio::test]
async fn with_crashed_follower_allows_only_its_pod() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [dead, healthy] = etcd.followers().await;
    let uid = etcd.uid(&dead).await;
    etcd.apply(&dead, ProcessAction::CrashLoop).await;
    wait_until("kubectl shows that the pod crashes", START_TIMEOUT, async || {
        etcd.kubectl(&["get", "pod", &dead]).await.stdout.contains("CrashLoopBackOff")
    })
    .await;
    assert!(!etcd.node.running(&etcd.namespace).contains(&dead));

    for name in [&healthy, &leader] {
        let output = etcd.kubectl(&["delete", "pod", name]).await;
        let denied = format!(
            "(Forbidden): admission webhook \"guard.etcd-guard.io\" denied the request: QuorumAtRisk: {dead} ("
        );
        let numbers = format!(
            ") is not healthy: without {name}, {}/etcd would have 1 of 3 voters healthy, quorum 2. Repair {dead}, then retry: ",
            etcd.namespace
        );
        assert!(!output.success, "{}", output.stderr);
        for text in [&denied, &numbers] {
            assert!(output.stderr.contains(text), "{}", output.stderr);
        }
    }
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE denied QuorumAtRisk"]);

    // In one run, kubectl waited without an end although the successor of this pod served.
    let output = etcd.kubectl(&["delete", "pod", &dead, "--wait=false"]).await;
    assert!(output.success, "{}", output.stderr);
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE allowed MemberNotServing"]);
    etcd.wait_until_replaced(&dead, &uid).await;
}

#[tokio::test]
async fn denies_healthy_pods_with_frozen_follower() {
    let mut etcd = GuardedCluster::start().await;
    let [frozen, healthy] = etcd.followers().await;
    etcd.apply(&frozen, ProcessAction::Pause).await;

    let denial = etcd.delete(&healthy).await.unwrap_err();
    let text = format!(
        ") is not healthy: without {healthy}, {}/etcd would have 1 of 3 voters healthy, quorum 2. Repair {frozen}, then retry: ",
        etcd.namespace
    );
    let frozen = format!("QuorumAtRisk: {frozen} (no answer within ");
    assert!(denial.contains(&frozen) && denial.contains(&text), "{denial}");
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE denied QuorumAtRisk"]);
}
