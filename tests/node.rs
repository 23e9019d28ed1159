//! A whole real node: kubelet, containerd, etcd in pods, the guard in its own image behind its Service. Needs root.
//!
//! The demo plays the story once; each test holds one promise of it against what kubectl printed.

// A test says by a panic what is not as it should be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{collections::HashMap, process::Command, sync::OnceLock};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/demo");

/// What one command of the story did.
#[derive(Debug)]
struct Step {
    exit_status: i32,
    output: String,
}

/// The steps of the one story that all tests look at.
fn step(id: &str) -> &'static Step {
    static STORY: OnceLock<HashMap<String, Step>> = OnceLock::new();
    let story = STORY.get_or_init(play);
    story.get(id).unwrap_or_else(|| panic!("the story has no step {id}: {story:#?}"))
}

/// The demo's own exit status says that a step went otherwise than it should; which one, the tests say.
fn play() -> HashMap<String, Step> {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let status = Command::new(DEMO).arg("--report").arg(&report).status().unwrap();
    let report = std::fs::read_to_string(&report).unwrap_or_default();
    assert!(!report.is_empty(), "scripts/demo ended with {status} before its story began");
    report.lines().map(read_step).collect()
}

/// Of a line `id, command, exit status, verdict, expected, output` between tabs.
fn read_step(line: &str) -> (String, Step) {
    let fields: Vec<&str> = line.split('\t').collect();
    let [id, _command, exit_status, _verdict, _expected, output] = fields[..] else {
        panic!("not six fields: {line:?}");
    };
    (id.to_owned(), Step { exit_status: exit_status.parse().unwrap(), output: output.to_owned() })
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
    assert_allowed("delete-follower", "Warning: etcd prod/etcd has no voter to spare until etcd-");
}

#[test]
fn deleting_the_second_follower_at_once_is_denied() {
    assert_denied("delete-second", &["(Forbidden)", "would have 1 of 3 voters healthy, quorum 2"]);
}

#[test]
fn deleting_it_after_the_first_is_back_is_allowed() {
    assert_allowed("delete-second-later", "deleted");
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
}
