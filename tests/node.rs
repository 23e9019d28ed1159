//! A whole real node: kubelet, containerd, etcd in pods, the guard in its own image behind its Service. Needs root.
//!
//! The demo plays the story once; each test holds one promise of it against what kubectl printed.

// A test says by a panic what is not as it should be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    process::{Command, ExitStatus},
    sync::LazyLock,
};

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
    let report = folder.path().join("report");
    let ended = Command::new(DEMO).args(["--debug", "--report"]).arg(&report).status().unwrap();
    let report = std::fs::read_to_string(&report).unwrap_or_default();
    assert!(!report.is_empty(), "scripts/demo ended with {ended} before its story began");
    Story { ended, steps: report.lines().map(read_step).collect() }
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
