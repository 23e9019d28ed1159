//! Requests to defragment, as annotations, with real members.

use std::time::Duration;

use etcd_client::CompactionOptions;
use test_support::{
    etcd::grpc_proxy::GrpcProxy,
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    wait::wait_until,
};
use tokio::time::sleep;

use crate::cluster::{Turn, annotate, notes, request, start_replica, term, wait_for_note};

const SET: &str = "StatefulSet/etcd";

const MIB: usize = 1 << 20;

/// The port of the proxies, each at the address of its member.
const PROXY_PORT: u16 = 12379;

const DEFRAGMENT: &str = "/etcdserverpb.Maintenance/Defragment";

/// Longer than the lifetime of the entry that names the acting replica.
const CLAIM_TIME: Duration = Duration::from_secs(12);

/// Keys that are deleted one by one after the compaction: its pages become free with the next write, and an alarm allows only
/// deletions.
const DELETED: usize = 100;

/// Writes one key again and again until etcd refuses, at most this often. Returns the last revision and the refusal.
async fn fill(etcd: &GuardedCluster, mebibytes: u8) -> (i64, Option<etcd_client::Error>) {
    let mut client = etcd.member(&etcd.leader().await).client().await.unwrap();
    for number in 0..DELETED {
        client.put(format!("deleted-{number}"), "", None).await.unwrap();
    }
    let mut revision = 0;
    for fill in 0..mebibytes {
        match client.put("filler", vec![fill; MIB], None).await {
            Ok(response) => revision = response.header().unwrap().revision(),
            Err(refusal) => return (revision, Some(refusal)),
        }
    }
    (revision, None)
}

/// Compacts the history, and waits until 2 MiB and this part of each file are free.
async fn compact(etcd: &GuardedCluster, revision: i64, part: usize) {
    let mut client = etcd.member(&etcd.leader().await).client().await.unwrap();
    let physical = CompactionOptions::new().with_physical();
    client.compact(revision, Some(physical)).await.unwrap();
    for number in 0..DELETED {
        client.delete(format!("deleted-{number}"), None).await.unwrap();
        sleep(Duration::from_millis(200)).await;
        if sizes(etcd).await.into_iter().all(|(bytes, free)| free >= 2 * MIB && free >= bytes / part) {
            return;
        }
    }
    panic!("the pages are in use: {:?}", sizes(etcd).await);
}

/// Leaves free pages in each file: at least a half, a third and so on.
pub(crate) async fn fragment(etcd: &GuardedCluster, mebibytes: u8, part: usize) {
    let (revision, _) = fill(etcd, mebibytes).await;
    compact(etcd, revision, part).await;
}

/// Returns the size of each member's file, and its free bytes.
async fn sizes(etcd: &GuardedCluster) -> Vec<(usize, usize)> {
    let mut sizes = Vec::new();
    for name in etcd.pod_names().await {
        let status = etcd.member(&name).status().await.expect("the member answers");
        let (bytes, used) = (status.db_size(), status.raft_used_db_size());
        sizes.push((bytes.try_into().unwrap(), (bytes - used).try_into().unwrap()));
    }
    sizes
}

pub(crate) async fn assert_defragmented(etcd: &GuardedCluster) {
    let sizes = sizes(etcd).await;
    assert!(sizes.iter().all(|(_, free)| *free < MIB), "{sizes:?}");
}

async fn defragment(etcd: &GuardedCluster, detail: &str) -> String {
    let value = request(detail);
    annotate(etcd, "statefulset/etcd", &format!("etcd-guard.io/defragment={value}")).await;
    value
}

async fn wait_for_completion(etcd: &GuardedCluster, value: &str) -> String {
    wait_for_note(etcd, SET, "DefragmentationCompleted", &format!("defragment {value}: ")).await
}

#[tokio::test]
async fn request_defragments_all_members_and_moves_leadership_once() {
    let _turn = Turn::start().await;
    let etcd = GuardedCluster::start().await;
    fragment(&etcd, 6, 2).await;
    let (leader, before) = etcd.leadership().await;
    let value = defragment(&etcd, "").await;
    let note = wait_for_completion(&etcd, &value).await;
    assert!(note.contains(": 3 members of ") && note.ends_with(" MiB freed"), "{note}");
    assert_defragmented(&etcd).await;
    assert_eq!(term(&etcd).await, before + 1, "one move");
    let all = notes(&etcd, SET, "LeaderMoved").await;
    let [moved] = all.as_slice() else { panic!("{all:?}") };
    assert!(moved.starts_with(&format!("defragment {value}: leadership moved from {leader} to ")), "{moved}");
    assert_eq!(notes(&etcd, SET, "Defragmented").await.len(), 3);

    // The reservation ends with the work: the next deletion need not wait for a minute.
    let [follower, _] = etcd.followers().await;
    wait_until("a follower may go", Duration::from_secs(10), async || {
        etcd.kubectl(&["delete", "pod", &follower, "--dry-run=server"]).await.success
    })
    .await;

    let value = defragment(&etcd, "").await;
    let note = wait_for_completion(&etcd, &value).await;
    assert!(note.contains(": no member of ") && note.ends_with(" has at least 1.0 MiB free"), "{note}");
    assert_eq!(term(&etcd).await, before + 1, "nothing to do");
}

#[tokio::test]
async fn free_space_ends_the_alarm() {
    let _turn = Turn::start().await;
    let with_quota = |manifest: &str| {
        let flag = "- --initial-cluster-state=new";
        assert!(manifest.contains(flag));
        manifest.replace(flag, &format!("- --quota-backend-bytes=8388608\n        {flag}"))
    };
    let etcd = GuardedCluster::start_as(Setup { change_manifest: with_quota, ..Setup::default() }).await;
    let (revision, refusal) = fill(&etcd, u8::MAX).await;
    let refusal = refusal.expect("etcd refuses writes").to_string();
    assert!(refusal.contains("database space exceeded"), "{refusal}");
    let has_alarm = async || {
        let mut alarms = Vec::new();
        for name in etcd.pod_names().await {
            alarms.extend(etcd.member(&name).status().await.expect("the member answers").errors().to_vec());
        }
        alarms.iter().any(|alarm| alarm.contains("NOSPACE"))
    };
    wait_until("the alarm", START_TIMEOUT, has_alarm).await;

    // A share that no member has: the alarm stays.
    compact(&etcd, revision, 2).await;
    let value = defragment(&etcd, "100%").await;
    let note = wait_for_completion(&etcd, &value).await;
    assert!(note.contains("; the alarm NOSPACE remains: etcd-"), "{note}");
    assert!(has_alarm().await);

    let value = defragment(&etcd, "30%").await;
    let note = wait_for_completion(&etcd, &value).await;
    assert!(note.contains("; alarm NOSPACE disarmed"), "{note}");
    assert!(!has_alarm().await);
    let mut client = etcd.member(&etcd.leader().await).client().await.unwrap();
    client.put("filler", vec![8; MIB], None).await.expect("writes work");
}

/// Starts a cluster whose guard reaches every member through a proxy.
async fn start_behind_proxies() -> (GuardedCluster, GrpcProxy) {
    let etcd = GuardedCluster::start().await;
    let names = etcd.pod_names().await;
    let addresses: Vec<_> = names.iter().map(|name| etcd.address(name)).collect();
    let proxy = GrpcProxy::start(&addresses, PROXY_PORT).await;
    for name in names {
        annotate(&etcd, &format!("pod/{name}"), &format!("etcd-guard.io/endpoints=http://:{PROXY_PORT}"))
            .await;
    }
    (etcd, proxy)
}

#[tokio::test]
async fn one_of_two_replicas_defragments_and_no_other_member_may_go() {
    let _turn = Turn::start().await;
    let (etcd, proxy) = start_behind_proxies().await;
    let other_replica = start_replica(&etcd, 1, true).await;
    fragment(&etcd, 4, 2).await;
    let [first, second] = etcd.followers().await;
    let held = proxy.hold(|call| call.method == DEFRAGMENT);
    let value = defragment(&etcd, "").await;
    wait_until("a member is asked", START_TIMEOUT, async || held.has_waiting_calls()).await;
    let calls = async || proxy.take_calls().into_iter().filter(|call| call.method == DEFRAGMENT).count();
    let mut asked = calls().await;
    let started = tokio::time::Instant::now();
    while started.elapsed() < CLAIM_TIME {
        let output = etcd.kubectl(&["delete", "pod", &second, "--dry-run=server"]).await;
        assert!(!output.success && output.stderr.contains(&first), "{first} does not answer: {output:?}");
        asked += calls().await;
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(asked, 1, "one replica, one member");
    held.release();
    let note = wait_for_completion(&etcd, &value).await;
    assert!(note.contains(": 3 members of "), "the other replica leaves the work to the first: {note}");
    sleep(CLAIM_TIME).await;
    assert_eq!(notes(&etcd, SET, "DefragmentationCompleted").await.len(), 1, "one replica answers");
    assert_eq!(calls().await, 2, "the other two members, once each");
    drop(other_replica);
}

#[tokio::test]
async fn another_replica_continues_after_the_first_was_killed() {
    let _turn = Turn::start().await;
    let (mut etcd, proxy) = start_behind_proxies().await;
    fragment(&etcd, 4, 2).await;
    let held = proxy.hold(|call| call.method == DEFRAGMENT);
    let value = defragment(&etcd, "").await;
    wait_until("a member is asked", START_TIMEOUT, async || held.has_waiting_calls()).await;
    let other_replica = start_replica(&etcd, 1, true).await;
    etcd.guard.kill();
    held.release();
    etcd.expire_reservations().await;
    wait_for_completion(&etcd, &value).await;
    assert_defragmented(&etcd).await;
    drop(other_replica);
}
