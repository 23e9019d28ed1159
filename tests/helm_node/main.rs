//! `helm uninstall` of a running etcd cluster on a real node, while a client in a pod writes through its Services: by DNS to the
//! pods of the headless Service, and through the rules of kube-proxy for the other one. Also reads a slow status through a
//! port-forward. Requires root.
//!
//! The script `tests/helm_node/story.sh` runs once and writes a report; each test asserts one part of the report.

// A failed assertion is a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{collections::BTreeMap, process::Command, sync::LazyLock};

const STORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/helm_node/run");

/// The objects that the client needs.
const NEEDED: [&str; 6] = [
    "service/etcd ",
    "service/etcd-client ",
    "statefulset.apps/etcd ",
    "pod/etcd-0 ",
    "pod/etcd-1 ",
    "pod/etcd-2 ",
];

/// The report of the script. If the script fails, the first test that reads the report prints the cause.
static REPORT: LazyLock<BTreeMap<String, String>> = LazyLock::new(run_story);

fn run_story() -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let status = Command::new(STORY).arg(&report).status().unwrap();
    let report = std::fs::read_to_string(&report).unwrap_or_default();
    eprintln!("the script ended with {status}\n{report}");
    let pair = |line: &str| line.split_once('\t').map(|(name, value)| (name.to_owned(), value.to_owned()));
    report.lines().filter_map(pair).collect()
}

#[track_caller]
fn reported(name: &str) -> &'static str {
    let report = &*REPORT;
    report.get(name).unwrap_or_else(|| panic!("the report does not contain {name}: {report:#?}"))
}

/// Returns the two numbers of a line: those of the headless Service and of the other one.
#[track_caller]
fn numbers(name: &str) -> [usize; 2] {
    let numbers: Vec<usize> = reported(name).split(' ').map(|number| number.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

#[test]
fn script_runs_to_its_end() {
    assert_eq!(reported("end"), "reached");
    assert_eq!(reported("before-failed"), "0");
}

#[test]
fn no_write_fails_after_a_refused_uninstallation() {
    assert_ne!(reported("guarded-status"), "0");
    assert!(reported("guarded-output").contains("denied the request: IntentProtected: "));
    for object in NEEDED {
        assert!(reported("guarded-objects").contains(object), "{object}: {}", reported("guarded-objects"));
    }
    assert!(numbers("guarded-tried").iter().all(|tried| *tried >= 59));
    assert_eq!(numbers("guarded-failed"), [0, 0], "{}", reported("guarded-first-failure"));
}

/// The same uninstallation without the entry `resources.guard.etcd-guard.io`: the cluster remains, and its clients fail.
#[test]
fn writes_fail_without_the_entry_for_used_objects() {
    assert_ne!(reported("unguarded-status"), "0");
    let objects = reported("unguarded-objects");
    assert!(objects.contains("statefulset.apps/etcd ") && !objects.contains("service/"), "{objects}");
    assert!(numbers("unguarded-failed").iter().all(|failed| *failed > 0));
}

/// The response takes longer than the timeout of a call, which is 40 s. An incomplete status is no answer: exit status 2.
#[test]
fn slow_status_arrives_through_a_port_forward() {
    let reported = reported("slow-status");
    assert!(reported.starts_with("2 ") && reported.contains("a late problem"), "{reported}");
}
