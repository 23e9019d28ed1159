//! Cordons, drains and restarts on four real nodes, with two replicas of the guard, an etcd cluster whose members the
//! scheduler spreads, and a client that writes throughout. Requires root.
//!
//! The script `tests/drain_node/story.sh` runs once and writes a report; each test asserts one part of the report. No test
//! asserts a duration: the results of the writes are printed.

// A failed assertion is a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    sync::LazyLock,
};

const STORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/drain_node/run");

/// The steps in which the client's writes are counted.
const MEASURED: [&str; 10] = [
    "cordon",
    "deletion",
    "move",
    "former-leader-killed",
    "drain",
    "eviction",
    "rollout",
    "restart",
    "reference-cordon",
    "reference-killed",
];

/// The steps that `scripts/prove` adds.
const ALSO_MEASURED: [&str; 2] = ["resume", "upgrade"];

/// The longest plausible gap in milliseconds of a cluster that has its quorum, also on a busy machine: several elections.
const MAX_GAP: u64 = 10_000;

/// The report of the script. If the script fails, the first test that reads the report prints the cause.
static REPORT: LazyLock<BTreeMap<String, String>> = LazyLock::new(run_story);

fn run_story() -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let status = Command::new(STORY).arg(&report).status().unwrap();
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
fn reported(name: &str) -> &'static str {
    let report = &*REPORT;
    report.get(name).unwrap_or_else(|| panic!("the report does not contain {name}: {report:#?}"))
}

#[track_caller]
fn assert_reported(name: &str, expected: &str) {
    assert!(reported(name).contains(expected), "{name}: no {expected:?} in {:?}", reported(name));
}

/// Parses `etcd-0=VALUE etcd-1=VALUE etcd-2=VALUE`.
#[track_caller]
fn by_pod(name: &str) -> BTreeMap<&'static str, &'static str> {
    let pods: BTreeMap<_, _> =
        reported(name).split_whitespace().map(|word| word.split_once('=').unwrap()).collect();
    assert_eq!(pods.keys().copied().collect::<Vec<_>>(), ["etcd-0", "etcd-1", "etcd-2"], "{name}");
    pods
}

/// Parses `POD on NODE, term NUMBER`.
#[track_caller]
fn leader(name: &str) -> (&'static str, &'static str, u64) {
    let (pod, rest) = reported(name).split_once(" on ").unwrap();
    let (node, term) = rest.split_once(", term ").unwrap();
    (pod, node, term.parse().unwrap())
}

/// Parses `POD TERM`.
#[track_caller]
fn pod_and_term(name: &str) -> (&'static str, u64) {
    let (pod, term) = reported(name).split_once(' ').unwrap();
    (pod, term.parse().unwrap())
}

/// Parses `longest gap 31 ms, 1602 acknowledged, 0 failed`.
#[track_caller]
fn writes(step: &str) -> [u64; 3] {
    let text = reported(&format!("{step}-writes"));
    let numbers: Vec<u64> = text.split(' ').filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().unwrap_or_else(|_| panic!("{step}: {text}"))
}

#[test]
fn script_reaches_its_end() {
    assert_eq!(reported("end"), "reached");
}

#[test]
fn scheduler_spreads_members_over_nodes() {
    let nodes: BTreeSet<_> = by_pod("nodes").into_values().collect();
    assert_eq!(nodes.len(), 3, "{nodes:?}");
}

#[test]
fn cordon_moves_leadership_before_the_deletion() {
    let (pod, node, term) = leader("cordon-leader");
    let (successor, other_node, next_term) = leader("cordon-successor");
    assert_ne!((successor, other_node), (pod, node));
    // Each move of leadership increases the term by one.
    assert_eq!(next_term, term + 1);
    assert_reported("cordon-pods-unchanged", "yes");
}

#[test]
fn cordon_is_reported_by_events_and_metric() {
    let (pod, node, _) = leader("cordon-leader");
    let (successor, ..) = leader("cordon-successor");
    for object in [format!("Pod/{pod}"), String::from("StatefulSet/etcd")] {
        let expected = format!(
            "LeaderMoved {object}: node {node} is cordoned: leadership moved from {pod} to {successor} "
        );
        assert_reported("cordon-events", &expected);
    }
    assert_eq!((reported("cordon-handovers-before"), reported("cordon-handovers")), ("0", "1"));
}

#[test]
fn deletion_after_the_cordon_moves_nothing() {
    let (pod, node, _) = leader("cordon-leader");
    let (successor, _, term) = leader("cordon-successor");
    assert_eq!(reported("deletion-status"), "0", "{}", reported("deletion-output"));
    assert_reported("deletion-output", &format!("pod \"{pod}\" deleted"));
    assert_eq!(pod_and_term("cordon-final"), (successor, term));
    assert_ne!(by_pod("deletion-nodes")[pod], node);
}

#[test]
fn move_leader_moves_leadership_to_the_named_pod() {
    assert_eq!(reported("move-status"), "0", "{}", reported("move-output"));
    assert_reported("move-output", "complete: leadership moved from ");
    assert_eq!(pod_and_term("move-leader").0, reported("move-expected"));
}

/// Without an annotation: `auto` is the default.
#[test]
fn drains_of_all_nodes_need_no_person() {
    let (first, _, term) = leader("drain-leader");
    for (number, pod) in ["etcd-0", "etcd-1", "etcd-2"].into_iter().enumerate() {
        let output = reported(&format!("drain-{number}-output"));
        assert_eq!(reported(&format!("drain-{number}-status")), "0", "{output}");
        assert!(output.contains(&format!("pod/{pod} evicted")), "{output}");
        assert!(!output.contains("LeaderProtected"), "{output}");
        let (node, next) = reported(&format!("drain-of-{pod}")).split_once(' ').unwrap();
        assert_ne!(node, next, "{pod}");
    }
    assert_eq!(reported("drain-lowest"), "2");
    let (_, next_term) = pod_and_term("drain-final");
    assert!(next_term > term, "{first} was replaced");
}

#[test]
fn evictions_of_leaders_need_no_person() {
    for number in 0..2 {
        let output = reported(&format!("eviction-{number}-output"));
        assert!(output.contains("Warning: leadership of etcd prod/etcd was moved to etcd-"), "{output}");
        let (evicted, rest) = reported(&format!("eviction-{number}")).split_once(' ').unwrap();
        assert!(!rest.starts_with(evicted), "{rest}");
    }
    assert_eq!(reported("eviction-lowest"), "2");
}

#[test]
fn rollout_moves_leadership_at_most_twice() {
    assert_eq!(reported("rollout-move-status"), "0", "{}", reported("rollout-move-output"));
    assert_eq!(reported("rollout-status"), "0", "{}", reported("rollout-output"));
    let (leader, term) = pod_and_term("rollout-leader");
    // The second move is to an updated member, which can be the former leader.
    let (_, next_term) = pod_and_term("rollout-final");
    assert_eq!(leader, "etcd-2");
    // Each move increases the term by one.
    assert!((term + 1..=term + 2).contains(&next_term), "{next_term} after {term}");
    assert_eq!(reported("rollout-lowest"), "2");
}

#[test]
fn restart_replaces_every_pod_the_leader_last() {
    let output = reported("restart-output");
    assert_eq!(reported("restart-status"), "0", "{output}");
    let before = by_pod("restart-before");
    assert!(by_pod("restart-after").iter().all(|(pod, uid)| before[pod] != *uid), "{output}");
    let evicted: Vec<&str> = output
        .split(" | ")
        .filter_map(|line| {
            line.strip_suffix(" (follower) is evicted").or(line.strip_suffix(" (leader) is evicted"))
        })
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    assert_eq!(evicted.len(), 3, "{output}");
    assert_eq!(evicted[2], reported("restart-leader"), "{output}");
    assert_reported("restart-output", &format!("leadership moved from {} to ", evicted[2]));
    assert_eq!(reported("restart-strategy"), "RollingUpdate ");
    assert_eq!(reported("restart-lowest"), "2");
}

#[test]
fn leadership_stays_without_the_guard() {
    assert_eq!(pod_and_term("reference-stays").0, reported("reference-leader"));
}

#[track_caller]
fn assert_written(steps: &[&str]) {
    for step in steps {
        let [longest_gap, acknowledged, _] = writes(step);
        assert!(acknowledged > 0 && longest_gap < MAX_GAP, "{step}: {}", reported(&format!("{step}-writes")));
    }
}

#[test]
fn client_writes_in_every_step() {
    assert_written(&MEASURED);
}

#[test]
#[ignore = "scripts/prove handover runs all chapters"]
fn client_writes_in_every_further_step() {
    assert_written(&ALSO_MEASURED);
}

#[test]
#[ignore = "scripts/prove handover runs all chapters"]
fn killed_restart_resumes() {
    assert_eq!(reported("resume-between"), "OnDelete");
    assert_eq!(reported("resume-status"), "0", "{}", reported("resume-output"));
    assert_reported("resume-output", "Resumed restart");
    let before = by_pod("resume-before");
    assert!(by_pod("resume-after").iter().all(|(pod, uid)| before[pod] != *uid));
    assert_eq!(reported("resume-strategy"), "RollingUpdate ");
}

#[test]
#[ignore = "scripts/prove handover runs all chapters"]
fn denies_deletion_below_min_voters() {
    assert_ne!(reported("min-voters-status"), "0", "{}", reported("min-voters-output"));
    assert_reported(
        "min-voters-output",
        "TooFewVoters: prod/etcd has 3 voters, fewer than the 5 that etcd-guard.io/min-voters requires",
    );
}

#[test]
#[ignore = "scripts/prove handover runs all chapters"]
fn restart_upgrades_the_members() {
    assert_eq!(reported("upgrade-status"), "0", "{}", reported("upgrade-output"));
    let versions: Vec<&str> = reported("upgrade-versions").split_whitespace().collect();
    assert!(
        versions.len() == 3 && versions.iter().all(|version| version.starts_with("3.7.")),
        "{versions:?}"
    );
    assert_eq!(reported("upgrade-strategy"), "RollingUpdate ");
    assert_eq!(reported("upgrade-lowest"), "2");
}
