//! No second deletion is approved while one member is terminating or recovering.

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    wait::wait_until,
};

#[tokio::test]
async fn denies_second_deletion_until_first_pod_is_replaced() {
    let mut etcd = GuardedCluster::start().await;
    let [first, second] = etcd.followers().await;
    let uid = etcd.uid(&first).await;

    etcd.delete(&first).await.unwrap();
    let denial = etcd.delete(&second).await.unwrap_err();
    let text =
        format!("without {second}, {}/etcd would have 1 of 3 voters healthy, quorum 2", etcd.namespace);
    assert!(denial.contains(&text) && denial.contains(&first), "{denial}");
    let verdicts = etcd.guard.new_verdicts().await;
    // The reason depends on whether the first member still responds.
    let denials = ["DELETE denied DisruptionInProgress", "DELETE denied QuorumAtRisk"];
    let [denied, allowed] = &verdicts[..] else { panic!("{verdicts:?}") };
    let (allowed, denied) = if denied.contains("allowed") { (denied, allowed) } else { (allowed, denied) };
    assert_eq!(allowed, "DELETE allowed SafeToDelete");
    assert!(denials.contains(&denied.as_str()), "{denied}");

    wait_until("the second deletion passes", START_TIMEOUT, async || etcd.delete(&second).await.is_ok())
        .await;
    assert!(etcd.member(&first).serves().await, "the second deletion passed before {first} served again");
    assert_ne!(etcd.uid(&first).await, uid);
    assert!(etcd.guard.new_verdicts().await.contains(&String::from("DELETE allowed SafeToDelete")));
}
