//! What a member hears from the guard, written down between the two: nothing but questions, and transfers of leadership.

use std::collections::BTreeSet;

use prost::Message;

use crate::{
    cost::ask,
    support::{
        gate::Held,
        guarded_cluster::{GuardedCluster, START_LIMIT},
        process_node::Order,
        review::{deletion_of, dry_run_of},
        wait::until,
        wire::{Call, Range, Transfer, Wire},
    },
};

/// Where the proxies listen, each at its member's address.
const PORT: u16 = 12379;

const RANGE: &str = "/etcdserverpb.KV/Range";
const STATUS: &str = "/etcdserverpb.Maintenance/Status";
const MEMBERS: &str = "/etcdserverpb.Cluster/MemberList";
const MOVE: &str = "/etcdserverpb.Maintenance/MoveLeader";

/// A cluster whose guard reaches every member through a proxy.
async fn start() -> (GuardedCluster, Wire) {
    let etcd = GuardedCluster::start().await;
    let wire = Wire::before(&GuardedCluster::names().map(|name| etcd.address(name)), PORT).await;
    for name in GuardedCluster::names() {
        let said = etcd
            .kubectl(&["annotate", "pod", name, &format!("etcd-guard.io/endpoints=http://:{PORT}")])
            .await;
        assert!(said.success, "{said:?}");
    }
    (etcd, wire)
}

async fn under_transfer(etcd: &GuardedCluster, leader: &str) {
    let said = etcd.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/leader=transfer"]).await;
    assert!(said.success, "{said:?}");
    until("the policy is in force", START_LIMIT, async || {
        etcd.kubectl(&["delete", "pod", leader, "--dry-run=server"]).await.success
    })
    .await;
}

fn methods(calls: &[Call]) -> BTreeSet<&str> {
    calls.iter().map(|call| call.method.as_str()).collect()
}

/// Every read is a linearizable one of the one key.
fn assert_reads(calls: &[Call]) {
    for call in calls.iter().filter(|call| call.method == RANGE) {
        let range = Range::decode(call.message.as_slice()).unwrap();
        assert!(!range.serializable && range.key == b"health", "{range:?}");
    }
}

#[tokio::test]
async fn members_are_asked_and_led_and_never_written_to() {
    let (mut etcd, wire) = start().await;
    let leader = etcd.leader().await;
    let questions = BTreeSet::from([RANGE, STATUS, MEMBERS]);
    wire.news();

    let said = etcd.kubectl(&["delete", "pod", &leader]).await;
    assert!(!said.success, "{said:?}");
    let calls = wire.news();
    assert_eq!(methods(&calls), questions, "a no");
    assert_reads(&calls);
    let asked: BTreeSet<_> = calls.iter().map(|call| call.member).collect();
    assert_eq!(asked, GuardedCluster::names().map(|name| etcd.address(name)).into(), "every member is asked");

    under_transfer(&etcd, &leader).await;
    let calls = wire.news();
    assert_eq!(methods(&calls), questions, "a dry run moves nothing");
    let uid = etcd.uid(&leader).await;
    let said = etcd.kubectl(&["delete", "pod", &leader, "--wait=false"]).await;
    assert!(said.success, "{said:?}");
    let calls = wire.news();
    assert_eq!(methods(&calls), questions.iter().copied().chain([MOVE]).collect(), "a transfer");
    assert_reads(&calls);
    let moves: Vec<_> = calls.iter().filter(|call| call.method == MOVE).map(|call| call.member).collect();
    assert_eq!(moves, [etcd.address(&leader)], "one, at the leader");

    // The new pod has no annotation: what it hears is not seen here.
    etcd.wait_until_back(&leader, &uid).await;
    let heir = etcd.leader().await;
    let last = GuardedCluster::names().into_iter().find(|name| *name != leader && *name != heir).unwrap();
    wire.news();
    etcd.guard.news().await;
    until("the last one may go", START_LIMIT, async || etcd.delete(last).await.is_ok()).await;
    let calls = wire.news();
    assert_eq!(methods(&calls), questions, "a yes");
    assert_reads(&calls);
    assert!(etcd.guard.news().await.contains(&String::from("DELETE allowed SafeToDelete")));
}

/// Edge case 22.
#[tokio::test]
async fn an_heir_that_freezes_before_it_is_named_costs_a_denial_and_nothing_else() {
    let (mut etcd, wire) = start().await;
    let leader = etcd.leader().await;
    let uid = etcd.uid(&leader).await;
    under_transfer(&etcd, &leader).await;
    etcd.guard.news().await;

    let transfer = wire.hold(|call| call.method == MOVE);
    wire.news();
    let delete = ["delete", "pod", &leader, "--wait=false"];
    let (said, heir) = tokio::join!(etcd.kubectl(&delete), pause_the_heir(&etcd, &wire, transfer));
    etcd.order(&heir, Order::Resume).await;
    assert!(!said.success, "{said:?}");
    let reason = etcd.guard.news().await;
    assert_eq!(reason, ["DELETE denied TransferFailed"], "{said:?}");
    assert_eq!(etcd.guard.metric("etcd_guard_leader_transfers_total{result=\"failed\"}").await, 1);
    let pod = etcd.pods.get(&leader).await.unwrap();
    assert_eq!((pod.metadata.uid, pod.metadata.deletion_timestamp), (Some(uid), None));

    assert_eq!(etcd.guard.metric("etcd_guard_reservations").await, 0, "its reservation was taken back");

    // Nothing is lost and nothing is held: the cluster serves, and one of the others may go.
    etcd.wait_until_whole().await;
    until("another pod may go", START_LIMIT, async || {
        let now = etcd.followers().await;
        etcd.delete(&now[0]).await.is_ok()
    })
    .await;
}

/// Two calls for one pod: the deletion of the first, which was allowed, may be under way when the second moves leadership
/// in vain.
#[tokio::test]
async fn a_transfer_in_vain_leaves_an_earlier_yes_for_the_same_pod_in_force() {
    let (etcd, wire) = start().await;
    let leader = etcd.leader().await;
    under_transfer(&etcd, &leader).await;
    let pod = etcd.pods.get(&leader).await.unwrap();
    let (allowed, message) = ask(&etcd.guard, deletion_of(&pod)).await;
    assert!(allowed, "{message}");
    etcd.let_lead(&leader).await;

    let transfer = wire.hold(|call| call.method == MOVE);
    wire.news();
    let ((allowed, message), heir) =
        tokio::join!(ask(&etcd.guard, deletion_of(&pod)), pause_the_heir(&etcd, &wire, transfer));
    etcd.order(&heir, Order::Resume).await;
    assert!(!allowed && message.contains("TransferFailed"), "{message}");

    etcd.wait_until_whole().await;
    let other = GuardedCluster::names().into_iter().find(|name| *name != leader).unwrap();
    let (allowed, message) = ask(&etcd.guard, dry_run_of(&etcd.pods.get(other).await.unwrap())).await;
    assert!(!allowed && message.contains(&format!("{leader} is on the way out")), "{message}");
}

/// Freezes the member that leadership is about to be moved to, lets the move go on, and returns the member's pod.
async fn pause_the_heir(etcd: &GuardedCluster, wire: &Wire, transfer: Held) -> String {
    until("leadership is about to be moved", START_LIMIT, async || transfer.is_waited_at()).await;
    let heir = heir_of(etcd, &wire.news()).await;
    etcd.order(&heir, Order::Pause).await;
    transfer.release();
    heir
}

/// The pod whose member is to lead.
async fn heir_of(etcd: &GuardedCluster, calls: &[Call]) -> String {
    let call = calls.iter().find(|call| call.method == MOVE).unwrap();
    let target = format!("{:x}", Transfer::decode(call.message.as_slice()).unwrap().target);
    for name in GuardedCluster::names() {
        if etcd.member(name).id().await == target {
            return name.to_owned();
        }
    }
    panic!("no member {target}");
}
