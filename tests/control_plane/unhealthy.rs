//! With a member that does not serve, the healthy ones stay, and the broken one may go.

use crate::support::{
    guarded_cluster::{GuardedCluster, START_LIMIT},
    process_node::Order,
    wait::until,
};

#[tokio::test]
async fn with_a_crashed_follower_the_healthy_pods_stay_and_its_own_pod_may_go() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [dead, healthy] = etcd.followers().await;
    let uid = etcd.uid(&dead).await;
    etcd.order(&dead, Order::CrashLoop).await;
    until("kubectl shows that the pod crashes", START_LIMIT, async || {
        etcd.kubectl(&["get", "pod", &dead]).await.stdout.contains("CrashLoopBackOff")
    })
    .await;
    assert!(!etcd.node.running(&etcd.namespace).contains(&dead));

    for name in [&healthy, &leader] {
        let said = etcd.kubectl(&["delete", "pod", name]).await;
        let text = format!(
            "(Forbidden): admission webhook \"guard.etcd-guard.io\" denied the request: without pod {name} etcd cluster \
             {}/etcd would have 1 of 3 voters healthy, quorum 2; not healthy: {dead} (",
            etcd.namespace
        );
        assert!(!said.success && said.stderr.contains(&text), "{}", said.stderr);
    }
    assert_eq!(etcd.guard.news().await, ["DELETE denied QuorumAtRisk"]);

    let said = etcd.kubectl(&["delete", "pod", &dead]).await;
    assert!(said.success, "{}", said.stderr);
    assert_eq!(etcd.guard.news().await, ["DELETE allowed MemberNotServing"]);
    etcd.wait_until_back(&dead, &uid).await;
}

#[tokio::test]
async fn with_a_frozen_follower_the_healthy_pods_stay() {
    let mut etcd = GuardedCluster::start().await;
    let [frozen, healthy] = etcd.followers().await;
    etcd.order(&frozen, Order::Pause).await;

    let denial = etcd.delete(&healthy).await.unwrap_err();
    let text = format!(
        "without pod {healthy} etcd cluster {}/etcd would have 1 of 3 voters healthy, quorum 2; not healthy: {frozen} \
         (no answer within ",
        etcd.namespace
    );
    assert!(denial.contains(&text), "{denial}");
    assert_eq!(etcd.guard.news().await, ["DELETE denied QuorumAtRisk"]);
}
