//! What a verdict costs: calls of the apiserver and probe rounds, counted by a proxy and by the guard itself; and what
//! becomes of two decisions that meet at the record.

use std::{
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

use etcd_client::MemberAddOptions;
use k8s_openapi::api::core::v1::Pod;
use tokio::time::sleep;

use crate::support::{
    apiserver_proxy::{ApiserverProxy, Call},
    control_plane::ControlPlane,
    fourth_member,
    guard_process::GuardProcess,
    guarded_cluster::{BYSTANDER, GuardedCluster, START_LIMIT, Setup},
    http_client::Connection,
    in_time::{TRIES, in_time},
    process_node::Order,
    review::{deletion_of, dry_run_of, eviction_of, verdict},
    wait::until,
};

const PATH: &str = "/validate?timeout=10s";
const ROUNDS: &str = "etcd_guard_probe_duration_seconds_count";
const RESERVATIONS: &str = "etcd_guard_reservations";

/// A cluster whose guard reaches the apiserver through a proxy.
async fn start() -> (GuardedCluster, ApiserverProxy, tempfile::TempDir) {
    let control_plane = ControlPlane::shared();
    let files = tempfile::tempdir_in(&control_plane.dir).unwrap();
    let proxy = proxy(control_plane, files.path()).await;
    let kubeconfig = Some(proxy.kubeconfig.clone());
    let etcd = GuardedCluster::start_as(Setup { kubeconfig, ..Setup::default() }).await;
    (etcd, proxy, files)
}

async fn proxy(control_plane: &ControlPlane, files: &Path) -> ApiserverProxy {
    ApiserverProxy::start(&control_plane.guard_kubeconfig(), files.join("proxy.kubeconfig")).await
}

pub(crate) async fn ask(guard: &GuardProcess, review: String) -> (bool, String) {
    let mut connection = Connection::tls(guard.https(), &guard.ca_pem).await.unwrap();
    verdict(&connection.post(PATH, review).await.unwrap().body)
}

/// Asks until a yes needs no claim from the apiserver: connections are open, the cluster's id and its claims are known.
async fn warm_up(etcd: &GuardedCluster, proxy: &ApiserverProxy, pod: &Pod) {
    until("the watch of claims is known", START_LIMIT, async || {
        proxy.news();
        let (allowed, message) = ask(&etcd.guard, dry_run_of(pod)).await;
        assert!(allowed, "{message}");
        !proxy.news().iter().any(|call| call.path.contains("/persistentvolumeclaims/"))
    })
    .await;
    ask(&etcd.guard, dry_run_of(pod)).await;
    proxy.news();
}

/// The calls that decisions made. A watch of what another test began may call in between, and a new guard asks for the
/// apiserver's version when it comes to it.
fn news(proxy: &ApiserverProxy) -> Vec<Call> {
    let mut calls = proxy.news();
    calls.retain(|call| !call.is_of_a_watch() && call.path != "/version");
    calls
}

fn words(calls: &[Call]) -> Vec<String> {
    calls.iter().map(|call| format!("{} {}", call.method, call.path)).collect()
}

/// Asks what is answered by a yes, and says what it cost: each member's pod and the record are read, by their names, and the record is
/// written, by a call of this method.
async fn assert_few_calls(etcd: &GuardedCluster, proxy: &ApiserverProxy, review: String, write: &str) {
    let rounds = etcd.guard.metric(ROUNDS).await;
    let started = Instant::now();
    let (allowed, message) = ask(&etcd.guard, review).await;
    let took = started.elapsed();
    assert!(allowed, "{message}");
    let calls = news(proxy);
    let Some((last, reads)) = calls.split_last() else { panic!("no call of the apiserver") };
    let mut pods: Vec<&str> = reads
        .iter()
        .filter(|call| call.reads_pod())
        .filter_map(|call| call.path.rsplit('/').next())
        .collect();
    pods.sort_unstable();
    assert_eq!(pods, GuardedCluster::names(), "{:?}", words(&calls));
    assert_eq!(reads.iter().filter(|call| call.reads_lease()).count(), 1, "{:?}", words(&calls));
    assert_eq!(reads.len(), pods.len() + 1, "{:?}", words(&calls));
    assert!(last.writes_lease() && last.method == write, "{:?}", words(&calls));
    assert_eq!(etcd.guard.metric(ROUNDS).await - rounds, 1, "probe rounds");
    assert_eq!(etcd.guard.metric(RESERVATIONS).await, 1);
    // Past the capture of what passing tests print.
    let told =
        format!("a yes: {} calls, 1 round, {took:?} with a new TLS connection to the guard\n", calls.len());
    std::io::stderr().write_all(told.as_bytes()).unwrap();
}

#[tokio::test]
async fn a_yes_costs_one_round_a_read_of_each_pod_and_of_the_record_and_a_write() {
    let (etcd, proxy, _files) = start().await;
    let follower = etcd.pods.get(&etcd.followers().await[0]).await.unwrap();
    warm_up(&etcd, &proxy, &follower).await;
    assert_eq!(etcd.guard.metric(RESERVATIONS).await, 0, "a dry run reserves nothing");
    // The first creates the record, the second changes it.
    for write in ["POST", "PUT"] {
        assert_few_calls(&etcd, &proxy, deletion_of(&follower), write).await;
    }
}

/// Its reservation is of a pod that is not among those of these names.
#[tokio::test]
async fn after_a_pod_was_replaced_the_pods_are_listed_once() {
    let (etcd, proxy, _files) = start().await;
    let [first, second] = etcd.followers().await;
    let second = etcd.pods.get(&second).await.unwrap();
    warm_up(&etcd, &proxy, &second).await;
    let uid = etcd.uid(&first).await;
    etcd.delete(&first).await.unwrap();
    etcd.wait_until_back(&first, &uid).await;
    for lists in [1, 0] {
        proxy.news();
        let rounds = etcd.guard.metric(ROUNDS).await;
        let (allowed, message) = ask(&etcd.guard, dry_run_of(&second)).await;
        assert!(allowed, "{message}");
        let calls = news(&proxy);
        assert_eq!(calls.iter().filter(|call| call.lists_pods()).count(), lists, "{:?}", words(&calls));
        assert_eq!(etcd.guard.metric(ROUNDS).await - rounds, 1, "probe rounds");
    }
}

/// The pods that were known before are not all that it takes any more.
#[tokio::test]
async fn a_member_that_is_added_counts_though_the_pods_were_known_before() {
    let (etcd, proxy, _files) = start().await;
    let follower = etcd.pods.get(&etcd.followers().await[0]).await.unwrap();
    warm_up(&etcd, &proxy, &follower).await;
    fourth_member::add(&etcd, MemberAddOptions::new()).await;
    proxy.news();
    let (allowed, message) = ask(&etcd.guard, dry_run_of(&follower)).await;
    assert!(!allowed && message.contains("of 4"), "{message}");
    assert!(news(&proxy).iter().any(Call::lists_pods));
}

/// The review of an eviction carries no pod.
#[tokio::test]
async fn a_yes_to_an_eviction_costs_no_more() {
    let (etcd, proxy, files) = start().await;
    let follower = etcd.pods.get(&etcd.followers().await[0]).await.unwrap();
    warm_up(&etcd, &proxy, &follower).await;
    for write in ["POST", "PUT"] {
        assert_few_calls(&etcd, &proxy, eviction_of(&follower), write).await;
    }

    let bystander = etcd.pods.get(BYSTANDER).await.unwrap();
    assert!(ask(&etcd.guard, eviction_of(&bystander)).await.0);
    let pod = format!("GET /api/v1/namespaces/{}/pods/{BYSTANDER}", etcd.namespace);
    assert_eq!(words(&news(&proxy)), [pod], "a pod that runs no etcd is not listed with all others");

    // Of a guard that knows nothing yet.
    let new = GuardProcess::start(&proxy.kubeconfig, &files.path().join("new")).await;
    proxy.news();
    let (allowed, message) = ask(&new, eviction_of(&follower)).await;
    assert!(allowed, "{message}");
    let mut calls = news(&proxy);
    // Its watch of claims may not know this one yet.
    calls.retain(|call| !call.path.contains("/persistentvolumeclaims/"));
    let [pods, records, write] = &calls[..] else { panic!("{:?}", words(&calls)) };
    assert!(pods.lists_pods() && records.method == "GET" && write.method == "PUT", "{:?}", words(&calls));
    assert_eq!(new.metric(ROUNDS).await, 1, "probe rounds");
}

/// Of a guard that knows nothing yet: which record to read, only the round tells.
#[tokio::test]
async fn a_first_yes_costs_one_round_and_holds_for_the_others_too() {
    let (etcd, _proxy, files) = start().await;
    let [first, second] = etcd.followers().await;
    let (first, second) = (etcd.pods.get(&first).await.unwrap(), etcd.pods.get(&second).await.unwrap());
    let new = GuardProcess::start(&etcd.control_plane.guard_kubeconfig(), &files.path().join("new")).await;
    let (allowed, message) = ask(&new, deletion_of(&first)).await;
    assert!(allowed, "{message}");
    assert_eq!(new.metric(ROUNDS).await, 1, "probe rounds");
    // A second new one reads in all records what the first one wrote in one of them.
    let newer =
        GuardProcess::start(&etcd.control_plane.guard_kubeconfig(), &files.path().join("newer")).await;
    let (allowed, message) = ask(&newer, deletion_of(&second)).await;
    let first = first.metadata.name.unwrap();
    assert!(!allowed && message.contains(&format!("{first} is on the way out")), "{message}");
    assert_eq!(newer.metric(ROUNDS).await, 1, "probe rounds");
}

#[tokio::test]
async fn a_first_verdict_on_a_cluster_with_a_frozen_member_comes_in_time() {
    let (etcd, _proxy, files) = start().await;
    let frozen = etcd.followers().await[0].clone();
    let pod = etcd.pods.get(&frozen).await.unwrap();
    let mut new = Vec::new();
    for n in 0..TRIES {
        let files = files.path().join(n.to_string());
        new.push(GuardProcess::start(&etcd.control_plane.guard_kubeconfig(), &files).await);
    }
    etcd.order(&frozen, Order::Pause).await;
    let (allowed, message) = in_time(async || ask(&new.pop().unwrap(), deletion_of(&pod)).await).await;
    assert!(allowed, "{message}");
}

/// Of two who ask about the leader so long after the last look, the first looks anew and is held up: whether the second is answered
/// before it.
async fn second_is_answered_first(etcd: &GuardedCluster, proxy: &ApiserverProxy, after: Duration) -> bool {
    let leader = etcd.pods.get(&etcd.leader().await).await.unwrap();
    let (allowed, message) = ask(&etcd.guard, dry_run_of(&leader)).await;
    assert!(!allowed, "{message}");
    sleep(after).await;
    let reads = proxy.hold(Call::reads_pod);
    let second = async {
        until("a new look is under way", START_LIMIT, async || reads.is_waited_at()).await;
        ask(&etcd.guard, dry_run_of(&leader)).await
    };
    tokio::select! {
        _ = ask(&etcd.guard, dry_run_of(&leader)) => false,
        (allowed, message) = second => {
            assert!(!allowed && message.contains("is the leader"), "{message}");
            true
        }
    }
}

#[tokio::test]
async fn of_those_who_ask_at_once_only_who_looks_waits_for_the_look() {
    let (etcd, proxy, _files) = start().await;
    // A busy machine may not come to ask before the last look is too old.
    until("a denial while a look is under way", START_LIMIT, async || {
        second_is_answered_first(&etcd, &proxy, Duration::from_millis(600)).await
    })
    .await;
}

#[tokio::test]
async fn a_look_that_is_older_than_a_second_denies_nobody() {
    let (etcd, proxy, _files) = start().await;
    assert!(!second_is_answered_first(&etcd, &proxy, Duration::from_millis(1100)).await);
}

/// Each of the two is held up, and both wait at one moment.
#[tokio::test]
async fn the_pods_and_the_record_are_read_side_by_side() {
    let (etcd, proxy, _files) = start().await;
    let follower = etcd.pods.get(&etcd.followers().await[0]).await.unwrap();
    warm_up(&etcd, &proxy, &follower).await;
    let pods = proxy.hold(Call::reads_pod);
    let record = proxy.hold(Call::reads_lease);
    let ask_for_ever = async {
        loop {
            // The guard gives a read up after some seconds; on a busy machine once is not enough.
            ask(&etcd.guard, dry_run_of(&follower)).await;
        }
    };
    let both =
        until("both reads are under way", START_LIMIT, async || pods.is_waited_at() && record.is_waited_at());
    tokio::select! { () = both => {}, () = ask_for_ever => {} }
}

/// A claim that is being deleted is not there for the pod's successor: the deletion would end the member for good.
#[tokio::test]
async fn a_claim_whose_deletion_begins_is_heard_of_by_the_watch() {
    let (mut etcd, proxy, _files) = start().await;
    let follower = etcd.followers().await[0].clone();
    let pod = etcd.pods.get(&follower).await.unwrap();
    warm_up(&etcd, &proxy, &pod).await;
    let claim = format!("pvc/data-{follower}");
    let said = etcd
        .kubectl(&["annotate", &format!("namespace/{}", etcd.namespace), "etcd-guard.io/mode=audit"])
        .await;
    assert!(said.success, "{said:?}");
    until("the claim may be deleted", START_LIMIT, async || {
        etcd.kubectl(&["delete", &claim, "--wait=false"]).await.success
    })
    .await;
    let mode = format!("namespace/{}", etcd.namespace);
    let said = etcd.kubectl(&["annotate", &mode, "etcd-guard.io/mode-"]).await;
    assert!(said.success, "{said:?}");
    etcd.guard.news().await;
    until("the pod's deletion is denied", START_LIMIT, async || !ask(&etcd.guard, dry_run_of(&pod)).await.0)
        .await;
    assert!(etcd.guard.news().await.contains(&String::from("DELETE denied PermanentLoss")));
}

/// Edge case 27: the record exists, two replicas read the same version of it, and each would say yes: the second to write starts over,
/// and finds what the first one wrote.
#[tokio::test]
async fn of_two_replicas_that_read_the_same_record_one_says_yes() {
    let (etcd, proxy, files) = start().await;
    let [first, second] = etcd.followers().await;
    // The record comes to exist, and holds nobody: the pod of its only reservation is gone.
    let uid = etcd.uid(&first).await;
    etcd.delete(&first).await.unwrap();
    etcd.wait_until_back(&first, &uid).await;
    let other =
        GuardProcess::start(&etcd.control_plane.guard_kubeconfig(), &files.path().join("other")).await;
    let (first, second) = (etcd.pods.get(&first).await.unwrap(), etcd.pods.get(&second).await.unwrap());
    warm_up(&etcd, &proxy, &first).await;
    until("the other replica would say yes", START_LIMIT, async || ask(&other, dry_run_of(&second)).await.0)
        .await;

    let write = proxy.hold(Call::writes_lease);
    let (late, early) = tokio::join!(ask(&etcd.guard, deletion_of(&first)), async {
        until("the first replica is about to write", START_LIMIT, async || write.is_waited_at()).await;
        let early = ask(&other, deletion_of(&second)).await;
        write.release();
        early
    });
    assert!(early.0, "{}", early.1);
    let second = second.metadata.name.unwrap();
    assert!(!late.0 && late.1.contains(&format!("{second} is on the way out")), "{}", late.1);
}
