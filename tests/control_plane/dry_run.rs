//! A dry run gets the true answer, and leaves no trace.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;

use crate::support::guarded_cluster::GuardedCluster;

#[tokio::test]
async fn a_dry_run_tells_what_a_deletion_would_get_and_reserves_nothing() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [one, other] = etcd.followers().await;
    let uid = etcd.uid(&one).await;

    let said = etcd.kubectl(&["delete", "pod", &leader, "--dry-run=server"]).await;
    assert!(!said.success, "{said:?}");
    assert!(said.stderr.contains(&format!("pod {leader} is the leader of etcd cluster")), "{}", said.stderr);
    assert_eq!(etcd.guard.news().await, ["DELETE denied LeaderProtected"]);

    let said = etcd.kubectl(&["delete", "pod", &one, "--dry-run=server"]).await;
    assert!(said.success, "{}", said.stderr);
    assert!(said.stdout.contains("(server dry run)"), "{}", said.stdout);
    assert_eq!(etcd.guard.news().await, ["DELETE allowed SafeToDelete"]);

    let said = etcd.kubectl(&["delete", "pod", &other, "--wait=false"]).await;
    assert!(said.success, "the dry run reserved {one}: {}", said.stderr);
    assert_eq!(etcd.guard.news().await, ["DELETE allowed SafeToDelete"]);
    assert_eq!(etcd.uid(&one).await, uid);
}

#[tokio::test]
async fn a_forced_dry_run_reserves_nothing() {
    let mut etcd = GuardedCluster::start().await;
    let [one, other] = etcd.followers().await;

    let said =
        etcd.kubectl(&["delete", "pod", &one, "--dry-run=server", "--force", "--grace-period=0"]).await;
    assert!(said.success, "{}", said.stderr);
    assert_eq!(etcd.guard.news().await, ["DELETE allowed SafeToDelete"]);
    let said = etcd.kubectl(&["delete", "pod", &other, "--wait=false"]).await;
    assert!(said.success, "the dry run reserved {one}: {}", said.stderr);
    assert_eq!(etcd.guard.news().await, ["DELETE allowed SafeToDelete"]);
}

/// Edge case 20: such an eviction says so only in its `deleteOptions`: the apiserver tells the webhook that this is no dry run.
#[tokio::test]
async fn a_dry_run_of_an_eviction_reserves_nothing() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [one, other] = etcd.followers().await;
    let uid = etcd.uid(&one).await;
    let dry_run =
        || Some(DeleteOptions { dry_run: Some(vec![String::from("All")]), ..DeleteOptions::default() });

    let denial = etcd.evict(&leader, dry_run()).await.unwrap_err();
    assert!(denial.message.contains(&format!("pod {leader} is the leader of etcd cluster")), "{denial:?}");
    assert_eq!(etcd.guard.news().await, ["CREATE denied LeaderProtected"]);

    etcd.evict(&one, dry_run()).await.unwrap();
    assert_eq!(etcd.guard.news().await, ["CREATE allowed SafeToDelete"]);
    etcd.evict(&other, None).await.expect("the dry run reserved nothing");
    assert_eq!(etcd.guard.news().await, ["CREATE allowed SafeToDelete"]);
    assert_eq!(etcd.uid(&one).await, uid);
}
