//! The kubelet's final delete: the pod has ended, and only its name is released.

use test_support::{guarded_cluster::GuardedCluster, kubernetes::control_plane::SHARED_NODE};

#[tokio::test]
async fn allows_final_delete_if_webhook_is_called() {
    let mut etcd = GuardedCluster::start().await;
    // With the shipped configuration, the API server does not call the guard for it.
    etcd.register_webhook(|webhook| drop(webhook.as_object_mut().unwrap().remove("matchConditions"))).await;
    let [follower, _] = etcd.followers().await;
    let uid = etcd.uid(&follower).await;

    let output = etcd.kubectl(&["delete", "pod", &follower]).await;
    assert!(output.success, "{}", output.stderr);
    let kubelet = format!("system:node:{SHARED_NODE}");
    let line = etcd.guard.wait_for_verdict(&kubelet, "allowed", "AlreadyTerminating").await;
    assert_eq!((line["pod"].as_str(), line["grace_period_seconds"].as_i64()), (Some(&*follower), Some(0)));
    etcd.wait_until_replaced(&follower, &uid).await;
}
