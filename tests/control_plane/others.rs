//! What is none of the guard's business passes at once, or is not even asked about.

use kube::Api;

use crate::support::{
    guarded_cluster::{BYSTANDER, GuardedCluster, START_LIMIT},
    pods::{create_pod, delete, new_namespace},
    wait::until,
};

#[tokio::test]
async fn a_pod_without_etcd_may_go() {
    let mut etcd = GuardedCluster::start().await;
    let said = etcd.kubectl(&["delete", "pod", BYSTANDER]).await;
    assert!(said.success, "{}", said.stderr);
    assert_eq!(etcd.guard.news().await, ["DELETE allowed NotEtcd"]);
}

#[tokio::test]
async fn in_a_namespace_without_the_label_nobody_asks() {
    let mut etcd = GuardedCluster::start().await;
    let asked_before = etcd.guard.requests().await;
    let pods = Api::namespaced(etcd.client.clone(), &new_namespace(&etcd.client, false).await);
    create_pod(&pods, "free").await;
    delete(&pods, "free").await.unwrap();
    until("the pod is gone", START_LIMIT, async || pods.get_opt("free").await.is_ok_and(|pod| pod.is_none()))
        .await;
    assert_eq!(etcd.guard.requests().await, asked_before);

    // It is there to be asked.
    etcd.delete(BYSTANDER).await.unwrap();
    assert_eq!(etcd.guard.news().await, ["DELETE allowed NotEtcd"]);
}
