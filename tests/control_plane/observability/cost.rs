//! Reuse of what the guard has read before: denials from the last snapshot, pods of members, watches. Also tests concurrent
//! decisions that write the same reservations.

use std::{collections::BTreeSet, path::Path, time::Duration};

use etcd_client::MemberAddOptions;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::sleep;

use test_support::{
    etcd::fourth_member,
    guard::{
        process::GuardProcess,
        review::{deletion_review, dry_run_review, verdict},
    },
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    http_client::Connection,
    kubernetes::{
        api_proxy::{ApiServerProxy, Call},
        control_plane::ControlPlane,
    },
    wait::wait_until,
};

const PATH: &str = "/validate?timeout=10s";
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
    let control_plane = ControlPlane::shared();
    let files = tempfile::tempdir_in(&control_plane.dir).unwrap();
    let proxy = proxy(control_plane, files.path()).await;
    let kubeconfig = Some(proxy.kubeconfig.clone());
    let etcd = GuardedCluster::start_as(Setup { kubeconfig, ..Setup::default() }).await;
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
