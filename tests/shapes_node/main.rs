//! The ways in which distributions run etcd, each as a real cluster of three members on a real node, with the guard that the
//! shipped manifests install. The guard may read nothing but the objects in the Roles that `inspect --role` prints. Requires
//! root.
//!
//! The script `tests/shapes_node/story.sh` runs once and writes a report; each test asserts one part of the report.

// A failed assertion is a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{collections::BTreeMap, process::Command, sync::LazyLock};

use serde_json::Value;

const STORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/shapes_node/run");

/// A way in which etcd runs. The files are in `tests/shapes_node/shapes`.
struct Shape {
    /// Namespace of the cluster, and name of its files.
    name: &'static str,
    /// Container or native sidecar that runs etcd.
    container: &'static str,
    /// Objects that the printed Role permits, each as `RESOURCE/NAME`, sorted; empty if the guard needs no Role.
    permitted: &'static [&'static str],
    /// Words of the denial without the Role.
    denial: &'static [&'static str],
}

const SHAPES: [Shape; 8] = [
    Shape {
        name: "hidden-tls",
        container: "etcd",
        permitted: &["secrets/apiserver-etcd-client-certificate", "secrets/ca"],
        denial: &["CredentialsRejected: ", "not allowed to read Secret ", "Secret hidden-tls/ca"],
    },
    Shape {
        name: "config-map-ca",
        container: "etcd",
        permitted: &["configmaps/etcd-ca", "secrets/etcd-client-tls"],
        denial: &[
            "CredentialsRejected: ",
            "not allowed to read Secret ",
            "Secret config-map-ca/etcd-client-tls",
        ],
    },
    Shape {
        name: "config-file",
        container: "etcd",
        permitted: &["configmaps/etcd-config", "secrets/etcd-client"],
        denial: &["EtcdUnreachable: ", "not allowed to read ConfigMap config-file/etcd-config"],
    },
    Shape {
        name: "replica-sets",
        container: "etcd",
        permitted: &["secrets/etcd-tls"],
        denial: &["CredentialsRejected: ", "not allowed to read Secret ", "Secret replica-sets/etcd-tls"],
    },
    Shape { name: "bare-pods", container: "etcd", permitted: &[], denial: &[] },
    Shape {
        name: "custom-owner",
        container: "etcd",
        permitted: &["secrets/db-server-tls"],
        denial: &[
            "CredentialsRejected: ",
            "not allowed to read Secret ",
            "Secret custom-owner/db-server-tls",
        ],
    },
    Shape { name: "native-sidecar", container: "store", permitted: &[], denial: &[] },
    Shape {
        name: "ipv6",
        container: "etcd",
        permitted: &["secrets/etcd-tls"],
        denial: &["CredentialsRejected: ", "not allowed to read Secret ", "Secret ipv6/etcd-tls"],
    },
];

/// The report of the script. If the script fails, the first test that reads the report prints the cause.
static REPORT: LazyLock<BTreeMap<String, String>> = LazyLock::new(run_story);

fn run_story() -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let status = Command::new(STORY).arg(&report).status().unwrap();
    let report = std::fs::read_to_string(&report).unwrap_or_default();
    eprintln!("the script ended with {status}");
    let pair = |line: &str| line.split_once('\t').map(|(name, value)| (name.to_owned(), value.to_owned()));
    report.lines().filter_map(pair).collect()
}

#[track_caller]
fn reported(name: &str) -> &'static str {
    let report = &*REPORT;
    report.get(name).unwrap_or_else(|| panic!("the report does not contain {name}: {report:#?}"))
}

/// Asserts that a line of the report contains these texts.
#[track_caller]
fn assert_reported(name: &str, expected: &[&str]) {
    for expected in expected {
        assert!(reported(name).contains(expected), "{name}: no {expected:?} in {:?}", reported(name));
    }
}

/// Returns the Secrets and `ConfigMaps` that the guard may read, each as `RESOURCE/NAME`, from the API server's list with the
/// columns resource, URLs, names and verbs.
fn readable_objects(shape: &Shape) -> Vec<String> {
    let list = reported(&format!("{}-access", shape.name));
    let mut objects = Vec::new();
    for rule in list.split_terminator("[get]") {
        let (resource, columns) = rule.trim().split_once(' ').unwrap();
        let names =
            columns.trim().strip_prefix("[]").unwrap_or_else(|| panic!("{}: {list}", shape.name)).trim();
        let names = names.trim_start_matches('[').trim_end_matches(']').split_whitespace();
        objects.extend(names.map(|name| format!("{resource}/{name}")));
    }
    objects.sort();
    objects
}

#[test]
fn script_runs_to_its_end() {
    assert_eq!(reported("end"), "reached");
}

#[test]
fn installed_guard_reads_only_the_objects_of_the_role() {
    for shape in &SHAPES {
        assert_eq!(reported(&format!("{}-access-before", shape.name)), "", "{}", shape.name);
        assert_eq!(readable_objects(shape), shape.permitted, "{}", shape.name);
    }
}

#[test]
fn inspect_recognizes_every_shape() {
    for shape in &SHAPES {
        let report: Value = serde_json::from_str(reported(&format!("{}-inspect", shape.name))).unwrap();
        assert_eq!(report["recognized"], true, "{}: {report:#}", shape.name);
        assert_eq!(report["container"], shape.container, "{}: {report:#}", shape.name);
    }
}

#[test]
fn denies_deletion_without_the_role_and_names_the_command() {
    for shape in SHAPES.iter().filter(|shape| !shape.permitted.is_empty()) {
        let name = format!("{}-before", shape.name);
        assert_reported(&name, &["admission webhook \"guard.etcd-guard.io\" denied the request: "]);
        assert_reported(&name, shape.denial);
        assert_reported(&name, &[&format!("kubectl etcd-guard inspect -n {} etcd-", shape.name)]);
    }
}

#[test]
fn denies_the_leader_of_every_shape_with_numbers() {
    for shape in &SHAPES {
        let expected =
            [" denied the request: LeaderProtected: ", " leads ", "3 of 3 voters healthy, quorum 2"];
        assert_reported(&format!("{}-leader", shape.name), &expected);
    }
}

#[test]
fn approves_a_follower_of_every_shape_with_numbers() {
    for shape in &SHAPES {
        let expected =
            ["has no voter to spare until ", "2 of 3 remain, quorum 2", "deleted from ", "(server dry run)"];
        assert_reported(&format!("{}-follower", shape.name), &expected);
    }
}

#[test]
fn command_of_the_denial_moves_leadership_in_every_shape() {
    for shape in &SHAPES {
        assert_reported(&format!("{}-move", shape.name), &["leadership moved from "]);
    }
}

#[test]
fn denies_deletion_of_pods_that_lose_their_data() {
    assert_reported("bare-pods-before", &[" denied the request: PermanentLoss: the data of etcd-"]);
}

#[test]
fn denies_deletion_of_owners_of_other_kinds() {
    let denied = " denied the request: IntentProtected: ";
    assert_reported("replica-sets-owner", &[denied, "ReplicaSet etcd-0 owns 1 running etcd members"]);
    assert_reported("custom-owner-owner", &[denied, "EtcdCluster db owns 3 running etcd members"]);
}

#[test]
fn ipv6_members_have_no_other_address() {
    let endpoint = |shape| {
        let report: Value = serde_json::from_str(reported(&format!("{shape}-inspect"))).unwrap();
        assert_eq!(
            report["otherEndpoints"].as_array().map_or(0, Vec::len),
            usize::from(shape != "ipv6"),
            "{report:#}"
        );
        report["endpoint"].as_str().unwrap().to_owned()
    };
    assert!(endpoint("ipv6").starts_with("https://[fd00:10:245::"));
    // Pods of the other shapes have both families.
    assert!(endpoint("custom-owner").starts_with("https://10.244.0."));
}
