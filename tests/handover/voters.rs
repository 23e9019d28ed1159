//! The smallest number of voters with which a deletion may cost a voter.

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    wait::wait_until,
};

use crate::cluster::{Turn, annotate};

/// Edge case 156.
#[tokio::test]
async fn denies_deletions_while_the_list_has_too_few_voters() {
    let _turn = Turn::start().await;
    let mut etcd = GuardedCluster::start().await;
    let [follower, _] = etcd.followers().await;
    annotate(&etcd, "statefulset/etcd", "etcd-guard.io/min-voters=5").await;
    wait_until("the deletion is denied for this reason", START_TIMEOUT, async || {
        let output = etcd.kubectl(&["delete", "pod", &follower, "--dry-run=server"]).await;
        output.stderr.contains("TooFewVoters: ")
            && output.stderr.contains("has 3 voters, fewer than the 5 that etcd-guard.io/min-voters requires")
    })
    .await;
    let denial = etcd.evict(&follower, None).await.unwrap_err();
    assert_eq!(denial.code, 429, "an operator may add the missing members: {}", denial.message);

    annotate(&etcd, "statefulset/etcd", "etcd-guard.io/min-voters=3").await;
    let uid = etcd.uid(&follower).await;
    wait_until("three voters suffice", START_TIMEOUT, async || etcd.delete(&follower).await.is_ok()).await;
    assert!(etcd.guard.new_verdicts().await.contains(&String::from("DELETE allowed SafeToDelete")));
    etcd.wait_until_replaced(&follower, &uid).await;
}
