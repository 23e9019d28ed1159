//! Deletions by the StatefulSet controller.

use std::sync::atomic::{AtomicU32, Ordering};

use test_support::{
    guarded_cluster::{GuardedCluster, LEADER_DENY, START_TIMEOUT, Setup},
    wait::wait_until,
};

const CONTROLLER: &str = "system:serviceaccount:kube-system:statefulset-controller";

/// The controller waits longer after each attempt; a change of the set triggers the next attempt.
const ROLLOUT_LIMIT: &str = "--timeout=90s";

/// `maxUnavailable: 2` makes the controller delete two pods at once, which the guard lets go one after the other. Before 1.37, the
/// API server drops the field by default.
#[tokio::test]
async fn rollout_of_two_pods_at_once_replaces_one_after_the_other() {
    let mut etcd = GuardedCluster::start().await;
    let strategy = r#"{"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 2}}}}"#;
    let output = etcd.kubectl(&["patch", "statefulset/etcd", "-p", strategy]).await;
    assert!(output.success, "{output:?}");
    let field = "jsonpath={.spec.updateStrategy.rollingUpdate.maxUnavailable}";
    let kept = etcd.kubectl(&["get", "statefulset/etcd", "-o", field]).await.stdout;
    if kept.is_empty() {
        let minor = etcd.kubernetes_minor().await;
        assert!(minor < 37, "Kubernetes 1.{minor} drops maxUnavailable");
        println!("Kubernetes 1.{minor} drops maxUnavailable: nothing to test");
        return;
    }
    assert_eq!(kept, "2");
    etcd.make_leader("etcd-0").await;
    let mut uids = Vec::new();
    for name in GuardedCluster::names() {
        uids.push((name, etcd.uid(name).await));
    }
    let output = etcd.kubectl(&["rollout", "restart", "statefulset/etcd"]).await;
    assert!(output.success, "{output:?}");
    for (name, uid) in uids.iter().rev() {
        etcd.wait_until_replaced(name, uid).await;
    }
    let verdicts = etcd.guard.new_verdicts().await;
    assert!(verdicts.contains(&String::from("DELETE denied DisruptionInProgress")), "{verdicts:?}");
}

#[tokio::test]
async fn rollout_continues_after_leadership_moves() {
    let mut etcd = GuardedCluster::start_as(Setup { config: LEADER_DENY, ..Setup::default() }).await;
    etcd.make_leader("etcd-1").await;
    let leader_uid = etcd.uid("etcd-1").await;
    let first_uid = etcd.uid("etcd-2").await;

    let output = etcd.kubectl(&["rollout", "restart", "statefulset/etcd"]).await;
    assert!(output.success, "{}", output.stderr);
    etcd.wait_until_replaced("etcd-2", &first_uid).await;
    wait_until("the denial is an event of the set", START_TIMEOUT, async || {
        let output = etcd.kubectl(&["get", "events", "--field-selector=reason=FailedDelete"]).await;
        output.stdout.contains(" Pod etcd-1 in StatefulSet etcd failed error: admission webhook")
            && output.stdout.contains("LeaderProtected: etcd-1 leads ")
    })
    .await;
    assert_eq!(etcd.uid("etcd-1").await, leader_uid);
    let verdicts = etcd.guard.new_verdicts().await;
    assert!(verdicts.contains(&String::from("DELETE allowed SafeToDelete")), "{verdicts:?}");
    assert!(verdicts.contains(&String::from("DELETE denied LeaderProtected")), "{verdicts:?}");

    etcd.make_leader("etcd-2").await;
    wait_until("no cached denial applies", START_TIMEOUT, async || {
        etcd.kubectl(&["delete", "pod", "etcd-1", "--dry-run=server"]).await.success
    })
    .await;
    etcd.kubectl(&["annotate", "statefulset/etcd", "leadership=moved"]).await;
    let output = etcd.kubectl(&["rollout", "status", "statefulset/etcd", ROLLOUT_LIMIT]).await;
    assert!(output.success, "{} {}", output.stdout, output.stderr);
    etcd.wait_until_healthy().await;
}

#[tokio::test]
async fn scale_down_continues_after_leadership_moves() {
    let etcd = GuardedCluster::start_as(Setup { config: LEADER_DENY, ..Setup::default() }).await;
    etcd.make_leader("etcd-2").await;
    let output = etcd.kubectl(&["scale", "statefulset/etcd", "--replicas=2"]).await;
    assert!(output.success && output.stderr.contains("remains a voter of etcd"), "{output:?}");
    let line = etcd.guard.wait_for_verdict(CONTROLLER, "denied", "LeaderProtected").await;
    assert_eq!(line["pod"], "etcd-2");

    etcd.make_leader("etcd-0").await;
    wait_until("the controller has tried again", START_TIMEOUT, async || {
        // A change of the set triggers the next attempt.
        etcd.kubectl(&["annotate", "--overwrite", "statefulset/etcd", &format!("attempt={}", attempt())])
            .await;
        etcd.pods.get_opt("etcd-2").await.is_ok_and(|pod| pod.is_none())
    })
    .await;
    etcd.guard.wait_for_verdict(CONTROLLER, "allowed", "SafeToDelete").await;

    // The deleted pod's member is still in the list, so the quorum needs both other members.
    let denial = etcd.delete("etcd-1").await.unwrap_err();
    assert!(denial.contains("would have 1 of 3 voters healthy, quorum 2"), "{denial}");
}

/// Returns a new value each time.
fn attempt() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
