//! Policies that owners set by annotation with kubectl.

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    kubernetes::{control_plane::ControlPlane, pods::new_namespace},
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
async fn rollout_replaces_every_member_without_a_person() {
    let mut etcd = GuardedCluster::start().await;
    // A rollout starts with the highest ordinal.
    etcd.make_leader("etcd-2").await;
    let mut uids = Vec::new();
    for name in GuardedCluster::names() {
        uids.push((name, etcd.uid(name).await));
    }
    let (_, term) = etcd.leadership().await;
    let output = etcd.kubectl(&["rollout", "restart", "statefulset/etcd"]).await;
    assert!(output.success, "{output:?}");
    let output = etcd.kubectl(&["rollout", "status", "statefulset/etcd", "--timeout=120s"]).await;
    assert!(output.success, "{output:?}");
    for (name, uid) in uids {
        etcd.wait_until_replaced(name, &uid).await;
    }
    // The second move is to an updated member. Each move increases the term by one.
    let moves = etcd.leadership().await.1 - term;
    assert!((1..=2).contains(&moves), "{moves} moves");
    assert_eq!(etcd.guard.metric("etcd_guard_leader_transfers_total{result=\"moved\"}").await, moves);
    let verdicts = etcd.guard.new_verdicts().await;
    assert!(!verdicts.contains(&String::from("DELETE denied LeaderProtected")), "{verdicts:?}");
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

/// More than 32 guarded namespaces share the watches of the guard. The label of these namespaces is not that of other tests,
/// whose guards would share their watches as well.
#[tokio::test]
async fn policies_apply_with_many_guarded_namespaces() {
    let label = "example.com/many=yes";
    let etcd = GuardedCluster::start_as(Setup { opt_in_label: label, ..Setup::default() }).await;
    let client = ControlPlane::shared().client().await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let labels = Patch::Merge(json!({"metadata": {"labels": {"example.com/many": "yes"}}}));
    for _ in 0..33 {
        let namespace = new_namespace(&client, false).await;
        namespaces.patch_metadata(&namespace, &PatchParams::default(), &labels).await.unwrap();
    }
    wait_until("the namespaces share a watch", START_TIMEOUT, async || {
        etcd.guard.count_values("resource", "statefulsets") == 1
    })
    .await;
    let leader = etcd.leader().await;
    let dry_run = ["delete", "pod", &leader, "--dry-run=server"];
    let is_denied = async || etcd.kubectl(&dry_run).await.stderr.contains("LeaderProtected");
    wait_until("the leader is protected", START_TIMEOUT, &is_denied).await;
    annotate(&etcd, "statefulset/etcd", "etcd-guard.io/leader=transfer").await;
    wait_until("the policy applies", START_TIMEOUT, async || etcd.kubectl(&dry_run).await.success).await;
    annotate(&etcd, "statefulset/etcd", "etcd-guard.io/leader-").await;
    wait_until("the policy is revoked", START_TIMEOUT, &is_denied).await;

    let [follower, _] = etcd.followers().await;
    let uid = etcd.uid(&follower).await;
    let output = etcd.kubectl(&["delete", "pod", &follower, "--wait=false"]).await;
    assert!(output.success, "{output:?}");
    etcd.wait_until_replaced(&follower, &uid).await;
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
