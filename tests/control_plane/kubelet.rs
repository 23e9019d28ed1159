//! The kubelet's last delete: the pod has ended, and only its name is to be freed.

use crate::support::{control_plane::SHARED_NODE, guarded_cluster::GuardedCluster};

#[tokio::test]
async fn the_kubelets_last_delete_is_allowed_when_the_webhook_is_asked_about_it() {
    let mut etcd = GuardedCluster::start().await;
    // By the shipped configuration the apiserver answers it alone.
    etcd.register_webhook(|webhook| drop(webhook.as_object_mut().unwrap().remove("matchConditions"))).await;
    let [follower, _] = etcd.followers().await;
    let uid = etcd.uid(&follower).await;

    let said = etcd.kubectl(&["delete", "pod", &follower]).await;
    assert!(said.success, "{}", said.stderr);
    let kubelet = format!("system:node:{SHARED_NODE}");
    let line = etcd.guard.told(&kubelet, "allowed", "AlreadyTerminating").await;
    assert_eq!((line["pod"].as_str(), line["grace_period_seconds"].as_i64()), (Some(&*follower), Some(0)));
    etcd.wait_until_back(&follower, &uid).await;
}
