//! The gRPC calls that members receive from the guard: only reads, and transfers of leadership.

use std::{collections::BTreeSet, time::Duration};

use prost::Message;
use tokio::time::sleep;

use crate::observability::cost::{reserved_pods, send_review};
use test_support::{
    breakpoint::ActiveBreakpoint,
    etcd::grpc_proxy::{Call, GrpcProxy, MoveLeaderRequest, RangeRequest},
    guard::review::{deletion_review, dry_run_review},
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    process_node::ProcessAction,
    wait::wait_until,
};

/// Deletions move leadership of a cluster at most once in 10 s.
const PAUSE_BETWEEN_MOVES: Duration = Duration::from_secs(11);

/// The port of the proxies, each at the address of its member.
const PORT: u16 = 12379;

const RANGE: &str = "/etcdserverpb.KV/Range";
const STATUS: &str = "/etcdserverpb.Maintenance/Status";
const MEMBERS: &str = "/etcdserverpb.Cluster/MemberList";
const MOVE: &str = "/etcdserverpb.Maintenance/MoveLeader";

/// Starts a cluster whose guard reaches every member through a proxy.
async fn start() -> (GuardedCluster, GrpcProxy) {
    let etcd = GuardedCluster::start().await;
    let proxy = GrpcProxy::start(&GuardedCluster::names().map(|name| etcd.address(name)), PORT).await;
    for name in GuardedCluster::names() {
        let output = etcd
            .kubectl(&["annotate", "pod", name, &format!("etcd-guard.io/endpoints=http://:{PORT}")])
            .await;
        assert!(output.success, "{output:?}");
    }
    (etcd, proxy)
}

async fn set_transfer_policy(etcd: &GuardedCluster, leader: &str) {
    let output = etcd.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/leader=transfer"]).await;
    assert!(output.success, "{output:?}");
    wait_until("the policy applies", START_TIMEOUT, async || {
        etcd.kubectl(&["delete", "pod", leader, "--dry-run=server"]).await.success
    })
    .await;
}

fn methods(calls: &[Call]) -> BTreeSet<&str> {
    calls.iter().map(|call| call.method.as_str()).collect()
}

/// Asserts that every read is a linearizable read of the same key.
fn assert_reads(calls: &[Call]) {
    for call in calls.iter().filter(|call| call.method == RANGE) {
        let range = RangeRequest::decode(call.message.as_slice()).unwrap();
        assert!(!range.serializable && range.key == b"health", "{range:?}");
    }
}

#[tokio::test]
async fn members_receive_only_reads_and_transfers() {
    let (mut etcd, proxy) = start().await;
    let leader = etcd.leader().await;
    let read_only = BTreeSet::from([RANGE, STATUS, MEMBERS]);
    proxy.take_calls();

    let output = etcd.kubectl(&["delete", "pod", &leader]).await;
    assert!(!output.success, "{output:?}");
    let calls = proxy.take_calls();
    assert_eq!(methods(&calls), read_only, "calls for a denial");
    assert_reads(&calls);
    let probed: BTreeSet<_> = calls.iter().map(|call| call.member).collect();
    assert_eq!(
        probed,
        GuardedCluster::names().map(|name| etcd.address(name)).into(),
        "every member is probed"
    );

    set_transfer_policy(&etcd, &leader).await;
    let calls = proxy.take_calls();
    assert_eq!(methods(&calls), read_only, "a dry run moves nothing");
    let uid = etcd.uid(&leader).await;
    let output = etcd.kubectl(&["delete", "pod", &leader, "--wait=false"]).await;
    assert!(output.success, "{output:?}");
    let calls = proxy.take_calls();
    assert_eq!(methods(&calls), read_only.iter().copied().chain([MOVE]).collect(), "calls for a transfer");
    assert_reads(&calls);
    let moves: Vec<_> = calls.iter().filter(|call| call.method == MOVE).map(|call| call.member).collect();
    assert_eq!(moves, [etcd.address(&leader)], "one transfer, at the leader");

    // The new pod has no annotation, so its calls bypass the proxy.
    etcd.wait_until_replaced(&leader, &uid).await;
    let transferee = etcd.leader().await;
    let last =
        GuardedCluster::names().into_iter().find(|name| *name != leader && *name != transferee).unwrap();
    proxy.take_calls();
    etcd.guard.new_verdicts().await;
    wait_until("the deletion of the last member is approved", START_TIMEOUT, async || {
        etcd.delete(last).await.is_ok()
    })
    .await;
    let calls = proxy.take_calls();
    assert_eq!(methods(&calls), read_only, "calls for an approval");
    assert_reads(&calls);
    assert!(etcd.guard.new_verdicts().await.contains(&String::from("DELETE allowed SafeToDelete")));
}

#[tokio::test]
async fn denies_if_transferee_freezes() {
    let (mut etcd, proxy) = start().await;
    let leader = etcd.leader().await;
    let uid = etcd.uid(&leader).await;
    set_transfer_policy(&etcd, &leader).await;
    etcd.guard.new_verdicts().await;

    let transfer = proxy.hold(|call| call.method == MOVE);
    proxy.take_calls();
    let delete = ["delete", "pod", &leader, "--wait=false"];
    let (output, transferee) = tokio::join!(etcd.kubectl(&delete), pause_transferee(&etcd, &proxy, transfer));
    etcd.apply(&transferee, ProcessAction::Resume).await;
    assert!(!output.success, "{output:?}");
    let reason = etcd.guard.new_verdicts().await;
    assert_eq!(reason, ["DELETE denied TransferFailed"], "{output:?}");
    assert_eq!(etcd.guard.metric("etcd_guard_leader_transfers_total{result=\"failed\"}").await, 1);
    let pod = etcd.pods.get(&leader).await.unwrap();
    assert_eq!((pod.metadata.uid, pod.metadata.deletion_timestamp), (Some(uid), None));

    assert_eq!(reserved_pods(&etcd).await, 0, "the reservation is removed");

    // The cluster serves, and another deletion is approved.
    etcd.wait_until_healthy().await;
    wait_until("another deletion is approved", START_TIMEOUT, async || {
        let now = etcd.followers().await;
        etcd.delete(&now[0]).await.is_ok()
    })
    .await;
}

/// A first deletion was approved and may still be in progress when a second request for the same pod fails to transfer
/// leadership.
#[tokio::test]
async fn failed_transfer_keeps_earlier_reservation() {
    let (etcd, proxy) = start().await;
    let leader = etcd.leader().await;
    set_transfer_policy(&etcd, &leader).await;
    let pod = etcd.pods.get(&leader).await.unwrap();
    let (allowed, message) = send_review(&etcd.guard, deletion_review(&pod)).await;
    assert!(allowed, "{message}");
    etcd.make_leader(&leader).await;
    sleep(PAUSE_BETWEEN_MOVES).await;

    let transfer = proxy.hold(|call| call.method == MOVE);
    proxy.take_calls();
    let ((allowed, message), transferee) = tokio::join!(
        send_review(&etcd.guard, deletion_review(&pod)),
        pause_transferee(&etcd, &proxy, transfer)
    );
    etcd.apply(&transferee, ProcessAction::Resume).await;
    assert!(!allowed && message.contains("TransferFailed"), "{message}");

    etcd.wait_until_healthy().await;
    let other = GuardedCluster::names().into_iter().find(|name| *name != leader).unwrap();
    let (allowed, message) =
        send_review(&etcd.guard, dry_run_review(&etcd.pods.get(other).await.unwrap())).await;
    assert!(!allowed && message.contains(&format!("{leader} is being deleted")), "{message}");
}

/// Pauses the member that is about to receive leadership, releases the transfer, and returns the pod of the member.
async fn pause_transferee(etcd: &GuardedCluster, proxy: &GrpcProxy, transfer: ActiveBreakpoint) -> String {
    wait_until("leadership is about to be moved", START_TIMEOUT, async || transfer.has_waiting_calls()).await;
    let transferee = transferee_pod(etcd, &proxy.take_calls()).await;
    etcd.apply(&transferee, ProcessAction::Pause).await;
    transfer.release();
    transferee
}

/// The pod of the member that is to become leader.
async fn transferee_pod(etcd: &GuardedCluster, calls: &[Call]) -> String {
    let call = calls.iter().find(|call| call.method == MOVE).unwrap();
    let target = format!("{:x}", MoveLeaderRequest::decode(call.message.as_slice()).unwrap().target);
    for name in GuardedCluster::names() {
        if etcd.member(name).id().await == target {
            return name.to_owned();
        }
    }
    panic!("no member {target}");
}
