//! Deletions of leaders by the whole program, in which the transfer of leadership does not make the deletion safe.

use std::net::Ipv4Addr;

use etcd_guard_etcd::Connections;
use prost::Message;
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, Layout, START_TIMEOUT},
    guarded_cluster::{GuardedPods, annotated_pod},
    snapshots::{followers_in, leader_of},
};
use test_support::{
    breakpoint::ActiveBreakpoint,
    etcd::{
        grpc_proxy::{GrpcProxy, MoveLeaderRequest},
        peer_links::Peer,
    },
    wait::wait_until,
};

/// The port of the proxies, each at the address of its member.
const PORT: u16 = 12379;

const MOVE: &str = "/etcdserverpb.Maintenance/MoveLeader";

/// The annotation of the Lease with the reservations.
const RESERVATIONS: &str = "etcd-guard.io/reservations";

async fn member_id(cluster: &Cluster, n: usize) -> u64 {
    cluster.client(n).await.status().await.unwrap().header().unwrap().member_id()
}

async fn peer(cluster: &Cluster, n: usize) -> Peer {
    (member_id(cluster, n).await, cluster.address(n).parse().unwrap())
}

/// Reserves the deletion of the transferee, as another replica does, while the transfer is held. Returns its index.
async fn reserve_transferee(
    cluster: &Cluster,
    proxy: &GrpcProxy,
    guarded: &GuardedPods,
    transfer: ActiveBreakpoint,
) -> usize {
    wait_until("leadership is about to be moved", START_TIMEOUT, async || transfer.has_waiting_calls()).await;
    let calls = proxy.take_calls();
    let call = calls.iter().find(|call| call.method == MOVE).unwrap();
    let id = MoveLeaderRequest::decode(call.message.as_slice()).unwrap().target;
    let mut transferee = None;
    for n in 0..5 {
        if member_id(cluster, n).await == id {
            transferee = Some(n);
        }
    }
    let transferee = transferee.unwrap();
    guarded.objects.change("/leases/", |lease| {
        let annotations = &mut lease["metadata"]["annotations"];
        // The Lease with the recorded owners has none.
        let Some(annotation) = annotations.get_mut(RESERVATIONS) else { return };
        let text = annotation.as_str().unwrap();
        let mut reservations: Vec<Value> = serde_json::from_str(text).unwrap();
        reservations.push(json!({
            "uid": format!("uid-{transferee}"),
            "namespace": "prod",
            "pod": format!("etcd-{transferee}"),
            "member": format!("{id:x}"),
            "at": "2026-01-31T12:00:00Z",
            "by": "another replica",
        }));
        *annotation = json!(serde_json::to_string(&reservations).unwrap());
    });
    transfer.release();
    transferee
}

on_every_version! {
    /// The followers cannot reach each other, and all reads pass through the leader. Without it, no quorum
    /// could form.
    async fn leader_between_partitioned_followers_is_not_deleted(version) {
        let (cluster, links) = Cluster::start_linked(Layout { version, members: 3, spare: 0, tls: false }).await;
        let pods: Vec<Value> =
            (0..3).map(|n| annotated_pod(&cluster, n, &[("etcd-guard.io/leader", "transfer")])).collect();
        let guarded = GuardedPods::start(&pods).await;
        let before = cluster.healthy_snapshot(&Connections::new()).await;
        let (leader, followers) = (leader_of(&before).unwrap(), followers_in(&before));
        links.cut(peer(&cluster, followers[0]).await, peer(&cluster, followers[1]).await);
        let all_serve = cluster.healthy_snapshot(&Connections::new()).await;
        assert_eq!(leader_of(&all_serve), Some(leader));

        let message = guarded.expect_deletion(&pods[leader], "TransferFailed").await;
        assert!(message.contains("is the new leader, but the deletion of"), "{message}");
        assert_ne!(cluster.leader().await, leader);

        links.restore();
        wait_until("the deletion is approved", START_TIMEOUT, async || {
                let reason = guarded.delete(&pods[leader]).await.0;
                ["SafeToDelete", "LeaderTransferred"].contains(&reason.as_str())
            })
            .await;
    }

    /// Another replica approves the deletion of the transferee while leadership moves to it.
    async fn leadership_that_moved_to_a_leaving_voter_protects(version) {
        let cluster = Cluster::start(Layout { version, members: 5, spare: 0, tls: false }).await;
        let addresses: Vec<Ipv4Addr> = (0..5).map(|n| cluster.address(n).parse().unwrap()).collect();
        let proxy = GrpcProxy::start(&addresses, PORT).await;
        let endpoints = format!("http://:{PORT}");
        let annotations = [("etcd-guard.io/endpoints", endpoints.as_str()), ("etcd-guard.io/leader", "transfer")];
        let pods: Vec<Value> = (0..5).map(|n| annotated_pod(&cluster, n, &annotations)).collect();
        let guarded = GuardedPods::start(&pods).await;
        let leader = leader_of(&cluster.healthy_snapshot(&Connections::new()).await).unwrap();

        let transfer = proxy.hold(|call| call.method == MOVE);
        let (message, transferee) = tokio::join!(
            guarded.expect_deletion(&pods[leader], "TransferFailed"),
            reserve_transferee(&cluster, &proxy, &guarded, transfer)
        );
        assert!(message.contains("DisruptionInProgress"), "{message}");
        assert_eq!(cluster.leader().await, transferee);
    }
}
