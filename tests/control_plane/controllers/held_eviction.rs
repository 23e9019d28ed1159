//! Evictions that another webhook holds after the guard has approved them, while the pod is replaced. The API server reads
//! the pod of an eviction by its name, and only after the reviews.

use std::time::Duration;

use tokio::time::sleep;

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    kubernetes::webhook,
    process_node::ProcessAction,
    wait::wait_until,
};

/// Time for which the other webhook holds an eviction: longer than the replacement of a pod takes.
const HOLD_SECONDS: u64 = 20;

/// Time after which the guard has approved an eviction that is still held.
const APPROVAL_TIME: Duration = Duration::from_secs(2);

/// Holds each eviction from now on.
async fn hold_evictions(etcd: &GuardedCluster) -> tokio::net::TcpListener {
    let listener =
        webhook::add_holding_webhook(&etcd.client, &etcd.namespace, &etcd.guard, HOLD_SECONDS).await;
    // The API server reads its configuration by a watch.
    sleep(APPROVAL_TIME).await;
    listener
}

#[tokio::test]
async fn held_eviction_does_not_remove_the_successor() {
    let etcd = GuardedCluster::start().await;
    let [one, other] = etcd.followers().await;
    let uid = etcd.uid(&one).await;
    let _listener = hold_evictions(&etcd).await;

    let replace = async {
        sleep(APPROVAL_TIME).await;
        etcd.delete(&one).await.unwrap();
        etcd.wait_until_replaced(&one, &uid).await;
        let successor = etcd.uid(&one).await;
        wait_until("another member may go", START_TIMEOUT, async || etcd.delete(&other).await.is_ok()).await;
        successor
    };
    let (eviction, successor) = tokio::join!(etcd.evict(&one, None), replace);
    let conflict = eviction.unwrap_err();
    assert_eq!(conflict.code, 409, "{}", conflict.message);
    assert_eq!(etcd.uid(&one).await, successor);
}

#[tokio::test]
async fn held_eviction_without_uid_keeps_the_name_reserved() {
    let mut etcd = GuardedCluster::start().await;
    let [one, other] = etcd.followers().await;
    let uid = etcd.uid(&one).await;
    webhook::unregister_uids(&etcd.client, &etcd.namespace).await;
    let _listener = hold_evictions(&etcd).await;
    etcd.guard.new_verdicts().await;

    // The pod is terminating when the eviction is reviewed.
    etcd.apply(&one, ProcessAction::Isolate).await;
    etcd.delete(&one).await.unwrap();
    let replace = async {
        sleep(APPROVAL_TIME).await;
        etcd.apply(&one, ProcessAction::Rejoin).await;
        etcd.wait_until_replaced(&one, &uid).await;
        etcd.delete(&other).await.unwrap_err()
    };
    let (eviction, denial) = tokio::join!(etcd.evict(&one, None), replace);
    eviction.unwrap();
    assert!(denial.contains(&format!("{one} is being deleted")), "{denial}");
    let verdicts = [
        "CREATE allowed AlreadyTerminating",
        "DELETE allowed SafeToDelete",
        "DELETE denied DisruptionInProgress",
    ];
    assert_eq!(etcd.guard.new_verdicts().await, verdicts);
}

/// The API server deletes only the version of a pod that was reviewed.
#[tokio::test]
async fn held_deletion_is_reviewed_again_if_the_pod_has_changed() {
    let etcd = GuardedCluster::start().await;
    let [one, _] = etcd.followers().await;
    let _listener = etcd.delay_deletions().await;
    let reviews = etcd.guard.request_count().await;

    let change = async {
        sleep(APPROVAL_TIME / 2).await;
        etcd.kubectl(&["annotate", "pod", &one, "example.com/change=1"]).await
    };
    let (deletion, output) = tokio::join!(etcd.delete(&one), change);
    deletion.unwrap();
    assert!(output.success, "{output:?}");
    assert_eq!(etcd.guard.request_count().await - reviews, 2);
}
