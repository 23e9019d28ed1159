//! The demo on real nodes: kubelets, containerd, etcd in pods, and the guard in its own image. Requires root.
//!
//! `scripts/demo` runs once; each test asserts one part of the output.

// A failed assertion is a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    fs,
    net::SocketAddr,
    process::{Command, ExitStatus},
    sync::LazyLock,
};

use axum::{Router, routing::get};
use http::header::CONTENT_TYPE;
use test_support::telemetry::prometheus::{Prometheus, panels};
use tokio::net::TcpListener;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/demo");

/// Warning of the guard on an approval. It proves that the guard evaluated the request.
const NO_VOTER_TO_SPARE: &str = "Warning: etcd prod/etcd has no voter to spare until etcd-";

/// Steps of the demo, in order.
const STEPS: [&str; 14] = [
    "status",
    "delete-leader",
    "move-leader",
    "delete-former-leader",
    "delete-follower",
    "delete-second",
    "delete-second-later",
    "drain",
    "evict-leader",
    "cordon",
    "handover",
    "handover-writes",
    "drain-node",
    "drain-writes",
];

/// The result of the demo. If the demo fails, the first test that reads the result prints the cause.
static DEMO_RUN: LazyLock<DemoRun> = LazyLock::new(run_demo);

/// The result of the demo.
#[derive(Debug)]
struct DemoRun {
    status: ExitStatus,
    steps: Vec<Step>,
    /// Metrics page of each replica of the guard after the last step.
    metrics: Vec<String>,
}

/// The result of one command.
#[derive(Debug)]
struct Step {
    id: String,
    exit_status: i32,
    /// Verdict that the demo reports.
    verdict: String,
    expected: String,
    output: String,
}

fn step(id: &str) -> &'static Step {
    let run = &*DEMO_RUN;
    run.steps
        .iter()
        .find(|step| step.id == id)
        .unwrap_or_else(|| panic!("the demo has no step {id}: {run:#?}"))
}

fn run_demo() -> DemoRun {
    let folder = tempfile::tempdir().unwrap();
    let (report, metrics) = (folder.path().join("report"), folder.path().join("metrics"));
    let mut demo = Command::new(DEMO);
    demo.args(["--debug", "--report"]).arg(&report).arg("--metrics").arg(&metrics);
    let status = demo.status().unwrap();
    let report = fs::read_to_string(&report).unwrap_or_default();
    assert!(!report.is_empty(), "scripts/demo ended with {status} before its first step");
    let pages = fs::read_dir(&metrics).unwrap().map(|page| fs::read_to_string(page.unwrap().path()).unwrap());
    DemoRun { status, steps: report.lines().map(read_step).collect(), metrics: pages.collect() }
}

/// Parses a line with the tab-separated fields id, command, exit status, verdict, expected verdict and output.
fn read_step(line: &str) -> Step {
    let fields: Vec<&str> = line.split('\t').collect();
    let [id, _command, exit_status, verdict, expected, output] = fields[..] else {
        panic!("not six fields: {line:?}");
    };
    Step {
        id: id.to_owned(),
        exit_status: exit_status.parse().unwrap(),
        verdict: verdict.to_owned(),
        expected: expected.to_owned(),
        output: output.to_owned(),
    }
}

#[track_caller]
fn assert_allowed(id: &str, expected: &str) {
    let step = step(id);
    assert_eq!(step.exit_status, 0, "{id}: {}", step.output);
    assert!(step.output.contains(expected), "{id}: {}", step.output);
}

#[track_caller]
fn assert_denied(id: &str, expected: &[&str]) {
    let step = step(id);
    assert_ne!(step.exit_status, 0, "{id}: {}", step.output);
    for expected in expected {
        assert!(step.output.contains(expected), "{id}: no {expected:?} in {}", step.output);
    }
}

#[test]
fn every_step_has_the_expected_verdict() {
    let run = &*DEMO_RUN;
    for step in &run.steps {
        assert_eq!(step.verdict, step.expected, "{}: {}", step.id, step.output);
    }
    assert_eq!(run.steps.iter().map(|step| &step.id).collect::<Vec<_>>(), STEPS);
    assert!(run.status.success(), "scripts/demo ended with {}", run.status);
}

#[test]
fn cluster_has_three_members_and_one_leader() {
    assert_allowed("status", "IS LEADER");
    let rows: Vec<&str> = step("status").output.split("\\n").filter(|row| row.contains(":2379")).collect();
    assert_eq!(rows.len(), 3, "{rows:#?}");
    // No member is a learner, so only the leader's row contains `true`.
    assert_eq!(rows.iter().filter(|row| row.contains(" true ")).count(), 1, "{rows:#?}");
}

#[test]
fn denies_leader_with_numbers_and_a_command() {
    assert_denied(
        "delete-leader",
        &[
            "Error from server (Forbidden): admission webhook \"guard.etcd-guard.io\" denied the request: \
             LeaderProtected: etcd-",
            " leads prod/etcd (member ",
            "3 of 3 voters healthy, quorum 2). Move leadership, then retry: kubectl etcd-guard move-leader -n prod etcd-",
            "\\nWithout the plugin: kubectl -n prod annotate --overwrite statefulset/etcd etcd-guard.io/move-leader=etcd-",
        ],
    );
}

#[test]
fn approves_follower_with_a_warning() {
    assert_allowed("delete-follower", "deleted");
    assert_allowed("delete-follower", NO_VOTER_TO_SPARE);
}

#[test]
fn denies_second_follower_at_once() {
    // The reason is DisruptionInProgress while the first pod is terminating, and QuorumAtRisk afterwards, or if the remaining voter
    // misses the deadline of the probe on a busy machine. In the last case, the number of healthy voters differs as well.
    let step = step("delete-second");
    let is_expected = |reason: &str| step.output.contains(&format!(" denied the request: {reason}: "));
    assert!(is_expected("DisruptionInProgress") || is_expected("QuorumAtRisk"), "{}", step.output);
    assert_denied("delete-second", &["(Forbidden)", " would have ", " of 3 voters healthy, quorum 2"]);
}

#[test]
fn approves_second_follower_after_the_first_returned() {
    assert_allowed("delete-second-later", "deleted");
    assert_allowed("delete-second-later", NO_VOTER_TO_SPARE);
}

#[test]
fn drain_and_eviction_of_the_leader_need_no_person() {
    assert_allowed("drain", "evicting pod prod/etcd-");
    assert_allowed("evict-leader", "Warning: leadership of etcd prod/etcd was moved to etcd-");
}

#[test]
fn command_of_the_denial_transfers_leadership() {
    assert_allowed("move-leader", "annotated");
    assert_allowed("delete-former-leader", "deleted");
    assert_allowed("delete-former-leader", NO_VOTER_TO_SPARE);
}

/// No test asserts the duration of a gap.
#[test]
fn handover_precedes_the_drain_while_a_client_writes() {
    assert_allowed("cordon", "cordoned");
    assert_allowed("handover", " is cordoned: leadership moved from ");
    assert_allowed("drain-node", "evicting pod prod/etcd-");
    assert_allowed("drain-node", " drained");
    for id in ["handover-writes", "drain-writes"] {
        assert_allowed(id, "longest gap ");
        assert!(!step(id).output.contains(" 0 acknowledged"), "{id}: {}", step(id).output);
    }
}

/// Serves a metrics page until the test ends, and returns the address.
async fn serve(page: &'static str) -> SocketAddr {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let routes = Router::new().route("/metrics", get(async move || ([(CONTENT_TYPE, OPEN_METRICS)], page)));
    tokio::spawn(async { axum::serve(listener, routes).await });
    address
}

#[tokio::test]
async fn every_dashboard_panel_has_data_after_the_demo() {
    let mut replicas = Vec::new();
    for page in &DEMO_RUN.metrics {
        replicas.push(serve(page).await);
    }
    assert_eq!(replicas.len(), 2);
    let folder = tempfile::tempdir().unwrap();
    let prometheus = Prometheus::start_with_targets(&replicas, folder.path()).await;
    prometheus.wait_for_series("count(etcd_guard_ready) == 2").await;
    let panels = panels();
    assert!(panels.len() > 15, "{panels:?}");
    for (title, query) in &panels {
        eprintln!("{title}: {query}");
        prometheus.wait_for_series(query).await;
    }
    // The series contain the requests of the demo.
    for query in [
        "sum(etcd_guard_ready) == 2",
        "sum(etcd_guard_admission_requests_total{webhook=\"guard.etcd-guard.io\",reason=\"LeaderProtected\"}) > 0",
        "sum(etcd_guard_admission_requests_total{webhook=\"eviction.guard.etcd-guard.io\",reason=\"LeaderTransferred\"}) > 0",
        "sum(etcd_guard_admission_requests_total{verdict=\"allowed\",reason=\"SafeToDelete\"}) > 0",
        "sum(etcd_guard_handovers_total{trigger=\"cordon\",result=\"moved\"}) == 1",
        "max(etcd_guard_clusters{state=~\"spare|no_spare\"}) == 1",
    ] {
        prometheus.wait_for_series(query).await;
    }
}
