//! While one member is on its way out or back, no other may go.

use std::collections::BTreeSet;

use futures::future::join_all;

use crate::support::{
    guarded_cluster::{GuardedCluster, START_LIMIT},
    process_node::Order,
    wait::{some, until},
};

#[tokio::test]
async fn a_second_deletion_is_denied_while_the_first_pod_terminates_and_passes_once_it_is_back() {
    let mut etcd = GuardedCluster::start().await;
    let [first, second] = etcd.followers().await;
    let uid = etcd.uid(&first).await;

    etcd.delete(&first).await.unwrap();
    let denial = etcd.delete(&second).await.unwrap_err();
    let text = format!(
        "without pod {second} etcd cluster {}/etcd would have 1 of 3 voters healthy, quorum 2",
        etcd.namespace
    );
    assert!(denial.contains(&text) && denial.contains(&first), "{denial}");
    let news = etcd.guard.news().await;
    // Which one depends on whether the first member still answers.
    let denials = ["DELETE denied DisruptionInProgress", "DELETE denied QuorumAtRisk"];
    let [denied, allowed] = &news[..] else { panic!("{news:?}") };
    let (allowed, denied) = if denied.contains("allowed") { (denied, allowed) } else { (allowed, denied) };
    assert_eq!(allowed, "DELETE allowed SafeToDelete");
    assert!(denials.contains(&denied.as_str()), "{denied}");

    until("the second deletion passes", START_LIMIT, async || etcd.delete(&second).await.is_ok()).await;
    assert!(etcd.member(&first).serves().await, "the second deletion passed before {first} served again");
    assert_ne!(etcd.uid(&first).await, uid);
    assert!(etcd.guard.news().await.contains(&String::from("DELETE allowed SafeToDelete")));
}

#[tokio::test]
async fn a_second_deletion_is_denied_while_the_first_pod_terminates_and_still_serves() {
    let mut etcd = GuardedCluster::start().await;
    let [first, second] = etcd.followers().await;

    // Nothing stops the process yet: what is asked now finds three healthy members.
    etcd.order(&first, Order::Isolate).await;
    etcd.delete(&first).await.unwrap();
    assert!(etcd.member(&first).serves().await);
    let denial = etcd.delete(&second).await.unwrap_err();
    let text = format!("would have 1 of 3 voters healthy, quorum 2: {first} is on the way out");
    assert!(denial.contains(&text), "{denial}");
    assert_eq!(
        etcd.guard.news().await,
        ["DELETE allowed SafeToDelete", "DELETE denied DisruptionInProgress"]
    );
}

#[tokio::test]
async fn a_pod_that_is_back_but_does_not_serve_yet_still_blocks_the_others() {
    let mut etcd = GuardedCluster::start().await;
    let [first, second] = etcd.followers().await;
    let uid = etcd.uid(&first).await;
    etcd.delete(&first).await.unwrap();
    etcd.wait_until_back(&first, &uid).await;

    etcd.order(&first, Order::Pause).await;
    let denial = etcd.delete(&second).await.unwrap_err();
    assert!(denial.contains(&format!("not healthy: {first} (no answer within")), "{denial}");

    etcd.order(&first, Order::Resume).await;
    until("the second deletion passes", START_LIMIT, async || etcd.delete(&second).await.is_ok()).await;
    assert_eq!(etcd.guard.news().await, ["DELETE allowed SafeToDelete", "DELETE denied QuorumAtRisk"]);
}

#[tokio::test]
async fn a_deletion_that_was_allowed_and_has_not_happened_yet_counts() {
    let mut etcd = GuardedCluster::start().await;
    let [first, second] = etcd.followers().await;
    let _slow = etcd.slow_down_deletions().await;
    etcd.guard.news().await;

    let (deleted, denied) = tokio::join!(etcd.delete(&first), async {
        some("the first deletion is allowed", START_LIMIT, async || {
            let counted = etcd.guard.counted().await;
            counted.contains_key("DELETE allowed SafeToDelete").then_some(())
        })
        .await;
        let pod = etcd.pods.get(&first).await.unwrap();
        assert_eq!(pod.metadata.deletion_timestamp, None, "{first} terminates already");
        etcd.delete(&second).await
    });
    deleted.unwrap();
    let denial = denied.unwrap_err();
    assert!(denial.contains(&format!("{first} is on the way out")), "{denial}");
    assert_eq!(
        etcd.guard.news().await,
        ["DELETE allowed SafeToDelete", "DELETE denied DisruptionInProgress"]
    );
}

#[tokio::test]
async fn of_many_deletions_at_the_same_instant_one_pod_goes() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let mut uids = Vec::new();
    for name in GuardedCluster::names() {
        uids.push((name, etcd.uid(name).await));
    }

    let _slow = etcd.slow_down_deletions().await;

    let names = GuardedCluster::names().repeat(6);
    let results = join_all(names.iter().map(async |name| (*name, etcd.delete(name).await))).await;
    let gone: BTreeSet<&str> =
        results.iter().filter(|(_, result)| result.is_ok()).map(|(name, _)| *name).collect();
    assert_eq!(gone.len(), 1, "{results:?}");
    assert!(!gone.contains(leader.as_str()), "{results:?}");
    for (name, uid) in uids.iter().filter(|(name, _)| !gone.contains(name)) {
        let pod = etcd.pods.get(name).await.unwrap();
        assert_eq!((pod.metadata.uid.as_ref(), pod.metadata.deletion_timestamp), (Some(uid), None), "{name}");
        assert!(etcd.member(name).serves().await, "{name}");
    }
    let news = etcd.guard.news().await;
    assert!(news.contains(&String::from("DELETE allowed SafeToDelete")), "{news:?}");
    assert!(news.contains(&String::from("DELETE denied DisruptionInProgress")), "{news:?}");
}
