//! Without a running guard, living etcd pods are protected. Other pods, and pods that have ended, can be deleted.

use std::time::Duration;

use test_support::{
    guard::{
        process::GuardProcess,
        review::{dry_run_review, node_deletion_review, verdict},
    },
    guarded_cluster::{GuardedCluster, START_TIMEOUT, UNRELATED_POD},
    http_client::Connection,
    kubernetes::{api_proxy::ApiServerProxy, pods::create_failed_pod},
    process_node::ProcessAction,
    wait::wait_until,
};
use tokio::time::timeout;

#[tokio::test]
async fn without_guard_only_ended_pods_can_be_deleted() {
    let mut etcd = GuardedCluster::start().await;
    let leader = etcd.leader().await;
    let [leaving, staying] = etcd.followers().await;
    let uid = etcd.uid(&leaving).await;
    create_failed_pod(&etcd.pods, "failed").await;
    etcd.apply(&leaving, ProcessAction::Isolate).await;
    etcd.delete(&leaving).await.unwrap();
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE allowed SafeToDelete"]);

    etcd.guard.kill();
    for name in [&staying, &leader] {
        let output = etcd.kubectl(&["delete", "pod", name]).await;
        assert!(!output.success, "{output:?}");
        assert!(
            output.stderr.contains("failed calling webhook \"guard.etcd-guard.io\""),
            "{}",
            output.stderr
        );
    }
    // Pods that run no etcd and pods that have ended can be deleted, and a terminating pod can be deleted again, for example
    // with a shorter grace period.
    for harmless in [&[UNRELATED_POD][..], &["failed"], &[&leaving, "--grace-period=5"]] {
        let output = etcd.kubectl(&[&["delete", "pod", "--wait=false"], harmless].concat()).await;
        assert!(output.success, "{}", output.stderr);
    }
    // The kubelet's final delete works, and the StatefulSet controller creates the next pod.
    etcd.apply(&leaving, ProcessAction::Rejoin).await;
    etcd.wait_until_replaced(&leaving, &uid).await;

    etcd.guard.restart().await;
    wait_until("the API server reaches the guard again", START_TIMEOUT, async || {
        etcd.delete(&staying).await.is_ok()
    })
    .await;
    assert_eq!(etcd.guard.new_verdicts().await, ["DELETE allowed SafeToDelete"]);
}

/// A guard that restarts at the same address can receive reviews before it is ready. The annotations in the namespace
/// are not known at that time.
#[tokio::test]
async fn new_guard_evaluates_after_the_list_of_namespaces() {
    let etcd = GuardedCluster::start().await;
    etcd.kubectl(&["annotate", "namespace", &etcd.namespace, "etcd-guard.io/min-voters=5"]).await;
    let files = tempfile::tempdir_in(&etcd.control_plane.dir).unwrap();
    let identity = etcd.control_plane.guard_kubeconfig();
    let proxy = ApiServerProxy::start(&identity, files.path().join("proxy.kubeconfig")).await;
    let list = proxy.hold(|call| call.path == "/api/v1/namespaces");
    let guard = GuardProcess::launch(&proxy.kubeconfig, &files.path().join("guard"));
    let [follower, _] = etcd.followers().await;
    let send = async |path: &str, review: String| {
        let mut connection = Connection::tls(guard.https(), &guard.ca_pem).await.unwrap();
        connection.post(path, review).await.unwrap().body
    };
    let evaluate = async |name: &str| {
        let review = dry_run_review(&etcd.pods.get(name).await.unwrap());
        verdict(&send("/validate?timeout=30s", review).await)
    };
    wait_until("the guard lists the namespaces", START_TIMEOUT, async || list.has_waiting_calls()).await;
    for name in [&follower, UNRELATED_POD] {
        let early = timeout(Duration::from_secs(1), evaluate(name)).await;
        assert!(early.is_err(), "{name} before the list: {early:?}");
    }
    // The deletion of a node that cannot be evaluated is approved with a warning, after the deadline of the evaluation.
    let of_node = send("/validate?timeout=3s", node_deletion_review("node")).await;
    assert!(verdict(&of_node).0 && of_node.contains("could not evaluate node node"), "{of_node}");
    drop(list);
    let (allowed, message) = evaluate(&follower).await;
    assert!(!allowed && message.contains("TooFewVoters"), "{message}");
    let (allowed, message) = evaluate(UNRELATED_POD).await;
    assert!(allowed, "{message}");
}
