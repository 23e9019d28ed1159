//! While no guard answers, nothing that matters is deleted, and what is over is not held up.

use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::support::{
    guarded_cluster::{BYSTANDER, GuardedCluster, START_LIMIT},
    process_node::Order,
    wait::until,
};

#[tokio::test]
async fn while_the_guard_is_down_living_pods_stay_and_ended_ones_go() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [leaving, staying] = etcd.followers().await;
    let uid = etcd.uid(&leaving).await;
    create_failed_pod(&etcd, "failed").await;
    etcd.order(&leaving, Order::Isolate).await;
    etcd.delete(&leaving).await.unwrap();
    assert_eq!(etcd.guard.news().await, ["DELETE allowed SafeToDelete"]);

    etcd.guard.kill();
    for name in [&staying, &leader, BYSTANDER] {
        let said = etcd.kubectl(&["delete", "pod", name]).await;
        assert!(!said.success, "{said:?}");
        assert!(said.stderr.contains("failed calling webhook \"guard.etcd-guard.io\""), "{}", said.stderr);
    }
    let said = etcd.kubectl(&["delete", "pod", "failed"]).await;
    assert!(said.success, "{}", said.stderr);
    // The kubelet's last delete, and the StatefulSet's next pod.
    etcd.order(&leaving, Order::Rejoin).await;
    etcd.wait_until_back(&leaving, &uid).await;

    etcd.guard.start_again().await;
    until("the apiserver reaches the guard again", START_LIMIT, async || etcd.delete(&staying).await.is_ok())
        .await;
    assert_eq!(etcd.guard.news().await, ["DELETE allowed SafeToDelete"]);
}

/// A pod whose containers have ended for good, as a kubelet leaves it behind.
async fn create_failed_pod(etcd: &GuardedCluster, name: &str) {
    let pods: &Api<_> = &etcd.pods;
    let spec = json!({
        "schedulerName": "nobody",
        "restartPolicy": "Never",
        "containers": [{"name": "app", "image": "app"}],
    });
    let pod = json!({"metadata": {"name": name}, "spec": spec});
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let status = Patch::Merge(json!({"status": {"phase": "Failed"}}));
    pods.patch_status(name, &PatchParams::default(), &status).await.unwrap();
}
