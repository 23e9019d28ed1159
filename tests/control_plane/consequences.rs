//! What follows from a deletion that was accepted is not held up.

use crate::support::{
    guarded_cluster::{GuardedCluster, START_LIMIT},
    wait::until,
};

#[tokio::test]
async fn a_namespace_with_a_guarded_cluster_can_be_deleted() {
    let mut etcd = GuardedCluster::start().await;
    let said = etcd.kubectl_everywhere().run(&["delete", "namespace", &etcd.namespace, "--wait=false"]).await;
    assert!(said.success, "{said:?}");
    until("all pods are gone", START_LIMIT, async || {
        etcd.pods.list(&kube::api::ListParams::default()).await.is_ok_and(|pods| pods.items.is_empty())
    })
    .await;
    let news = etcd.guard.news().await;
    assert!(news.contains(&String::from("DELETE allowed NamespaceTerminating")), "{news:?}");
}

#[tokio::test]
async fn the_garbage_collector_takes_the_pods_of_a_deleted_stateful_set() {
    for cascade in ["--cascade=background", "--cascade=foreground"] {
        let mut etcd = GuardedCluster::start().await;
        let said = etcd.kubectl(&["delete", "statefulset", "etcd", cascade, "--wait=false"]).await;
        assert!(said.success, "{said:?}");
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
        let news = etcd.guard.news().await;
        assert!(news.contains(&String::from("DELETE allowed OwnerDeleted")), "{cascade}: {news:?}");
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
    assert_eq!(etcd.guard.news().await, ["DELETE denied LeaderProtected"]);
}
