//! A yes is a permission and no fact: a budget or another webhook may refuse afterwards, and nobody tells the guard. Its
//! reservation stays for a minute; it holds up the others, and never the pod that it is for.

use std::time::Duration;

use crate::support::{
    guarded_cluster::{GuardedCluster, START_LIMIT},
    wait::{some, until},
};

/// A reservation lives for a minute; the rest is for a slow machine.
const EXPIRY_LIMIT: Duration = Duration::from_secs(150);

#[tokio::test]
async fn a_budget_that_refuses_after_a_yes_holds_others_up_until_the_reservation_expires() {
    let mut etcd = GuardedCluster::start().await;
    let [one, other] = etcd.followers().await;
    let uid = etcd.uid(&one).await;
    let none = r#"{"spec":{"maxUnavailable":0}}"#;
    let said = etcd.kubectl(&["patch", "poddisruptionbudget", "etcd", "--type=merge", "-p", none]).await;
    assert!(said.success, "{said:?}");

    // Until the budget's controller has seen the change, the API refuses in other words.
    some("the budget refuses", START_LIMIT, async || {
        let refusal = etcd.evict(&one, None).await.expect_err("the budget allows nothing");
        refusal.message.contains("would violate the pod's disruption budget").then_some(())
    })
    .await;
    assert_eq!(etcd.guard.news().await, ["CREATE allowed SafeToDelete"], "a later try is allowed as well");

    let denial = etcd.delete(&other).await.unwrap_err();
    assert!(denial.contains(&format!("{one} is on the way out")), "{denial}");
    until("the reservation expires", EXPIRY_LIMIT, async || etcd.delete(&other).await.is_ok()).await;
    let pod = etcd.pods.get(&one).await.unwrap();
    assert_eq!((pod.metadata.uid.unwrap(), pod.metadata.deletion_timestamp), (uid, None));
}

#[tokio::test]
async fn another_webhook_that_refuses_after_a_yes_does_not_hold_up_the_same_pod() {
    let mut etcd = GuardedCluster::start().await;
    let [one, other] = etcd.followers().await;
    let uid = etcd.uid(&one).await;
    let refusing = etcd.refuse_deletions().await;
    etcd.guard.news().await;

    let refusal = etcd.delete(&one).await.unwrap_err();
    assert!(refusal.contains("failed calling webhook \"other.test.io\""), "{refusal}");
    assert_eq!(etcd.guard.news().await, ["DELETE allowed SafeToDelete"]);
    etcd.delete(&other).await.unwrap_err();
    assert_eq!(etcd.guard.news().await, ["DELETE denied DisruptionInProgress"]);

    let said = etcd.kubectl(&["delete", "validatingwebhookconfiguration", &refusing]).await;
    assert!(said.success, "{said:?}");
    until("the other webhook is gone", START_LIMIT, async || etcd.delete(&one).await.is_ok()).await;
    assert_eq!(etcd.guard.news().await, ["DELETE allowed SafeToDelete"]);
    etcd.wait_until_back(&one, &uid).await;
}
