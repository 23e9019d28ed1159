//! Approvals without a deletion: another webhook may deny the request afterwards, and the guard does not learn of it. The reservation remains for a minute. It blocks the deletion of other pods, and never that of its own
//! pod.

use std::time::Duration;

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    wait::wait_until,
};

/// A reservation expires after a minute; the rest is for a slow machine.
const EXPIRY_TIMEOUT: Duration = Duration::from_secs(150);

/// A drain repeats the eviction again and again.
#[tokio::test]
async fn eviction_that_a_budget_refuses_blocks_no_other_pod() {
    let mut etcd = GuardedCluster::start().await;
    let [one, other] = etcd.followers().await;
    let uid = etcd.uid(&one).await;
    let no_disruptions = r#"{"spec":{"maxUnavailable":0}}"#;
    let output =
        etcd.kubectl(&["patch", "poddisruptionbudget", "etcd", "--type=merge", "-p", no_disruptions]).await;
    assert!(output.success, "{output:?}");
    wait_until("the budget's controller has counted the pods", START_TIMEOUT, async || {
        let refusal = etcd.evict(&one, None).await.expect_err("the budget allows nothing");
        assert_eq!(refusal.code, 429, "{}", refusal.message);
        refusal.message.contains("BudgetExhausted: PodDisruptionBudget etcd does not allow the eviction")
    })
    .await;
    etcd.guard.new_verdicts().await;

    for _ in 0..3 {
        etcd.evict(&one, None).await.unwrap_err();
        assert_eq!(etcd.guard.new_verdicts().await, ["CREATE denied BudgetExhausted"]);
    }
    etcd.delete(&other).await.unwrap();
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE allowed SafeToDelete"]);
    let pod = etcd.pods.get(&one).await.unwrap();
    assert_eq!((pod.metadata.uid.unwrap(), pod.metadata.deletion_timestamp), (uid, None));
}

#[tokio::test]
#[ignore = "waits for more than a minute; scripts/prove tests runs it"]
async fn denial_of_other_webhook_blocks_others_until_reservation_expires() {
    let etcd = GuardedCluster::start().await;
    let [one, other] = etcd.followers().await;
    let uid = etcd.uid(&one).await;
    let refusing = etcd.reject_deletions().await;
    etcd.delete(&one).await.unwrap_err();
    let output = etcd.kubectl(&["delete", "validatingwebhookconfiguration", &refusing]).await;
    assert!(output.success, "{output:?}");

    wait_until("the guard alone denies", START_TIMEOUT, async || {
        let denial = etcd.delete(&other).await.unwrap_err();
        denial.contains(&format!("{one} is being deleted"))
    })
    .await;
    wait_until("the reservation expires", EXPIRY_TIMEOUT, async || etcd.delete(&other).await.is_ok()).await;
    let pod = etcd.pods.get(&one).await.unwrap();
    assert_eq!((pod.metadata.uid.unwrap(), pod.metadata.deletion_timestamp), (uid, None));
}

#[tokio::test]
async fn denial_of_other_webhook_does_not_block_same_pod() {
    let mut etcd = GuardedCluster::start().await;
    let [one, other] = etcd.followers().await;
    let uid = etcd.uid(&one).await;
    let refusing = etcd.reject_deletions().await;
    etcd.guard.new_verdicts().await;

    let refusal = etcd.delete(&one).await.unwrap_err();
    assert!(refusal.contains("failed calling webhook \"other.test.io\""), "{refusal}");
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE allowed SafeToDelete"]);
    etcd.delete(&other).await.unwrap_err();
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE denied DisruptionInProgress"]);

    let output = etcd.kubectl(&["delete", "validatingwebhookconfiguration", &refusing]).await;
    assert!(output.success, "{output:?}");
    wait_until("the other webhook is removed", START_TIMEOUT, async || etcd.delete(&one).await.is_ok()).await;
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE allowed SafeToDelete"]);
    etcd.wait_until_replaced(&one, &uid).await;
}
