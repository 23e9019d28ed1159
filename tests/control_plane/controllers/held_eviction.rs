//! Evictions that another webhook holds after the guard has approved them, while the pod is replaced. The API server reads
//! the pod of an eviction by its name, and only after the reviews.

use futures::future::{Either, select};

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT, UNRELATED_POD},
    kubernetes::webhook,
    process_node::ProcessAction,
    wait::wait_until,
};

/// The metric of the webhook that adds uids to evictions.
const UID_REVIEWS: &str = r#"etcd_guard_admission_requests_total{webhook="uid.guard.etcd-guard.io""#;

/// The number of attempts on a machine that needs longer to replace a pod than a webhook can hold a request.
const MAX_ATTEMPTS: usize = 5;

/// Performs an operation while a request is held. Returns `None` if the request has ended before the operation.
async fn while_held<H, O>(held: H, operation: O) -> Option<(H, O::Output)>
where
    H: Future + Unpin,
    O: Future,
{
    match select(held, Box::pin(operation)).await {
        Either::Left(_) => None,
        Either::Right((output, held)) => Some((held, output)),
    }
}

/// Waits until an eviction is reviewed by the webhook that adds uids, or until none is.
async fn wait_for_uid_webhook(etcd: &GuardedCluster, is_called: bool) {
    wait_until("the API server knows the webhook", START_TIMEOUT, async || {
        let before = etcd.guard.sum(UID_REVIEWS).await;
        etcd.evict_in_dry_run(UNRELATED_POD).await
            && (etcd.guard.sum(UID_REVIEWS).await > before) == is_called
    })
    .await;
}

#[tokio::test]
async fn held_eviction_does_not_remove_the_successor() {
    let etcd = GuardedCluster::start().await;
    let holder = etcd.add_holder_of_evictions().await;
    wait_for_uid_webhook(&etcd, true).await;
    // It would deny the eviction while the other member is replaced.
    let output = etcd.kubectl(&["delete", "poddisruptionbudget", "etcd"]).await;
    assert!(output.success, "{output:?}");
    for _ in 0..MAX_ATTEMPTS {
        let [one, other] = etcd.followers().await;
        let uid = etcd.uid(&one).await;
        let requests = holder.count();
        holder.hold_next();
        let replace = async {
            wait_until("the eviction is held", START_TIMEOUT, async || holder.count() > requests).await;
            etcd.delete(&one).await.unwrap();
            etcd.wait_until_replaced(&one, &uid).await;
            let successor = etcd.uid(&one).await;
            wait_until("another member may go", START_TIMEOUT, async || etcd.delete(&other).await.is_ok())
                .await;
            successor
        };
        let held = while_held(Box::pin(etcd.evict(&one, None)), replace).await;
        holder.release();
        if let Some((eviction, successor)) = held {
            let conflict = eviction.await.expect_err("the eviction names the uid of a pod that is gone");
            assert_eq!(conflict.code, 409, "{}", conflict.message);
            assert_eq!(etcd.uid(&one).await, successor);
            return;
        }
        etcd.wait_until_healthy().await;
    }
    panic!("no eviction was held until its pod was replaced");
}

#[tokio::test]
async fn held_eviction_without_uid_keeps_the_name_reserved() {
    let mut etcd = GuardedCluster::start().await;
    webhook::unregister_uids(&etcd.client, &etcd.namespace).await;
    wait_for_uid_webhook(&etcd, false).await;
    let holder = etcd.add_holder_of_evictions().await;
    for _ in 0..MAX_ATTEMPTS {
        let [one, other] = etcd.followers().await;
        let uid = etcd.uid(&one).await;
        etcd.guard.new_verdicts().await;
        let approvals = async || {
            let counted = etcd.guard.verdict_counts().await;
            counted.get("CREATE allowed AlreadyTerminating").copied().unwrap_or_default()
        };
        let approved = approvals().await;

        // The pod is terminating when the eviction is reviewed.
        etcd.apply(&one, ProcessAction::Isolate).await;
        etcd.delete(&one).await.unwrap();
        holder.hold_next();
        let replace = async {
            wait_until("the eviction is approved", START_TIMEOUT, async || approvals().await > approved)
                .await;
            etcd.apply(&one, ProcessAction::Rejoin).await;
            etcd.wait_until_replaced(&one, &uid).await;
            etcd.delete(&other).await.expect_err("the eviction can still remove the successor")
        };
        let denial = match while_held(Box::pin(etcd.evict(&one, None)), replace).await {
            Some((eviction, denial)) => {
                holder.release();
                eviction.await.unwrap();
                Some(denial)
            }
            None => None,
        };
        if let Some(denial) = denial {
            assert!(denial.contains(&format!("{one} is being deleted")), "{denial}");
            let verdicts = [
                "CREATE allowed AlreadyTerminating",
                "DELETE allowed SafeToDelete",
                "DELETE denied DisruptionInProgress",
            ];
            assert_eq!(etcd.guard.new_verdicts().await, verdicts);
            return;
        }
        holder.release();
        etcd.wait_until_healthy().await;
        etcd.expire_reservations().await;
    }
    panic!("no eviction was held until its pod was replaced");
}

/// The API server deletes only the version of a pod that was reviewed.
#[tokio::test]
async fn held_deletion_is_reviewed_again_if_the_pod_has_changed() {
    let etcd = GuardedCluster::start().await;
    let [one, _] = etcd.followers().await;
    let holder = etcd.add_holder_of_deletions().await;
    let (reviews, requests) = (etcd.guard.request_count().await, holder.count());
    holder.hold_next();

    let change = async {
        wait_until("the deletion is held", START_TIMEOUT, async || holder.count() > requests).await;
        let output = etcd.kubectl(&["annotate", "pod", &one, "example.com/change=1"]).await;
        assert!(output.success, "{output:?}");
        holder.release();
    };
    let (deletion, ()) = tokio::join!(etcd.delete(&one), change);
    deletion.unwrap();
    assert!(
        etcd.guard.request_count().await - reviews > 1,
        "the deletion of another version was not reviewed"
    );
}
