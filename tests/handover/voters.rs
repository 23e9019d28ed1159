//! The smallest number of voters with which a deletion may cost a voter.

use test_support::{
    guard::process::ALL_NETWORKS,
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    wait::wait_until,
};

use crate::cluster::{Turn, annotate};

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

/// Replaces the policies in the configuration file of the guard.
fn configure(etcd: &GuardedCluster, policies: &str) {
    std::fs::write(etcd.guard.config_file(), ALL_NETWORKS.to_owned() + policies).unwrap();
}

/// Waits until the verdict on the deletion of this pod contains this text.
async fn wait_for_verdict(etcd: &GuardedCluster, pod: &str, text: &str) {
    wait_until(&format!("the verdict contains: {text}"), START_TIMEOUT, async || {
        let output = etcd.kubectl(&["delete", "pod", pod, "--dry-run=server"]).await;
        format!("{}{}", output.stdout, output.stderr).contains(text)
    })
    .await;
}

#[tokio::test]
async fn configuration_sets_the_smallest_number_of_voters() {
    let _turn = Turn::start().await;
    let config = ALL_NETWORKS.to_owned() + "  defaults:\n    minVoters: 4\n";
    let etcd = GuardedCluster::start_as(Setup { config: &config, ..Setup::default() }).await;
    let [follower, _] = etcd.followers().await;
    wait_for_verdict(&etcd, &follower, "has 3 voters, fewer than the 4 that ").await;

    // An annotation overrules the default, but not the floor.
    annotate(&etcd, "statefulset/etcd", "etcd-guard.io/min-voters=3").await;
    wait_for_verdict(&etcd, &follower, "(server dry run)").await;
    configure(&etcd, "  floor:\n    minVoters: 5\n  defaults:\n    minVoters: 5\n");
    wait_for_verdict(&etcd, &follower, "has 3 voters, fewer than the 5 that ").await;
    let warning = "etcd-guard.io/min-voters=3 is below the floor of the configuration: 5 applies";
    wait_for_verdict(&etcd, &follower, warning).await;

    configure(&etcd, "  floor:\n    minVoters: 3\n  defaults:\n    minVoters: 3\n");
    let uid = etcd.uid(&follower).await;
    wait_until("three voters suffice", START_TIMEOUT, async || etcd.delete(&follower).await.is_ok()).await;
    etcd.wait_until_replaced(&follower, &uid).await;
}
