//! Deletions that nobody types: the StatefulSet controller's.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::{
    guarded_cluster::{GuardedCluster, START_LIMIT},
    wait::until,
};

const CONTROLLER: &str = "system:serviceaccount:kube-system:statefulset-controller";

/// The controller waits ever longer between its tries; a change to the set wakes it.
const ROLLOUT_LIMIT: &str = "--timeout=90s";

/// Edge case 30.
#[tokio::test]
async fn a_rollout_stops_at_the_leader_and_goes_on_once_leadership_has_moved() {
    let mut etcd = GuardedCluster::start().await;
    etcd.let_lead("etcd-1").await;
    let leader_uid = etcd.uid("etcd-1").await;
    let first_uid = etcd.uid("etcd-2").await;

    let said = etcd.kubectl(&["rollout", "restart", "statefulset/etcd"]).await;
    assert!(said.success, "{}", said.stderr);
    etcd.wait_until_back("etcd-2", &first_uid).await;
    until("the denial is an event of the set", START_LIMIT, async || {
        let said = etcd.kubectl(&["get", "events", "--field-selector=reason=FailedDelete"]).await;
        said.stdout.contains("delete Pod etcd-1 in StatefulSet etcd failed error: admission webhook")
            && said.stdout.contains("pod etcd-1 is the leader of etcd cluster")
    })
    .await;
    assert_eq!(etcd.uid("etcd-1").await, leader_uid);
    let news = etcd.guard.news().await;
    assert!(news.contains(&String::from("DELETE allowed SafeToDelete")), "{news:?}");
    assert!(news.contains(&String::from("DELETE denied LeaderProtected")), "{news:?}");

    etcd.let_lead("etcd-2").await;
    until("no denial is remembered", START_LIMIT, async || {
        etcd.kubectl(&["delete", "pod", "etcd-1", "--dry-run=server"]).await.success
    })
    .await;
    etcd.kubectl(&["annotate", "statefulset/etcd", "leadership=moved"]).await;
    let said = etcd.kubectl(&["rollout", "status", "statefulset/etcd", ROLLOUT_LIMIT]).await;
    assert!(said.success, "{} {}", said.stdout, said.stderr);
    etcd.wait_until_whole().await;
}

#[tokio::test]
async fn a_scale_down_stops_at_the_leader_and_takes_it_once_leadership_has_moved() {
    let etcd = GuardedCluster::start().await;
    etcd.let_lead("etcd-2").await;
    let said = etcd.kubectl(&["scale", "statefulset/etcd", "--replicas=2"]).await;
    assert!(said.success && said.stderr.contains("stays a voter of etcd"), "{said:?}");
    let line = etcd.guard.told(CONTROLLER, "denied", "LeaderProtected").await;
    assert_eq!(line["pod"], "etcd-2");

    etcd.let_lead("etcd-0").await;
    until("the controller has tried again", START_LIMIT, async || {
        // A change to the set wakes it.
        etcd.kubectl(&["annotate", "--overwrite", "statefulset/etcd", &format!("tried={}", tried())]).await;
        etcd.pods.get_opt("etcd-2").await.is_ok_and(|pod| pod.is_none())
    })
    .await;
    etcd.guard.told(CONTROLLER, "allowed", "SafeToDelete").await;

    // Its member is still listed: the two that are left are all that the quorum needs.
    let denial = etcd.delete("etcd-1").await.unwrap_err();
    assert!(denial.contains("would have 1 of 3 voters healthy, quorum 2"), "{denial}");
}

/// Another value each time.
fn tried() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
