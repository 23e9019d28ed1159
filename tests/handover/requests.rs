//! Requests to move leadership, as annotations.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::DeleteParams;
use tokio::time::{Instant, sleep};

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    layout::{Layout, Topology},
    wait::wait_until,
};

use crate::cluster::{
    QUIET_TIME, Turn, annotate, notes, request, start, start_replica, term, wait_for_move, wait_for_note,
};
use crate::interrupted::write_entry;

const SET: &str = "StatefulSet/etcd";

/// Starts a cluster with the default policy `deny`, which does not forbid a move that a person requests.
async fn start_with_default_policy() -> GuardedCluster {
    GuardedCluster::start().await
}

#[tokio::test]
async fn request_moves_leadership_to_the_named_pod() {
    let _turn = Turn::start().await;
    let etcd = start_with_default_policy().await;
    let leader = etcd.leader().await;
    let [_, other] = etcd.followers().await;
    let (before, value) = (term(&etcd).await, request(&other));
    annotate(&etcd, "statefulset/etcd", &format!("etcd-guard.io/move-leader={value}")).await;
    let note = wait_for_note(&etcd, SET, "LeaderMoved", &format!("move-leader {value}: ")).await;
    let terms = format!("leadership moved from {leader} to {other} (term {before} to {}) in ", before + 1);
    assert!(note.contains(&terms) && note.ends_with(" ms"), "{note}");
    assert_eq!(etcd.leader().await, other);
    assert_eq!(term(&etcd).await, before + 1);
}

#[tokio::test]
async fn request_without_a_pod_moves_to_any_voter() {
    let _turn = Turn::start().await;
    let etcd = start_with_default_policy().await;
    let leader = etcd.leader().await;
    // Both requests are answered, although their events have the same reason.
    for _ in 0..2 {
        let (from, value) = (etcd.leader().await, request(""));
        annotate(&etcd, "statefulset/etcd", &format!("etcd-guard.io/move-leader={value}")).await;
        let note = wait_for_note(&etcd, SET, "LeaderMoved", &format!("move-leader {value}: ")).await;
        assert!(note.contains(&format!("leadership moved from {from} to ")), "{note}");
    }
    assert!(notes(&etcd, SET, "LeaderMoved").await.len() == 2, "first leader {leader}");
}

/// Three replicas, and the guards of no other test.
#[tokio::test]
async fn one_of_three_replicas_carries_out_a_request() {
    let _turn = Turn::start().await;
    let etcd = start_with_default_policy().await;
    let replicas = [start_replica(&etcd, 1, true).await, start_replica(&etcd, 2, true).await];
    let before = term(&etcd).await;
    let value = request("");
    annotate(&etcd, "statefulset/etcd", &format!("etcd-guard.io/move-leader={value}")).await;
    wait_for_note(&etcd, SET, "LeaderMoved", &format!("move-leader {value}: ")).await;
    sleep(QUIET_TIME).await;
    assert_eq!(term(&etcd).await, before + 1, "one move");
    assert_eq!(notes(&etcd, SET, "LeaderMoved").await.len(), 1);
    drop(replicas);
}

/// Whoever may annotate the StatefulSet writes a new value whenever the former one is visible.
#[tokio::test]
async fn repeated_requests_move_leadership_once_in_ten_seconds() {
    let _turn = Turn::start().await;
    let etcd = start_with_default_policy().await;
    let before = term(&etcd).await;
    let started = Instant::now();
    let mut requests = 0;
    while started.elapsed() < BETWEEN_MOVES {
        annotate(&etcd, "statefulset/etcd", &format!("etcd-guard.io/move-leader={}", request(""))).await;
        requests += 1;
    }
    assert!(requests >= 5, "{requests} requests");
    let moves = term(&etcd).await - before;
    assert!((1..=2).contains(&moves), "{moves} moves for {requests} requests");
    // The last request waits, and is answered.
    let last = request("");
    annotate(&etcd, "statefulset/etcd", &format!("etcd-guard.io/move-leader={last}")).await;
    wait_for_note(&etcd, SET, "LeaderMoved", &format!("move-leader {last}: ")).await;
}

/// The guard moves leadership of a cluster at most once in this time for requests.
const BETWEEN_MOVES: Duration = Duration::from_secs(10);

/// Number of requests whose latencies are measured.
const MEASURED_REQUESTS: usize = 10;

/// The limit for the answer to a request.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The time from a request until its event is read. It includes the call of `kubectl annotate` and those of `kubectl get events`.
#[tokio::test]
#[ignore = "measures; scripts/prove runs it"]
async fn latency_of_requests() {
    let _turn = Turn::start().await;
    let etcd = start_with_default_policy().await;
    let replicas = [start_replica(&etcd, 1, true).await, start_replica(&etcd, 2, true).await];
    let mut latencies = Vec::new();
    for _ in 0..MEASURED_REQUESTS {
        let value = request("");
        let requested = Instant::now();
        annotate(&etcd, "statefulset/etcd", &format!("etcd-guard.io/move-leader={value}")).await;
        wait_for_note(&etcd, SET, "LeaderMoved", &format!("move-leader {value}: ")).await;
        latencies.push(requested.elapsed());
        sleep(BETWEEN_MOVES).await;
    }
    drop(replicas);
    latencies.sort();
    let (median, longest) = (latencies[MEASURED_REQUESTS / 2], latencies[MEASURED_REQUESTS - 1]);
    println!(
        "result: {MEASURED_REQUESTS} requests to move leadership, three replicas: answered after {} ms (median), {} ms (longest)",
        median.as_millis(),
        longest.as_millis()
    );
    assert!(longest < ANSWER_LIMIT, "{latencies:?}");
}

#[tokio::test]
async fn ignores_old_requests_and_unguarded_namespaces() {
    let _turn = Turn::start().await;
    let etcd = start_with_default_policy().await;
    let (leader, before) = (etcd.leader().await, term(&etcd).await);
    let old = Timestamp::now() - SignedDuration::from_secs(90);
    annotate(&etcd, "statefulset/etcd", &format!("etcd-guard.io/move-leader=@{old}")).await;
    sleep(QUIET_TIME).await;
    assert_eq!((etcd.leader().await, term(&etcd).await), (leader, before), "a restored backup");

    let namespace = format!("namespace/{}", etcd.namespace);
    let output = etcd.kubectl_everywhere().run(&["label", &namespace, "etcd-guard.io/guard-"]).await;
    assert!(output.success, "{output:?}");
    sleep(QUIET_TIME).await;
    annotate(&etcd, "statefulset/etcd", &format!("etcd-guard.io/move-leader={}", request(""))).await;
    sleep(QUIET_TIME).await;
    assert_eq!(term(&etcd).await, before, "the namespace is not guarded");
    for reason in ["LeaderMoved", "LeaderMoveFailed", "LeaderMoveRejected"] {
        assert_eq!(notes(&etcd, SET, reason).await, [""; 0], "{reason}");
    }
}

#[tokio::test]
async fn answers_requests_that_cannot_be_carried_out() {
    let _turn = Turn::start().await;
    let etcd = start_with_default_policy().await;
    let before = term(&etcd).await;
    let value = request("web-0");
    annotate(&etcd, "statefulset/etcd", &format!("etcd-guard.io/move-leader={value}")).await;
    let note = wait_for_note(&etcd, SET, "LeaderMoveRejected", &format!("move-leader {value}: ")).await;
    assert!(note.contains("pod web-0 runs no member of ") && note.contains("kubectl -n "), "{note}");

    annotate(&etcd, "statefulset/etcd", "etcd-guard.io/move-leader=etcd-1").await;
    let note = wait_for_note(&etcd, SET, "LeaderMoveRejected", "move-leader etcd-1: ").await;
    assert!(note.contains("does not have the form POD@TIME"), "{note}");

    let leader = etcd.leader().await;
    let value = request(&leader);
    annotate(&etcd, "statefulset/etcd", &format!("etcd-guard.io/move-leader={value}")).await;
    let note = wait_for_note(&etcd, SET, "LeaderMoved", &format!("move-leader {value}: ")).await;
    assert!(note.contains(&format!("{leader} leads ")), "{note}");
    assert_eq!(term(&etcd).await, before, "leadership did not move");
}

#[tokio::test]
async fn request_on_a_pod_without_a_set_moves_leadership_away() {
    let _turn = Turn::start().await;
    let layout = Layout::new(Topology::BarePods);
    let etcd = GuardedCluster::start_as(Setup { layout, ..Setup::default() }).await;
    let leader = etcd.leader().await;
    let value = request("");
    annotate(&etcd, &format!("pod/{leader}"), &format!("etcd-guard.io/move-leader={value}")).await;
    let object = format!("Pod/{leader}");
    wait_for_note(
        &etcd,
        &object,
        "LeaderMoved",
        &format!("move-leader {value}: leadership moved from {leader} "),
    )
    .await;
    assert_ne!(wait_for_move(&etcd, &leader).await, leader);
}

/// The transferee must not be deleted while leadership moves to it. A handover takes a fraction of a second; this is the entry of
/// a replica that needs longer.
#[tokio::test]
async fn denies_deletion_of_transferee_during_a_handover() {
    let _turn = Turn::start().await;
    let etcd = start(false).await;
    let [_, other] = etcd.followers().await;
    write_entry(&etcd, "request/set/value", &other, term(&etcd).await).await;
    let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
    let denial = format!("DisruptionInProgress: {other} is taking over leadership of ");
    wait_until("the deletion of the transferee is denied", START_TIMEOUT, async || {
        let result = etcd.pods.delete(&other, &dry_run).await;
        result.is_err_and(|error| error.to_string().contains(&denial))
    })
    .await;
    wait_until("the entry expires", START_TIMEOUT, async || etcd.delete(&other).await.is_ok()).await;
}
