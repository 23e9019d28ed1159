//! A whole real node: kubelet, containerd, etcd in pods, the guard in its own image behind its Service. Needs root.
//!
//! The demo plays the story once; each test holds one promise of it against what kubectl printed.

// A test says by a panic what is not as it should be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[allow(dead_code, unreachable_pub, reason = "what tests without a node use as well")]
#[path = "support"]
mod support {
    pub mod child;
    pub mod http_client;
    pub mod prometheus;
    pub mod testbed;
    pub mod wait;
}

use std::{
    fs,
    net::SocketAddr,
    process::{Command, ExitStatus},
    sync::LazyLock,
};

use axum::{Router, routing::get};
use http::header::CONTENT_TYPE;
use support::prometheus::{Prometheus, panels};
use tokio::net::TcpListener;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/demo");

/// The guard's own word to a yes, so that none of them passes for want of a guard.
const NO_VOTER_TO_SPARE: &str = "Warning: etcd prod/etcd has no voter to spare until etcd-";

/// What is asked in the story, in order.
const STEPS: [&str; 9] = [
    "status",
    "delete-leader",
    "delete-follower",
    "delete-second",
    "delete-second-later",
    "drain",
    "evict-leader",
    "move-leader",
    "delete-former-leader",
];

/// The one story that all tests look at. If it cannot be played it is not tried again: the first test to look says why.
static STORY: LazyLock<Story> = LazyLock::new(play);

/// What the demo did.
#[derive(Debug)]
struct Story {
    ended: ExitStatus,
    steps: Vec<Step>,
    /// What each replica of the guard showed at `/metrics` afterwards.
    metrics: Vec<String>,
}

/// What one command of the story did.
#[derive(Debug)]
struct Step {
    id: String,
    exit_status: i32,
    /// By the demo's own account.
    verdict: String,
    expected: String,
    output: String,
}

fn step(id: &str) -> &'static Step {
    let story = &*STORY;
    story
        .steps
        .iter()
        .find(|step| step.id == id)
        .unwrap_or_else(|| panic!("the story has no step {id}: {story:#?}"))
}

fn play() -> Story {
    let folder = tempfile::tempdir().unwrap();
    let (report, metrics) = (folder.path().join("report"), folder.path().join("metrics"));
    let mut demo = Command::new(DEMO);
    demo.args(["--debug", "--report"]).arg(&report).arg("--metrics").arg(&metrics);
    let ended = demo.status().unwrap();
    let report = fs::read_to_string(&report).unwrap_or_default();
    assert!(!report.is_empty(), "scripts/demo ended with {ended} before its story began");
    let pages = fs::read_dir(&metrics).unwrap().map(|it| fs::read_to_string(it.unwrap().path()).unwrap());
    Story { ended, steps: report.lines().map(read_step).collect(), metrics: pages.collect() }
}

/// Of a line `id, command, exit status, verdict, expected, output` between tabs.
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
fn the_story_comes_to_its_end_without_a_difference() {
    let story = &*STORY;
    for step in &story.steps {
        assert_eq!(step.verdict, step.expected, "{}: {}", step.id, step.output);
    }
    assert_eq!(story.steps.iter().map(|step| &step.id).collect::<Vec<_>>(), STEPS);
    assert!(story.ended.success(), "scripts/demo ended with {}", story.ended);
}

#[test]
fn the_cluster_has_three_members_and_one_of_them_leads() {
    assert_allowed("status", "IS LEADER");
    let rows: Vec<&str> = step("status").output.split("\\n").filter(|row| row.contains(":2379")).collect();
    assert_eq!(rows.len(), 3, "{rows:#?}");
    // The column after it is for learners, of which there are none.
    assert_eq!(rows.iter().filter(|row| row.contains(" true ")).count(), 1, "{rows:#?}");
}

#[test]
fn deleting_the_leader_is_denied_with_numbers_and_the_next_command() {
    assert_denied(
        "delete-leader",
        &[
            "Error from server (Forbidden): admission webhook \"guard.etcd-guard.io\" denied the request: pod etcd-",
            "is the leader of etcd cluster prod/etcd (member ",
            "3 of 3 voters healthy, quorum 2). Move leadership first",
            "etcdctl move-leader ",
            "[LeaderProtected]",
        ],
    );
}

#[test]
fn deleting_a_follower_is_allowed_with_a_warning() {
    assert_allowed("delete-follower", "deleted");
    assert_allowed("delete-follower", NO_VOTER_TO_SPARE);
}

#[test]
fn deleting_the_second_follower_at_once_is_denied() {
    assert_denied("delete-second", &["(Forbidden)", "would have 1 of 3 voters healthy, quorum 2"]);
}

#[test]
fn deleting_it_after_the_first_is_back_is_allowed() {
    assert_allowed("delete-second-later", "deleted");
    assert_allowed("delete-second-later", NO_VOTER_TO_SPARE);
}

#[test]
fn a_dry_run_of_a_drain_shows_the_denial_and_that_it_would_be_tried_again() {
    assert_denied(
        "drain",
        &[
            "(will retry after 5s)",
            "admission webhook \"eviction.guard.etcd-guard.io\" denied the request",
            "is the leader of",
        ],
    );
}

#[test]
fn evicting_the_leader_answers_too_many_requests() {
    assert_denied(
        "evict-leader",
        &["Error from server (TooManyRequests)", "is the leader of", "[LeaderProtected]"],
    );
}

#[test]
fn the_command_in_the_denial_moves_leadership_and_the_pod_may_go_then() {
    assert_allowed("move-leader", "Leadership transferred");
    assert_allowed("delete-former-leader", "deleted");
    assert_allowed("delete-former-leader", NO_VOTER_TO_SPARE);
}

/// Answers every scrape with this page, for as long as the test lasts.
async fn serve(page: &'static str) -> SocketAddr {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let routes = Router::new().route("/metrics", get(async move || ([(CONTENT_TYPE, OPEN_METRICS)], page)));
    tokio::spawn(async { axum::serve(listener, routes).await });
    address
}

#[tokio::test]
async fn after_the_story_every_panel_of_the_dashboard_has_a_series_to_show() {
    let mut replicas = Vec::new();
    for page in &STORY.metrics {
        replicas.push(serve(page).await);
    }
    assert_eq!(replicas.len(), 2);
    let folder = tempfile::tempdir().unwrap();
    let prometheus = Prometheus::scraping_all(&replicas, folder.path()).await;
    prometheus.wait_for_series("count(etcd_guard_ready) == 2").await;
    let panels = panels();
    assert!(panels.len() > 15, "{panels:?}");
    for (title, query) in &panels {
        eprintln!("{title}: {query}");
        prometheus.wait_for_series(query).await;
    }
    // They show the story, and not only that there is a guard.
    for query in [
        "sum(etcd_guard_ready) == 2",
        "sum(etcd_guard_admission_requests_total{webhook=\"guard.etcd-guard.io\",reason=\"LeaderProtected\"}) > 0",
        "sum(etcd_guard_admission_requests_total{webhook=\"eviction.guard.etcd-guard.io\",verdict=\"denied\"}) > 0",
        "sum(etcd_guard_admission_requests_total{verdict=\"allowed\",reason=\"SafeToDelete\"}) > 0",
        "max(etcd_guard_clusters{state=~\"spare|no_spare\"}) == 1",
    ] {
        prometheus.wait_for_series(query).await;
    }
}
