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

#[tokio::test]
async fn allows_garbage_collection_of_deleted_stateful_set() {
    for cascade in ["--cascade=background", "--cascade=foreground"] {
        let etcd = GuardedCluster::start().await;
        etcd.break_glass("statefulset/etcd").await;
        let delete = ["delete", "statefulset", "etcd", cascade, "--wait=false"];
        wait_until("the break-glass applies", START_TIMEOUT, async || etcd.kubectl(&delete).await.success)
            .await;
        wait_until("all members are deleted", START_TIMEOUT, async || {
            let pods = etcd.pods.list(&kube::api::ListParams::default()).await;
            pods.is_ok_and(|pods| {
                !pods
                    .items
                    .iter()
                    .any(|pod| pod.metadata.name.as_deref().unwrap_or_default().starts_with("etcd-"))
            })
        })
        .await;
        let controller = "system:serviceaccount:kube-system:generic-garbage-collector";
        etcd.guard.wait_for_verdict(controller, "allowed", "OwnerDeleted").await;
    }
}

#[tokio::test]
async fn guards_orphans_of_stateful_set() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let output = etcd.kubectl(&["delete", "statefulset", "etcd", "--cascade=orphan"]).await;
    assert!(output.success, "{output:?}");
    wait_until("the pods have no owner", START_TIMEOUT, async || {
        etcd.pods.get(&leader).await.unwrap().metadata.owner_references.is_none()
    })
    .await;
    let denial = etcd.delete(&leader).await.unwrap_err();
    assert!(denial.contains("LeaderProtected: "), "{denial}");
    assert_eq!(
        etcd.guard.new_verdicts().await,
        ["DELETE allowed IntentHarmless", "DELETE denied LeaderProtected"]
    );
}
