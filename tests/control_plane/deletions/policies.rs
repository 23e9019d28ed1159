//! Policies that owners set by annotation with kubectl.

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    wait::wait_until,
};

#[tokio::test]
async fn allows_leader_after_transfer() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let uid = etcd.uid(&leader).await;
    annotate(&etcd, "statefulset/etcd", "etcd-guard.io/leader=transfer").await;
    let dry_run = ["delete", "pod", &leader, "--dry-run=server"];
    wait_until("the policy applies", START_TIMEOUT, async || etcd.kubectl(&dry_run).await.success).await;
    assert_eq!(etcd.leader().await, leader, "a dry run moves nothing");
    etcd.guard.new_verdicts().await;

    let output = etcd.kubectl(&["delete", "pod", &leader, "--wait=false"]).await;
    assert!(output.success, "{output:?}");
    assert!(
        output
            .stderr
            .contains(&format!("Warning: leadership of etcd {}/etcd was moved to etcd-", etcd.namespace))
    );
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE allowed LeaderTransferred"]);
    etcd.wait_until_replaced(&leader, &uid).await;
    assert_ne!(etcd.leader().await, leader);
}

#[tokio::test]
async fn rollout_under_transfer_replaces_every_member() {
    let mut etcd = GuardedCluster::start().await;
    annotate(&etcd, "statefulset/etcd", "etcd-guard.io/leader=transfer").await;
    // A rollout starts with the highest ordinal.
    etcd.make_leader("etcd-2").await;
    let mut uids = Vec::new();
    for name in GuardedCluster::names() {
        uids.push((name, etcd.uid(name).await));
    }
    etcd.guard.new_verdicts().await;
    let output = etcd.kubectl(&["rollout", "restart", "statefulset/etcd"]).await;
    assert!(output.success, "{output:?}");
    let output = etcd.kubectl(&["rollout", "status", "statefulset/etcd", "--timeout=120s"]).await;
    assert!(output.success, "{output:?}");
    for (name, uid) in uids {
        etcd.wait_until_replaced(name, &uid).await;
    }
    let verdicts = etcd.guard.new_verdicts().await;
    assert!(verdicts.contains(&String::from("DELETE allowed LeaderTransferred")), "{verdicts:?}");
    assert!(!verdicts.iter().any(|verdict| verdict.contains("denied")), "{verdicts:?}");
}

#[tokio::test]
async fn warns_in_audit_mode() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let namespace = format!("namespace/{}", etcd.namespace);
    annotate(&etcd, &namespace, "etcd-guard.io/mode=audit").await;
    let dry_run = ["delete", "pod", &leader, "--dry-run=server"];
    wait_until("the policy applies", START_TIMEOUT, async || etcd.kubectl(&dry_run).await.success).await;
    etcd.guard.new_verdicts().await;
    let output = etcd.kubectl(&["delete", "pod", &leader, "--wait=false"]).await;
    assert!(
        output.success && output.stderr.contains("Warning: would be denied: LeaderProtected: "),
        "{output:?}"
    );
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE audited LeaderProtected"]);
}

#[tokio::test]
async fn break_glass_overrules_denial() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let pod = format!("pod/{leader}");
    let end = k8s_openapi::jiff::Timestamp::now() + k8s_openapi::jiff::SignedDuration::from_mins(10);
    annotate(&etcd, &pod, &format!("etcd-guard.io/allow-delete-until={end}")).await;
    let output = etcd.kubectl(&["delete", "pod", &leader, "--dry-run=server"]).await;
    assert!(!output.success, "{output:?}");
    assert!(output.stderr.contains("has no effect without etcd-guard.io/allow-delete-reason"), "{output:?}");

    annotate(&etcd, &pod, "etcd-guard.io/allow-delete-reason=restore from backup").await;
    etcd.guard.new_verdicts().await;
    let output = etcd.kubectl(&["delete", "pod", &leader, "--wait=false"]).await;
    assert!(output.success, "{output:?}");
    let warning = "Warning: break-glass overrules LeaderProtected: restore from backup";
    assert!(output.stderr.contains(warning), "{output:?}");
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE allowed BreakGlass"]);
}

async fn annotate(etcd: &GuardedCluster, object: &str, annotation: &str) {
    let output = etcd.kubectl(&["annotate", object, annotation]).await;
    assert!(output.success, "{output:?}");
}
