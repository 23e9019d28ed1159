//! The shipped artifacts on real nodes: manifests, chart, cert-manager and `scripts/minikube`; upgrades and drains under load,
//! killed replicas, uninstallation; every example of `etcd-manifests/`; and the first minutes of a new user. Requires root.
//!
//! The parts of the script `tests/shipping_node/story.sh` run concurrently and write a report; each test asserts one part of
//! the report.

// A failed assertion is a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{collections::BTreeMap, process::Command, sync::OnceLock, thread};

const STORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/shipping_node/run");

#[track_caller]
fn reported(name: &str) -> &'static str {
    static REPORT: OnceLock<BTreeMap<String, String>> = OnceLock::new();
    let report = REPORT.get_or_init(run_parts);
    report.get(name).unwrap_or_else(|| panic!("the report does not contain {name}: {report:#?}"))
}

/// Parts of the script. Each runs on its own node; they mostly wait.
const PARTS: [&str; 3] = ["installing", "cert-manager", "stranger"];

/// Maximum time from the start of `helm install` to the first denial.
const FIRST_DENIAL_SECONDS: u64 = 300;

fn run_parts() -> BTreeMap<String, String> {
    let parts = PARTS.map(|part| thread::spawn(move || run_part(part)));
    parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
}

fn run_part(part: &str) -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let status = Command::new(STORY).arg(part).arg(&report).status().unwrap();
    let report = std::fs::read_to_string(&report).unwrap_or_default();
    eprintln!("the part {part} ended with {status}");
    let pair = |line: &str| line.split_once('\t').map(|(name, value)| (name.to_owned(), value.to_owned()));
    report.lines().filter_map(pair).collect()
}

#[track_caller]
fn assert_reported(name: &str, expected: &[&str]) {
    for expected in expected {
        assert!(reported(name).contains(expected), "{name}: no {expected:?} in {:?}", reported(name));
    }
}

/// Asserts a `LeaderProtected` denial for a cluster with this number of voters.
#[track_caller]
fn assert_leader_protected(name: &str, voters: usize) {
    let counted = format!("{voters} of {voters} voters healthy, quorum {}", voters / 2 + 1);
    assert_reported(
        name,
        &[
            "admission webhook \"guard.etcd-guard.io\" denied the request: LeaderProtected: ",
            " leads ",
            &counted,
        ],
    );
}

#[track_caller]
fn assert_no_call_failed(name: &str) {
    let calls: usize = reported(&format!("{name}-calls")).parse().unwrap();
    assert_eq!(reported(&format!("{name}-failed")), "", "of {calls} calls");
    assert!(calls >= 18, "{calls}");
}

/// Runs the check for both installation methods.
#[track_caller]
fn for_both_methods(check: impl Fn(&str)) {
    for method in ["manifests", "chart"] {
        check(method);
    }
}

#[test]
fn image_contains_one_static_program_and_licences() {
    let mut files: Vec<&str> = reported("image-files").split_whitespace().collect();
    files.sort_unstable();
    let licences = ["./licenses/LICENSE", "./licenses/THIRD-PARTY.txt"];
    assert_eq!(files, [licences[0], licences[1], "./usr/local/bin/etcd-guard"]);
    let linked = reported("image-linked");
    assert!(linked.contains("statically linked") || linked.contains("not a dynamic executable"), "{linked}");
}

/// Docker's image store, which minikube uses by default, reads another manifest than containerd.
#[test]
fn docker_and_containerd_read_the_same_image() {
    let archives: serde_json::Value = serde_json::from_str(reported("image-docker")).unwrap();
    let [archive] = archives.as_array().unwrap().as_slice() else { panic!("{archives}") };
    assert_eq!(archive["RepoTags"], serde_json::json!([concat!("etcd-guard:", env!("CARGO_PKG_VERSION"))]));
    assert_eq!(archive["Config"].as_str().unwrap(), reported("image-config-blob"));
    assert_eq!(archive["Layers"], serde_json::json!([reported("image-layer-blob")]));
}

#[test]
fn image_has_descriptive_labels() {
    let config: serde_json::Value = serde_json::from_str(reported("image-config")).unwrap();
    let labels = &config["config"]["Labels"];
    assert_eq!(labels["org.opencontainers.image.title"], "etcd-guard");
    assert_eq!(labels["org.opencontainers.image.version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(labels["org.opencontainers.image.licenses"], env!("CARGO_PKG_LICENSE"));
    assert_eq!(labels["org.opencontainers.image.description"], env!("CARGO_PKG_DESCRIPTION"));
    assert_eq!(config["config"]["User"], "65532:65532");
}

#[test]
fn protects_leader_after_both_installations() {
    for_both_methods(|method| assert_leader_protected(&format!("{method}-denied"), 3));
}

#[test]
fn kubectl_plugin_shows_verdict_and_status() {
    for_both_methods(|method| {
        assert_reported(
            &format!("{method}-check"),
            &["DENIED LeaderProtected: delete pod prod/etcd-", "by "],
        );
        let status = format!("{method}-status");
        assert_reported(&status, &["prod/etcd  cluster id ", "3 voters, 3 healthy, quorum 2, 1 to spare"]);
        assert_reported(
            &status,
            &["leader", "follower", "persistent", "policy leader: auto (configuration)"],
        );
    });
}

#[test]
fn no_admission_call_fails_during_an_upgrade() {
    for_both_methods(|method| {
        assert_eq!(reported(&format!("{method}-image")), "etcd-guard:0.1.0 etcd-guard:0.1.0");
        assert_eq!(reported(&format!("{method}-image-after")), "etcd-guard:0.1.0-next etcd-guard:0.1.0-next");
        assert_no_call_failed(&format!("{method}-upgrade"));
        assert_leader_protected(&format!("{method}-denied-after"), 3);
    });
}

#[test]
fn no_admission_call_fails_while_replicas_are_drained() {
    assert_reported("drain-output", &["Cannot evict pod as it would violate the pod's disruption budget"]);
    assert_no_call_failed("drain");
}

#[test]
fn running_pods_remain_while_all_replicas_are_dead() {
    assert_eq!(reported("killed"), "2");
    assert_reported("dead-living", &["failed calling webhook \"guard.etcd-guard.io\""]);
    assert_reported("dead-evict", &["failed calling webhook \"eviction.guard.etcd-guard.io\""]);
}

#[test]
fn finished_pods_are_deleted_without_replicas() {
    assert_reported("dead-finished", &["pod \"finished\" deleted"]);
    assert_reported("dead-terminating", &["pod \"terminating\" deleted"]);
}

#[test]
fn protects_leader_after_killed_replicas_restart() {
    assert_leader_protected("back", 3);
    // Each replica restarted once: it starts after a kill without a failed attempt.
    assert_eq!(reported("restarts"), "1 1");
}

#[test]
fn serves_the_certificate_of_cert_manager() {
    assert_leader_protected("cert_manager-denied", 3);
    assert_eq!(reported("cert_manager-served"), "the stored one");
}

#[test]
fn no_admission_call_fails_during_cert_manager_renewal() {
    assert_no_call_failed("cert_manager-renewal");
    // No replica restarted.
    assert_eq!(reported("cert_manager-restarts"), "0 0");
    assert_leader_protected("cert_manager-denied-after", 3);
}

#[test]
fn minikube_script_runs_with_preloaded_images() {
    assert_reported("minikube-story", &["9 steps, 0 differences"]);
    assert_leader_protected("minikube-denied", 3);
}

#[test]
fn the_installed_guard_conforms() {
    let (status, output) = reported("conformance-status").split_once(' ').unwrap();
    assert_eq!(status, "0", "{output}");
    let report: serde_json::Value = serde_json::from_str(reported("conformance")).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.len() > 18, "{rows:#?}");
    assert!(rows.iter().all(|row| row["result"] == "passed"), "{rows:#?}");
    assert_eq!(reported("conformance-left"), "");
}

/// With one command, which pulls the chart from a registry, from which the node pulls the image.
#[test]
fn denies_within_five_minutes_of_helm_install() {
    assert_leader_protected("stranger-denied", 3);
    let seconds: u64 = reported("stranger-seconds").parse().unwrap();
    assert!(
        seconds <= FIRST_DENIAL_SECONDS,
        "{seconds} s from the start of helm install to the first denial"
    );
    let image = concat!("127.0.0.1:5000/example/etcd-guard:", env!("CARGO_PKG_VERSION"));
    assert_eq!(reported("stranger-image"), format!("{image} {image}"));
    assert_reported("stranger-chart", &["127.0.0.1:5000/example/charts/etcd-guard@sha256:"]);
}

#[test]
fn doctor_reports_no_failure_of_a_new_installation() {
    let (status, output) = reported("stranger-doctor").split_once(' ').unwrap();
    assert_eq!(status, "0", "{output}");
}

/// The rules are the installed ones, with shorter waiting times.
#[test]
fn alert_names_the_cluster_with_a_stopped_member() {
    assert_eq!(reported("stranger-alerts-before"), "");
    assert_reported(
        "stranger-alert",
        &[
            r#""alertname":"EtcdGuardNoSpareVoter","cluster":"etcd","namespace":"prod""#,
            "The etcd cluster prod/etcd has no voter to spare.",
        ],
    );
}

#[test]
fn uninstallation_leaves_no_objects() {
    for method in ["manifests", "chart", "cert_manager", "minikube", "stranger"] {
        assert_eq!(reported(&format!("{method}-left")), "", "{method}");
    }
}

#[test]
fn namespace_can_be_deleted_after_uninstallation() {
    for part in PARTS {
        assert_eq!(reported(&format!("{part}-namespace-after")), "", "{part}");
    }
}

#[test]
fn script_runs_to_its_end() {
    for part in PARTS {
        assert_eq!(reported(&format!("{part}-end")), "reached", "{part}");
    }
}

#[test]
fn every_example_runs_and_its_leader_is_protected() {
    for example in ["mtls", "mtls-cert-manager", "password", "bitnami-like", "vcluster-like"] {
        assert_leader_protected(&format!("example-{example}"), 3);
    }
    assert_leader_protected("example-five-with-learner", 5);
}

#[test]
fn approves_learner_and_single_member_of_the_examples() {
    assert_reported("example-learner", &["pod \"etcd-learner-0\" deleted"]);
    assert_reported("example-single", &["pod \"etcd-0\" deleted"]);
}
