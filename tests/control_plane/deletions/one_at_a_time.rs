//! No second deletion is approved while one member is terminating or recovering.

use std::collections::BTreeSet;

use futures::future::join_all;

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    process_node::ProcessAction,
    wait::{wait_for, wait_until},
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

#[tokio::test]
async fn denies_second_deletion_while_first_pod_still_serves() {
    let mut etcd = GuardedCluster::start().await;
    let [first, second] = etcd.followers().await;

    // The process continues, so a probe finds three healthy members.
    etcd.apply(&first, ProcessAction::Isolate).await;
    etcd.delete(&first).await.unwrap();
    assert!(etcd.member(&first).serves().await);
    let denial = etcd.delete(&second).await.unwrap_err();
    let text = format!("would have 1 of 3 voters healthy, quorum 2: {first} is being deleted");
    assert!(denial.contains(&text), "{denial}");
    assert_eq!(
        etcd.guard.new_verdicts().await,
        ["DELETE allowed SafeToDelete", "DELETE denied DisruptionInProgress"]
    );
}

#[tokio::test]
async fn denies_second_deletion_until_first_member_serves() {
    let mut etcd = GuardedCluster::start().await;
    let [first, second] = etcd.followers().await;
    let uid = etcd.uid(&first).await;
    etcd.delete(&first).await.unwrap();
    etcd.wait_until_replaced(&first, &uid).await;

    etcd.apply(&first, ProcessAction::Pause).await;
    let denial = etcd.delete(&second).await.unwrap_err();
    assert!(denial.contains(&format!("QuorumAtRisk: {first} (no answer within")), "{denial}");

    etcd.apply(&first, ProcessAction::Resume).await;
    wait_until("the second deletion passes", START_TIMEOUT, async || etcd.delete(&second).await.is_ok())
        .await;
    assert_eq!(
        etcd.guard.new_verdicts().await,
        ["DELETE allowed SafeToDelete", "DELETE denied QuorumAtRisk"]
    );
}

#[tokio::test]
async fn counts_approved_deletion_before_it_happens() {
    let mut etcd = GuardedCluster::start().await;
    let [first, second] = etcd.followers().await;
    let _slow = etcd.delay_deletions().await;
    etcd.guard.new_verdicts().await;

    let (deleted, denied) = tokio::join!(etcd.delete(&first), async {
        wait_for("the first deletion is allowed", START_TIMEOUT, async || {
            let counted = etcd.guard.verdict_counts().await;
            counted.contains_key("DELETE allowed SafeToDelete").then_some(())
        })
        .await;
        let pod = etcd.pods.get(&first).await.unwrap();
        assert_eq!(pod.metadata.deletion_timestamp, None, "{first} is terminating already");
        etcd.delete(&second).await
    });
    deleted.unwrap();
    let denial = denied.unwrap_err();
    assert!(denial.contains(&format!("{first} is being deleted")), "{denial}");
    assert_eq!(
        etcd.guard.new_verdicts().await,
        ["DELETE allowed SafeToDelete", "DELETE denied DisruptionInProgress"]
    );
}

#[tokio::test]
async fn approves_one_of_many_concurrent_deletions() {
    let mut etcd = GuardedCluster::start().await;
    let mut uids = Vec::new();
    for name in GuardedCluster::names() {
        uids.push((name, etcd.uid(name).await));
    }

    let _slow = etcd.delay_deletions().await;
    // The leader is read last, because it can change during the preparation.
    let leader = etcd.leader().await;

    let names = GuardedCluster::names().repeat(6);
    let results = join_all(names.iter().map(async |name| (*name, etcd.delete(name).await))).await;
    let deleted: BTreeSet<&str> =
        results.iter().filter(|(_, result)| result.is_ok()).map(|(name, _)| *name).collect();
    assert_eq!(deleted.len(), 1, "{results:?}");
    assert!(!deleted.contains(leader.as_str()), "{results:?}");
    for (name, uid) in uids.iter().filter(|(name, _)| !deleted.contains(name)) {
        let pod = etcd.pods.get(name).await.unwrap();
        assert_eq!((pod.metadata.uid.as_ref(), pod.metadata.deletion_timestamp), (Some(uid), None), "{name}");
        assert!(etcd.member(name).serves().await, "{name}");
    }
    let verdicts = etcd.guard.new_verdicts().await;
    assert!(verdicts.contains(&String::from("DELETE allowed SafeToDelete")), "{verdicts:?}");
    assert!(verdicts.contains(&String::from("DELETE denied DisruptionInProgress")), "{verdicts:?}");
}
