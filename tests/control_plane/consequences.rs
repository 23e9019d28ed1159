//! What follows from a deletion that was accepted is not held up.

use crate::support::{
    guarded_cluster::{GuardedCluster, START_LIMIT},
    wait::until,
};

/// Edge case 31.
#[tokio::test]
async fn a_namespace_with_a_guarded_cluster_can_be_deleted() {
    let mut etcd = GuardedCluster::start().await;
    etcd.break_glass(&format!("namespace/{}", etcd.namespace)).await;
    let delete = ["delete", "namespace", &etcd.namespace, "--wait=false"];
    until("the break-glass is in force", START_LIMIT, async || {
        etcd.kubectl_everywhere().run(&delete).await.success
    })
    .await;
    until("all pods are gone", START_LIMIT, async || {
        etcd.pods.list(&kube::api::ListParams::default()).await.is_ok_and(|pods| pods.items.is_empty())
    })
    .await;
    let controller = "system:serviceaccount:kube-system:namespace-controller";
    etcd.guard.told(controller, "allowed", "NamespaceTerminating").await;
    let news = etcd.guard.news().await;
    assert!(!news.iter().any(|it| it.starts_with("DELETE denied") && !it.contains("Intent")), "{news:?}");
}

#[tokio::test]
async fn the_garbage_collector_takes_the_pods_of_a_deleted_stateful_set() {
    for cascade in ["--cascade=background", "--cascade=foreground"] {
        let etcd = GuardedCluster::start().await;
        etcd.break_glass("statefulset/etcd").await;
        let delete = ["delete", "statefulset", "etcd", cascade, "--wait=false"];
        until("the break-glass is in force", START_LIMIT, async || etcd.kubectl(&delete).await.success).await;
        until("all members are gone", START_LIMIT, async || {
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
        etcd.guard.told(controller, "allowed", "OwnerDeleted").await;
    }
}

#[tokio::test]
async fn orphans_of_a_stateful_set_are_guarded_like_any_member() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let said = etcd.kubectl(&["delete", "statefulset", "etcd", "--cascade=orphan"]).await;
    assert!(said.success, "{said:?}");
    until("the pods have no owner", START_LIMIT, async || {
        etcd.pods.get(&leader).await.unwrap().metadata.owner_references.is_none()
    })
    .await;
    let denial = etcd.delete(&leader).await.unwrap_err();
    assert!(denial.contains("is the leader of"), "{denial}");
    assert_eq!(etcd.guard.news().await, ["DELETE allowed IntentHarmless", "DELETE denied LeaderProtected"]);
}
