//! What owners of a cluster choose by annotation, as they write it with kubectl.

use crate::support::{
    guarded_cluster::{GuardedCluster, START_LIMIT},
    wait::until,
};

#[tokio::test]
async fn under_transfer_the_leaders_pod_goes_once_another_member_leads() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let uid = etcd.uid(&leader).await;
    annotate(&etcd, "statefulset/etcd", "etcd-guard.io/leader=transfer").await;
    let dry_run = ["delete", "pod", &leader, "--dry-run=server"];
    until("the policy is in force", START_LIMIT, async || etcd.kubectl(&dry_run).await.success).await;
    assert_eq!(etcd.leader().await, leader, "a dry run moves nothing");
    etcd.guard.news().await;

    let said = etcd.kubectl(&["delete", "pod", &leader, "--wait=false"]).await;
    assert!(said.success, "{said:?}");
    assert!(
        said.stderr
            .contains(&format!("Warning: leadership of etcd {}/etcd was moved to etcd-", etcd.namespace))
    );
    assert_eq!(etcd.guard.news().await, ["DELETE allowed LeaderTransferred"]);
    etcd.wait_until_back(&leader, &uid).await;
    assert_ne!(etcd.leader().await, leader);
}

#[tokio::test]
async fn a_rollout_under_transfer_replaces_every_member_and_never_the_leader() {
    let mut etcd = GuardedCluster::start().await;
    annotate(&etcd, "statefulset/etcd", "etcd-guard.io/leader=transfer").await;
    // A rollout begins with the highest ordinal.
    etcd.let_lead("etcd-2").await;
    let mut uids = Vec::new();
    for name in GuardedCluster::names() {
        uids.push((name, etcd.uid(name).await));
    }
    etcd.guard.news().await;
    let said = etcd.kubectl(&["rollout", "restart", "statefulset/etcd"]).await;
    assert!(said.success, "{said:?}");
    let said = etcd.kubectl(&["rollout", "status", "statefulset/etcd", "--timeout=120s"]).await;
    assert!(said.success, "{said:?}");
    for (name, uid) in uids {
        etcd.wait_until_back(name, &uid).await;
    }
    let news = etcd.guard.news().await;
    assert!(news.contains(&String::from("DELETE allowed LeaderTransferred")), "{news:?}");
    assert!(!news.iter().any(|it| it.contains("denied")), "{news:?}");
}

#[tokio::test]
async fn in_audit_mode_a_denial_is_a_warning() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let namespace = format!("namespace/{}", etcd.namespace);
    annotate(&etcd, &namespace, "etcd-guard.io/mode=audit").await;
    let dry_run = ["delete", "pod", &leader, "--dry-run=server"];
    until("the policy is in force", START_LIMIT, async || etcd.kubectl(&dry_run).await.success).await;
    etcd.guard.news().await;
    let said = etcd.kubectl(&["delete", "pod", &leader, "--wait=false"]).await;
    assert!(
        said.success && said.stderr.contains("Warning: would be denied [LeaderProtected]: pod "),
        "{said:?}"
    );
    assert_eq!(etcd.guard.news().await, ["DELETE audited LeaderProtected"]);
}

#[tokio::test]
async fn a_break_glass_overrules_a_denial_until_it_ends() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let pod = format!("pod/{leader}");
    let end = k8s_openapi::jiff::Timestamp::now() + k8s_openapi::jiff::SignedDuration::from_mins(10);
    annotate(&etcd, &pod, &format!("etcd-guard.io/allow-delete-until={end}")).await;
    let said = etcd.kubectl(&["delete", "pod", &leader, "--dry-run=server"]).await;
    assert!(!said.success, "{said:?}");
    assert!(said.stderr.contains("is not followed without etcd-guard.io/allow-delete-reason"), "{said:?}");

    annotate(&etcd, &pod, "etcd-guard.io/allow-delete-reason=a test of the emergency exit").await;
    etcd.guard.news().await;
    let said = etcd.kubectl(&["delete", "pod", &leader, "--wait=false"]).await;
    assert!(said.success, "{said:?}");
    let warning = "Warning: break-glass overrules LeaderProtected: a test of the emergency exit";
    assert!(said.stderr.contains(warning), "{said:?}");
    assert_eq!(etcd.guard.news().await, ["DELETE allowed BreakGlass"]);
}

async fn annotate(etcd: &GuardedCluster, object: &str, annotation: &str) {
    let said = etcd.kubectl(&["annotate", object, annotation]).await;
    assert!(said.success, "{said:?}");
}
