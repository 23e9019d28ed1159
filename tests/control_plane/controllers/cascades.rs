//! Deletions that follow from an approved deletion are allowed.

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    wait::wait_until,
};

#[tokio::test]
async fn allows_deletion_of_namespace_under_break_glass() {
    let mut etcd = GuardedCluster::start().await;
    etcd.break_glass(&format!("namespace/{}", etcd.namespace)).await;
    let delete = ["delete", "namespace", &etcd.namespace, "--wait=false"];
    wait_until("the break-glass applies", START_TIMEOUT, async || {
        etcd.kubectl_everywhere().run(&delete).await.success
    })
    .await;
    wait_until("all pods are deleted", START_TIMEOUT, async || {
        etcd.pods.list(&kube::api::ListParams::default()).await.is_ok_and(|pods| pods.items.is_empty())
    })
    .await;
    let controller = "system:serviceaccount:kube-system:namespace-controller";
    etcd.guard.wait_for_verdict(controller, "allowed", "NamespaceTerminating").await;
    let verdicts = etcd.guard.new_verdicts().await;
    assert!(
        !verdicts.iter().any(|verdict| verdict.starts_with("DELETE denied") && !verdict.contains("Intent")),
        "{verdicts:?}"
    );
}
