//! The cost of a verdict: calls of the API server and probes, counted by a proxy and by the guard's metrics. Also tests
//! concurrent decisions that write the same reservations.

use std::{
    collections::BTreeSet,
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

use etcd_client::MemberAddOptions;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::sleep;

use test_support::{
    deadline::{MAX_ATTEMPTS, within_deadline},
    etcd::fourth_member,
    guard::{
        process::GuardProcess,
        review::{deletion_review, dry_run_review, eviction_review, verdict},
    },
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup, UNRELATED_POD},
    http_client::Connection,
    kubernetes::{
        api_proxy::{ApiServerProxy, Call},
        control_plane::ControlPlane,
    },
    layout::{Layout, Topology},
    process_node::ProcessAction,
    wait::wait_until,
};

const PATH: &str = "/validate?timeout=10s";
const ROUNDS: &str = "etcd_guard_probe_duration_seconds_count";

/// Returns the number of reserved pods of the cluster. The guard's gauge also counts reservations of other tests.
pub(crate) async fn reserved_pods(etcd: &GuardedCluster) -> usize {
    let leases: Api<Lease> = Api::namespaced(etcd.client.clone(), "etcd-guard");
    let listed = leases.list(&ListParams::default()).await.unwrap();
    let texts = listed.items.iter().filter_map(|lease| lease.annotations().get("etcd-guard.io/reservations"));
    let all = texts.flat_map(|text| serde_json::from_str::<Vec<Value>>(text).unwrap());
    let own = all.filter(|reservation| reservation["namespace"] == etcd.namespace.as_str());
    own.map(|reservation| reservation["uid"].to_string()).collect::<BTreeSet<String>>().len()
}

/// Starts a cluster whose guard reaches the API server through a proxy.
async fn start() -> (GuardedCluster, ApiServerProxy, TempDir) {
    start_layout(Layout::default()).await
}

async fn start_layout(layout: Layout) -> (GuardedCluster, ApiServerProxy, TempDir) {
    let control_plane = ControlPlane::shared();
    let files = tempfile::tempdir_in(&control_plane.dir).unwrap();
    let proxy = proxy(control_plane, files.path()).await;
    let kubeconfig = Some(proxy.kubeconfig.clone());
    let etcd = GuardedCluster::start_as(Setup { layout, kubeconfig, ..Setup::default() }).await;
    (etcd, proxy, files)
}

async fn proxy(control_plane: &ControlPlane, files: &Path) -> ApiServerProxy {
    ApiServerProxy::start(&control_plane.guard_kubeconfig(), files.join("proxy.kubeconfig")).await
}

pub(crate) async fn send_review(guard: &GuardProcess, review: String) -> (bool, String) {
    let mut connection = Connection::tls(guard.https(), &guard.ca_pem).await.unwrap();
    verdict(&connection.post(PATH, review).await.unwrap().body)
}

/// Sends requests until an approval needs no read of claims: connections are open, and the cluster id and the claims
/// are known.
async fn warm_up(etcd: &GuardedCluster, proxy: &ApiServerProxy, pod: &Pod) {
    wait_until("the watch of claims has synchronized", START_TIMEOUT, async || {
        proxy.take_calls();
        let (allowed, message) = send_review(&etcd.guard, dry_run_review(pod)).await;
        assert!(allowed, "{message}");
        !proxy.take_calls().iter().any(|call| call.path.contains("/persistentvolumeclaims/"))
    })
    .await;
    send_review(&etcd.guard, dry_run_review(pod)).await;
    proxy.take_calls();
}

/// Returns the calls that belong to decisions. Watches may have calls in between, and a new guard reads the version of
/// the API server.
fn decision_calls(proxy: &ApiServerProxy) -> Vec<Call> {
    let mut calls = proxy.take_calls();
    calls.retain(|call| !call.is_background() && call.path != "/version");
    calls
}

fn summaries(calls: &[Call]) -> Vec<String> {
    calls.iter().map(|call| format!("{} {}", call.method, call.path)).collect()
}

/// Maximum number of calls of an approval beside one read of each member's pod: reads and writes of reservations.
const MAX_FURTHER_CALLS: usize = 5;

/// Number of approvals of a test. The first ones of a cluster can need more calls than later ones.
const APPROVALS: usize = 3;

/// Sends a review that is approved, and asserts its cost: one probe round, one read by name of each member's pod before the
/// reservation is written, and few other calls.
async fn assert_few_calls(etcd: &GuardedCluster, proxy: &ApiServerProxy, review: String) {
    let rounds = etcd.guard.metric(ROUNDS).await;
    let started = Instant::now();
    let (allowed, message) = send_review(&etcd.guard, review).await;
    let took = started.elapsed();
    assert!(allowed, "{message}");
    let calls = decision_calls(proxy);
    // The last one: owners are recorded in the background, in Leases of their own.
    let written = calls.iter().rposition(Call::writes_lease).expect("the Lease is written");
    let mut pods: Vec<&str> = calls[..written]
        .iter()
        .filter(|call| call.reads_pod())
        .filter_map(|call| call.path.rsplit('/').next())
        .collect();
    pods.sort_unstable();
    assert_eq!(pods, etcd.pod_names().await, "{:?}", summaries(&calls));
    assert!(calls.len() <= pods.len() + MAX_FURTHER_CALLS, "{:?}", summaries(&calls));
    assert_eq!(etcd.guard.metric(ROUNDS).await - rounds, 1, "probe rounds");
    assert_eq!(reserved_pods(etcd).await, 1);
    // Written to stderr directly, because the test harness captures the output of passing tests.
    let line = format!(
        "approval: {} calls, 1 probe, {took:?} with a new TLS connection to the guard\n",
        calls.len()
    );
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

#[tokio::test]
async fn approval_costs_one_probe_and_few_calls() {
    let (etcd, proxy, _files) = start().await;
    let follower = etcd.pods.get(&etcd.followers().await[0]).await.unwrap();
    warm_up(&etcd, &proxy, &follower).await;
    assert_eq!(reserved_pods(&etcd).await, 0, "a dry run reserves nothing");
    for _ in 0..APPROVALS {
        assert_few_calls(&etcd, &proxy, deletion_review(&follower)).await;
    }
}

/// Each voter has a StatefulSet of its own.
#[tokio::test]
async fn reads_pods_of_other_owners_by_name() {
    let (etcd, proxy, _files) = start_layout(Layout::new(Topology::SetPerMember)).await;
    let follower = etcd.pods.get(&etcd.followers().await[0]).await.unwrap();
    warm_up(&etcd, &proxy, &follower).await;
    for _ in 0..APPROVALS {
        assert_few_calls(&etcd, &proxy, deletion_review(&follower)).await;
    }
}

/// Policies can be annotations of the `ReplicaSet` or of the Deployment.
#[tokio::test]
async fn approval_reads_each_owner_of_the_pod_once() {
    let (etcd, proxy, _files) = start_layout(Layout::new(Topology::DeploymentPerMember)).await;
    let follower = etcd.pods.get(&etcd.followers().await[0]).await.unwrap();
    warm_up(&etcd, &proxy, &follower).await;
    let (allowed, message) = send_review(&etcd.guard, deletion_review(&follower)).await;
    assert!(allowed, "{message}");
    let calls = summaries(&decision_calls(&proxy));
    let reads = |resource: &str| calls.iter().filter(|call| call.contains(&format!("/{resource}/"))).count();
    assert_eq!(["pods", "replicasets", "deployments"].map(reads), [3, 1, 1], "{calls:?}");
    assert!(calls.len() <= 5 + MAX_FURTHER_CALLS, "{calls:?}");
}

/// The reservation belongs to a pod uid that is not in the member pod cache.
#[tokio::test]
async fn lists_pods_once_after_replacement() {
    let (etcd, proxy, _files) = start().await;
    let [first, second] = etcd.followers().await;
    let second = etcd.pods.get(&second).await.unwrap();
    warm_up(&etcd, &proxy, &second).await;
    let uid = etcd.uid(&first).await;
    etcd.delete(&first).await.unwrap();
    etcd.wait_until_replaced(&first, &uid).await;
    let mut lists = Vec::new();
    wait_until("an approval needs no list of the pods", START_TIMEOUT, async || {
        proxy.take_calls();
        let (allowed, message) = send_review(&etcd.guard, dry_run_review(&second)).await;
        assert!(allowed, "{message}");
        lists.push(decision_calls(&proxy).iter().filter(|call| call.lists_pods()).count());
        lists.last() == Some(&0)
    })
    .await;
    // A member that responds late on a busy machine causes another round of probes.
    assert!((1..=2).contains(&lists.iter().sum::<usize>()), "{lists:?}");
}

/// The member pod cache does not contain all voters any more.
#[tokio::test]
async fn added_member_counts_despite_member_pod_cache() {
    let (etcd, proxy, _files) = start().await;
    let follower = etcd.pods.get(&etcd.followers().await[0]).await.unwrap();
    warm_up(&etcd, &proxy, &follower).await;
    fourth_member::add(&etcd, MemberAddOptions::new()).await;
    proxy.take_calls();
    let (allowed, message) = send_review(&etcd.guard, dry_run_review(&follower)).await;
    assert!(!allowed && message.contains("of 4"), "{message}");
    assert!(decision_calls(&proxy).iter().any(Call::lists_pods));
}

/// The review of an eviction does not contain the pod.
#[tokio::test]
async fn eviction_approval_costs_no_more() {
    let (etcd, proxy, files) = start().await;
    let follower = etcd.pods.get(&etcd.followers().await[0]).await.unwrap();
    warm_up(&etcd, &proxy, &follower).await;
    for _ in 0..APPROVALS {
        assert_few_calls(&etcd, &proxy, eviction_review(&follower)).await;
    }

    let unrelated = etcd.pods.get(UNRELATED_POD).await.unwrap();
    assert!(send_review(&etcd.guard, eviction_review(&unrelated)).await.0);
    let pod = format!("GET /api/v1/namespaces/{}/pods/{UNRELATED_POD}", etcd.namespace);
    let mut calls = decision_calls(&proxy);
    // Owners are recorded in the background, in Leases of their own.
    calls.retain(|call| !call.writes_lease());
    assert_eq!(summaries(&calls), [pod], "a pod without etcd causes no list");

    // A new guard with empty caches.
    let new = GuardProcess::start(&proxy.kubeconfig, &files.path().join("new")).await;
    proxy.take_calls();
    let (allowed, message) = send_review(&new, eviction_review(&follower)).await;
    assert!(allowed, "{message}");
    let mut calls = decision_calls(&proxy);
    // The watch of claims may not have synchronized yet.
    calls.retain(|call| !call.path.contains("/persistentvolumeclaims/"));
    // The pods are listed once. Before a second probe round, each is read again.
    assert_eq!(calls.iter().filter(|call| call.lists_pods()).count(), 1, "{:?}", summaries(&calls));
    assert!(calls.iter().any(Call::writes_lease), "{:?}", summaries(&calls));
    let pods = etcd.pod_names().await.len();
    assert!(calls.len() <= 1 + pods + MAX_FURTHER_CALLS, "{:?}", summaries(&calls));
    assert!(new.metric(ROUNDS).await <= 2, "probe rounds");
}

/// The name of the Lease is known before the probe.
#[tokio::test]
async fn first_approval_is_cheap_and_shared() {
    let (etcd, proxy, files) = start().await;
    let [first, second] = etcd.followers().await;
    let (first, second) = (etcd.pods.get(&first).await.unwrap(), etcd.pods.get(&second).await.unwrap());
    let new = GuardProcess::start(&proxy.kubeconfig, &files.path().join("new")).await;
    proxy.take_calls();
    let (allowed, message) = send_review(&new, deletion_review(&first)).await;
    assert!(allowed, "{message}");
    let mut calls = decision_calls(&proxy);
    // The watch of claims may not have synchronized yet.
    calls.retain(|call| !call.path.contains("/persistentvolumeclaims/"));
    assert_eq!(calls.iter().filter(|call| call.lists_pods()).count(), 1, "{:?}", summaries(&calls));
    let pods = etcd.pod_names().await.len();
    assert!(calls.len() <= 1 + pods + MAX_FURTHER_CALLS, "{:?}", summaries(&calls));
    assert!(new.metric(ROUNDS).await <= 2, "probe rounds");
    // Another new guard finds the reservation of the first one.
    let newer =
        GuardProcess::start(&etcd.control_plane.guard_kubeconfig(), &files.path().join("newer")).await;
    let (allowed, message) = send_review(&newer, deletion_review(&second)).await;
    let first = first.metadata.name.unwrap();
    assert!(!allowed && message.contains(&format!("{first} is being deleted")), "{message}");
    assert!(newer.metric(ROUNDS).await <= 2, "probe rounds");
}

#[tokio::test]
async fn first_verdict_with_frozen_member_is_in_time() {
    let (etcd, _proxy, files) = start().await;
    let frozen = etcd.followers().await[0].clone();
    let pod = etcd.pods.get(&frozen).await.unwrap();
    let mut new = Vec::new();
    // Only the first verdict of a guard finds no connection.
    for n in 0..MAX_ATTEMPTS {
        let files = files.path().join(n.to_string());
        new.push(GuardProcess::start(&etcd.control_plane.guard_kubeconfig(), &files).await);
    }
    etcd.apply(&frozen, ProcessAction::Pause).await;
    let (allowed, message) = within_deadline(async || {
        send_review(&new.pop().expect("an attempt in time"), deletion_review(&pod)).await
    })
    .await;
    assert!(allowed, "{message}");
}

/// Sends two requests for the leader, this long after the last snapshot. The first one takes a new snapshot, which is
/// delayed. Returns whether the second one is answered first.
async fn second_is_answered_first(etcd: &GuardedCluster, proxy: &ApiServerProxy, after: Duration) -> bool {
    let leader = etcd.pods.get(&etcd.leader().await).await.unwrap();
    let (allowed, message) = send_review(&etcd.guard, dry_run_review(&leader)).await;
    assert!(!allowed, "{message}");
    sleep(after).await;
    let reads = proxy.hold(Call::reads_pod);
    let second = async {
        wait_until("a new snapshot is being taken", START_TIMEOUT, async || reads.has_waiting_calls()).await;
        send_review(&etcd.guard, dry_run_review(&leader)).await
    };
    tokio::select! {
        _ = send_review(&etcd.guard, dry_run_review(&leader)) => false,
        (allowed, message) = second => {
            assert!(!allowed && message.contains("LeaderProtected: "), "{message}");
            true
        }
    }
}

#[tokio::test]
async fn second_request_uses_cached_denial() {
    let (etcd, proxy, _files) = start().await;
    // On a busy machine, the requests may start after the last snapshot has expired.
    wait_until("a denial while a snapshot is being taken", START_TIMEOUT, async || {
        second_is_answered_first(&etcd, &proxy, Duration::from_millis(600)).await
    })
    .await;
}

#[tokio::test]
async fn expired_snapshot_is_not_used_for_denials() {
    let (etcd, proxy, _files) = start().await;
    assert!(!second_is_answered_first(&etcd, &proxy, Duration::from_millis(1100)).await);
}

/// Both reads are delayed, and both wait at the same time.
#[tokio::test]
async fn reads_pods_and_reservations_concurrently() {
    let (etcd, proxy, _files) = start().await;
    let follower = etcd.pods.get(&etcd.followers().await[0]).await.unwrap();
    warm_up(&etcd, &proxy, &follower).await;
    let pods = proxy.hold(Call::reads_pod);
    let record = proxy.hold(Call::reads_lease);
    let send_repeatedly = async {
        loop {
            // The guard's reads time out after some seconds, so a busy machine may need several attempts.
            send_review(&etcd.guard, dry_run_review(&follower)).await;
        }
    };
    let both = wait_until("both reads are under way", START_TIMEOUT, async || {
        pods.has_waiting_calls() && record.has_waiting_calls()
    });
    tokio::select! { () = both => {}, () = send_repeatedly => {} }
}

/// A successor cannot use a terminating claim, so the deletion would be a permanent loss.
#[tokio::test]
async fn watch_reports_terminating_claim() {
    let (mut etcd, proxy, _files) = start().await;
    let follower = etcd.followers().await[0].clone();
    let pod = etcd.pods.get(&follower).await.unwrap();
    warm_up(&etcd, &proxy, &pod).await;
    let claim = format!("pvc/data-{follower}");
    let output = etcd
        .kubectl(&["annotate", &format!("namespace/{}", etcd.namespace), "etcd-guard.io/mode=audit"])
        .await;
    assert!(output.success, "{output:?}");
    wait_until("the deletion of the claim is approved", START_TIMEOUT, async || {
        etcd.kubectl(&["delete", &claim, "--wait=false"]).await.success
    })
    .await;
    let mode = format!("namespace/{}", etcd.namespace);
    let output = etcd.kubectl(&["annotate", &mode, "etcd-guard.io/mode-"]).await;
    assert!(output.success, "{output:?}");
    etcd.guard.new_verdicts().await;
    wait_until("the pod's deletion is denied", START_TIMEOUT, async || {
        !send_review(&etcd.guard, dry_run_review(&pod)).await.0
    })
    .await;
    assert!(etcd.guard.new_verdicts().await.contains(&String::from("DELETE denied PermanentLoss")));
}

/// The Lease exists, and two replicas that read the same version would both approve. The second write
/// fails, and its evaluation restarts with the first reservation.
#[tokio::test]
async fn one_of_two_replicas_with_same_lease_approves() {
    let (etcd, proxy, files) = start().await;
    let [first, second] = etcd.followers().await;
    // Creates the Lease with an expired effect: the pod of its only reservation has been replaced.
    let uid = etcd.uid(&first).await;
    etcd.delete(&first).await.unwrap();
    etcd.wait_until_replaced(&first, &uid).await;
    let other =
        GuardProcess::start(&etcd.control_plane.guard_kubeconfig(), &files.path().join("other")).await;
    let (first, second) = (etcd.pods.get(&first).await.unwrap(), etcd.pods.get(&second).await.unwrap());
    warm_up(&etcd, &proxy, &first).await;
    wait_until("the other replica would approve", START_TIMEOUT, async || {
        send_review(&other, dry_run_review(&second)).await.0
    })
    .await;

    let write = proxy.hold(Call::writes_lease);
    let (late, early) = tokio::join!(send_review(&etcd.guard, deletion_review(&first)), async {
        wait_until("the first replica is about to write", START_TIMEOUT, async || write.has_waiting_calls())
            .await;
        let early = send_review(&other, deletion_review(&second)).await;
        write.release();
        early
    });
    assert!(early.0, "{}", early.1);
    let second = second.metadata.name.unwrap();
    assert!(!late.0 && late.1.contains(&format!("{second} is being deleted")), "{}", late.1);
}
