//! Handovers whose replica ended after its entry in the record, and before or after the transfer.
//!
//! A replica cannot be killed reliably between the two, which are milliseconds apart. The tests write the entry of such a
//! replica.

use std::time::Duration;

use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Node},
    jiff::Timestamp,
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::time::sleep;

use test_support::guarded_cluster::GuardedCluster;

use crate::cluster::{
    QUIET_TIME, Turn, annotate, cordon, node_of, request, start, term, uncordon, wait_for_move, wait_for_note,
};

/// Longer than the lifetime of an entry and the interval at which the guard evaluates nodes with a signal again.
const RETRY_TIME: Duration = Duration::from_secs(30);

/// Writes the entry of a replica that was about to move leadership to this pod.
pub(crate) async fn write_entry(etcd: &GuardedCluster, signal: &str, transferee: &str, term: u64) {
    let leader = etcd.leader().await;
    let status = etcd.member(&leader).status().await.expect("the leader answers");
    let cluster = format!("{:x}", status.header().expect("a header").cluster_id());
    let name = format!("etcd-guard.ns.{}", etcd.namespace);
    let entry = json!([{
        "signal": signal, "cluster": cluster, "uid": etcd.uid(transferee).await, "pod": transferee, "term": term,
        "at": Timestamp::now().to_string(),
    }]);
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {
            "name": name, "labels": {"app.kubernetes.io/managed-by": "etcd-guard"},
            "annotations": {"etcd-guard.io/handovers": entry.to_string()},
        },
        "spec": {},
    });
    let leases: Api<Lease> = Api::namespaced(etcd.client.clone(), "etcd-guard");
    let manager = PatchParams::apply("a-replica-that-was-killed").force();
    leases.patch(&name, &manager, &Patch::Apply(lease)).await.expect("the Lease is written");
}

/// Returns the identity of the signal of a cordon.
async fn cordon_signal(etcd: &GuardedCluster, node: &str) -> String {
    let nodes: Api<Node> = Api::all(etcd.client.clone());
    let uid = nodes.get(node).await.expect("a node").metadata.uid.expect("a uid");
    format!("cordon//{node}/{uid}")
}

#[tokio::test]
async fn another_replica_retries_a_move_that_did_not_take_place() {
    let _turn = Turn::start().await;
    let etcd = start(true).await;
    let (leader, before) = (etcd.leader().await, term(&etcd).await);
    let [follower, _] = etcd.followers().await;
    let node = node_of(&leader);
    write_entry(&etcd, &cordon_signal(&etcd, node).await, &follower, before).await;
    cordon(&etcd, node).await;
    sleep(QUIET_TIME).await;
    assert_eq!((etcd.leader().await, term(&etcd).await), (leader.clone(), before), "a replica acts");
    let next = wait_for_move(&etcd, &leader).await;
    assert_eq!(term(&etcd).await, before + 1);
    let start = format!("node {node} is cordoned: leadership moved from {leader} to {next} ");
    wait_for_note(&etcd, "StatefulSet/etcd", "LeaderMoved", &start).await;
    uncordon(&etcd, node).await;
}

#[tokio::test]
async fn no_replica_repeats_a_move_that_took_place() {
    let _turn = Turn::start().await;
    let etcd = start(true).await;
    let (leader, before) = (etcd.leader().await, term(&etcd).await);
    let [follower, _] = etcd.followers().await;
    let node = node_of(&leader);
    // Leadership was moved and has returned.
    write_entry(&etcd, &cordon_signal(&etcd, node).await, &follower, before - 1).await;
    cordon(&etcd, node).await;
    sleep(RETRY_TIME).await;
    assert_eq!((etcd.leader().await, term(&etcd).await), (leader, before));
    uncordon(&etcd, node).await;
}

#[tokio::test]
async fn another_replica_answers_a_request_of_a_killed_replica() {
    let _turn = Turn::start().await;
    let etcd = start(false).await;
    let (leader, before) = (etcd.leader().await, term(&etcd).await);
    let [follower, _] = etcd.followers().await;
    let set = etcd.kubectl(&["get", "statefulset/etcd", "-o", "jsonpath={.metadata.uid}"]).await.stdout;
    // The first replica was killed before its transfer, the second one after its transfer and before its answer.
    for _ in 0..2 {
        let value = request("");
        write_entry(&etcd, &format!("request/{}/{value}", set.trim()), &follower, before).await;
        annotate(&etcd, "statefulset/etcd", &format!("etcd-guard.io/move-leader={value}")).await;
        let start = format!("move-leader {value}: ");
        let note = wait_for_note(&etcd, "StatefulSet/etcd", "LeaderMoved", &start).await;
        assert_eq!(term(&etcd).await, before + 1, "{note}");
        assert_ne!(etcd.leader().await, leader, "{note}");
    }
}
