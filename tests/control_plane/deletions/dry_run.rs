//! A dry run gets the same verdict as the request itself, and has no side effects.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;

use test_support::guarded_cluster::GuardedCluster;

#[tokio::test]
async fn dry_run_of_deletion_reserves_nothing() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [one, other] = etcd.followers().await;
    let uid = etcd.uid(&one).await;

    let output = etcd.kubectl(&["delete", "pod", &leader, "--dry-run=server"]).await;
    assert!(!output.success, "{output:?}");
    assert!(output.stderr.contains(&format!("LeaderProtected: {leader} leads ")), "{}", output.stderr);
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE denied LeaderProtected"]);

    let output = etcd.kubectl(&["delete", "pod", &one, "--dry-run=server"]).await;
    assert!(output.success, "{}", output.stderr);
    assert!(output.stdout.contains("(server dry run)"), "{}", output.stdout);
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE allowed SafeToDelete"]);

    let output = etcd.kubectl(&["delete", "pod", &other, "--wait=false"]).await;
    assert!(output.success, "the dry run reserved {one}: {}", output.stderr);
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE allowed SafeToDelete"]);
    assert_eq!(etcd.uid(&one).await, uid);
}

/// Only the `deleteOptions` of such an eviction contain the dry run; the review itself has `dryRun:
/// false`.
#[tokio::test]
async fn dry_run_of_eviction_reserves_nothing() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [one, other] = etcd.followers().await;
    let uid = etcd.uid(&one).await;
    let dry_run =
        || Some(DeleteOptions { dry_run: Some(vec![String::from("All")]), ..DeleteOptions::default() });

    etcd.wait_until_budgets_allow().await;
    etcd.evict(&leader, dry_run()).await.unwrap();
    assert_eq!(etcd.guard.new_verdicts().await, ["CREATE allowed LeaderTransferred"]);
    assert_eq!(etcd.leader().await, leader, "a dry run moves nothing");

    etcd.evict(&one, dry_run()).await.unwrap();
    assert_eq!(etcd.guard.new_verdicts().await, ["CREATE allowed SafeToDelete"]);
    etcd.evict(&other, None).await.expect("the dry run reserved nothing");
    assert_eq!(etcd.guard.new_verdicts().await, ["CREATE allowed SafeToDelete"]);
    assert_eq!(etcd.uid(&one).await, uid);
}
