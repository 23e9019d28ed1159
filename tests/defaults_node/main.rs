//! The default policies on three real nodes, without a person: preemption of members, evictions by a program, and a guard
//! that was down and starts on full nodes. Requires root.
//!
//! The script `tests/defaults_node/story.sh` runs once and writes a report; each test asserts one part of the report. No test
//! asserts a duration: the results of the writes are printed.

// A failed assertion is a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{collections::BTreeMap, process::Command, sync::LazyLock};

const STORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/defaults_node/run");

/// The steps that `scripts/prove` compares with the same steps without the guard, whose names begin with `reference-`.
const COMPARED: [&str; 3] = ["drain", "eviction", "rollout"];

/// The longest plausible gap in milliseconds of a cluster that has its quorum, also on a busy machine: several elections.
const MAX_GAP: u64 = 10_000;

/// The report of the script. If the script fails, the first test that reads the report prints the cause.
static REPORT: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| run_story(""));

/// The report of the comparison with a cluster without the guard.
static COMPARISON: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| run_story("writes"));

fn run_story(chapters: &str) -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let status = Command::new(STORY).arg(&report).env("DEFAULTS_NODE_CHAPTERS", chapters).status().unwrap();
    let report = std::fs::read_to_string(&report).unwrap_or_default();
    eprintln!("the script ended with {status}");
    let pair = |line: &str| line.split_once('\t').map(|(name, value)| (name.to_owned(), value.to_owned()));
    let report: BTreeMap<_, _> = report.lines().filter_map(pair).collect();
    for (name, value) in report.iter().filter(|(name, _)| name.ends_with("-writes")) {
        eprintln!("result: {}: {value}", name.trim_end_matches("-writes"));
    }
    report
}

#[track_caller]
fn text<'r>(report: &'r BTreeMap<String, String>, name: &str) -> &'r str {
    report.get(name).unwrap_or_else(|| panic!("the report does not contain {name}: {report:#?}"))
}

#[track_caller]
fn reported(name: &str) -> &'static str {
    text(&REPORT, name)
}

#[track_caller]
fn number(name: &str) -> u32 {
    reported(name).parse().unwrap()
}

#[track_caller]
fn assert_reported(name: &str, expected: &str) {
    assert!(reported(name).contains(expected), "{name}: no {expected:?} in {:?}", reported(name));
}

/// Parses `longest gap 31 ms, 1602 acknowledged, 0 failed`.
#[track_caller]
fn assert_written(report: &BTreeMap<String, String>, step: &str) {
    let line = text(report, &format!("{step}-writes"));
    let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [longest_gap, acknowledged, _] = numbers[..] else { panic!("{step}: {line}") };
    assert!(acknowledged > 0 && longest_gap < MAX_GAP, "{step}: {line}");
}

#[test]
fn script_reaches_its_end() {
    assert_eq!(reported("end"), "reached");
}

#[test]
fn client_writes_in_every_step() {
    for step in ["preemption", "loop", "down"] {
        assert_written(&REPORT, step);
    }
}

#[test]
fn preemption_takes_one_member_after_the_other() {
    // The script waits until the leader's pod was preempted, and later the second one.
    assert_reported("preemption-move", "LeaderTransferred: ");
    let denial = reported("preemption-denial");
    assert!(
        ["QuorumAtRisk: ", "DisruptionInProgress: "].iter().any(|code| denial.contains(code)),
        "{denial}"
    );
    assert_eq!(reported("preemption-pending"), "Pending");
    assert_eq!(reported("preemption-kept"), "yes");
    assert_eq!(reported("preemption-lowest"), "2");
    let (_, term) = reported("preemption-leader").split_once(' ').unwrap();
    let (_, last_term) = reported("preemption-final").split_once(' ').unwrap();
    assert!(last_term.parse::<u32>().unwrap() > term.parse().unwrap(), "{last_term} after {term}");
}

#[test]
fn evictions_in_a_loop_replace_members_and_keep_the_quorum() {
    assert_eq!(reported("loop-lowest"), "2");
    assert!(number("loop-replaced") >= 4 && number("loop-moves") >= 2);
    for answer in reported("loop-answers").split(' ') {
        assert!(["evicted", "TooManyRequests", "NotFound"].contains(&answer), "{answer}");
    }
}

#[test]
fn plain_pods_go_while_the_guard_is_down() {
    assert_eq!(reported("plain-deletion-status"), "0", "{}", reported("plain-deletion-output"));
    assert_eq!(reported("full-nodes").split(' ').count(), 3, "{}", reported("full-nodes"));
    assert_eq!(reported("after-preemption").split(' ').count(), 2, "{}", reported("after-preemption"));
}

#[test]
fn members_and_evictions_wait_for_the_guard() {
    for step in ["member-deletion", "down-drain"] {
        assert_ne!(reported(&format!("{step}-status")), "0", "{step}");
    }
    for (name, webhook) in [
        ("member-deletion-output", "guard.etcd-guard.io"),
        ("plain-eviction", "eviction.guard.etcd-guard.io"),
        ("down-drain-output", "eviction.guard.etcd-guard.io"),
    ] {
        assert_reported(name, &format!("failed calling webhook \"{webhook}\""));
    }
    assert_eq!(reported("down-unschedulable"), "true");
    assert_eq!(reported("return-members-unchanged"), "yes");
}

#[test]
fn guard_returns_on_full_nodes_by_preempting_plain_pods() {
    assert_eq!(reported("return-status"), "0", "{}", reported("return-output"));
    assert!(reported("after-return").split_whitespace().count() < 3, "{}", reported("after-return"));
    assert_reported("return-protects", "LeaderProtected: ");
}

#[test]
#[ignore = "scripts/prove handover compares the writes"]
fn client_writes_as_without_the_guard() {
    for step in COMPARED {
        for name in [step.to_owned(), format!("reference-{step}")] {
            assert_written(&COMPARISON, &name);
            assert_eq!(text(&COMPARISON, &format!("{name}-lowest")), "2", "{name}");
        }
    }
    assert_eq!(text(&COMPARISON, "end"), "reached");
}
