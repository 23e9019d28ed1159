//! Garbage collection of pods whose node is deleted. The controller marks them as failed before it deletes them.

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    kubernetes::control_plane::{SHARED_NODE, VANISHING_NODE},
    wait::{wait_for, wait_until},
};

const COLLECTOR: &str = "system:serviceaccount:kube-system:pod-garbage-collector";
/// The StatefulSet controller deletes failed pods, too, and may be the first.
const SET: &str = "system:serviceaccount:kube-system:statefulset-controller";

#[tokio::test]
#[ignore = "the controller waits for a minute; scripts/prove tests runs it"]
async fn allows_pod_gc_of_deleted_node() {
    // The member with ordinal 1 runs on this node.
    let mut etcd = GuardedCluster::start_on(&[SHARED_NODE, VANISHING_NODE]).await;
    etcd.make_leader("etcd-0").await;
    // With the shipped configuration, the API server does not call the guard for this.
    etcd.register_webhook(|webhook| drop(webhook.as_object_mut().unwrap().remove("matchConditions"))).await;
    let uid = etcd.uid("etcd-1").await;

    let output = etcd.kubectl_everywhere().run(&["delete", "node", VANISHING_NODE]).await;
    assert!(output.success, "{output:?}");
    wait_until("the set has a new pod", START_TIMEOUT, async || {
        let pod = etcd.pods.get_opt("etcd-1").await;
        pod.is_ok_and(|pod| pod.is_some_and(|pod| pod.metadata.uid.is_some_and(|current| current != uid)))
    })
    .await;
    let lines = wait_for("a line on its deletion", START_TIMEOUT, async || {
        Some(etcd.guard.logged_deletions("etcd-1")).filter(|lines| !lines.is_empty())
    })
    .await;
    assert!(lines.iter().all(|entry| entry["verdict"] == "allowed"), "{lines:?}");
    assert!(lines.iter().all(|entry| entry["user"] == COLLECTOR || entry["user"] == SET), "{lines:?}");
    let first = (lines[0]["reason"].as_str(), lines[0]["grace_period_seconds"].as_i64());
    assert_eq!(first, (Some("PodFinished"), Some(0)));

    // The new pod waits for its node, and the other members are protected.
    let denial = etcd.delete("etcd-2").await.unwrap_err();
    assert!(denial.contains("would have 1 of 3 voters healthy, quorum 2"), "{denial}");
}
