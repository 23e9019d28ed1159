//! What is shipped, on whole real nodes: installed from the manifests, again from the chart, with cert-manager's certificates
//! and by `scripts/minikube`; upgraded and drained under load, killed, taken away; and every example of `etcd-manifests/`.
//! Needs root.
//!
//! One story is played, `tests/shipping_node/story.sh`, its parts side by side; each test holds one promise against what was
//! seen.

// A test says by a panic what is not as it should be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{collections::HashMap, process::Command, sync::OnceLock, thread};

const STORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/shipping_node/run");

#[track_caller]
fn seen(name: &str) -> &'static str {
    static SEEN: OnceLock<HashMap<String, String>> = OnceLock::new();
    let seen = SEEN.get_or_init(play);
    seen.get(name).unwrap_or_else(|| panic!("the story does not tell {name}: {seen:#?}"))
}

/// Each on a node of its own: what they do is mostly waiting.
const PARTS: [&str; 2] = ["installing", "cert-manager"];

fn play() -> HashMap<String, String> {
    let parts = PARTS.map(|part| thread::spawn(move || play_part(part)));
    parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
}

fn play_part(part: &str) -> HashMap<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let status = Command::new(STORY).arg(part).arg(&report).status().unwrap();
    let report = std::fs::read_to_string(&report).unwrap_or_default();
    eprintln!("the part {part} of the story ended with {status}");
    let pair = |line: &str| line.split_once('\t').map(|(name, value)| (name.to_owned(), value.to_owned()));
    report.lines().filter_map(pair).collect()
}

#[track_caller]
fn assert_seen(name: &str, expected: &[&str]) {
    for expected in expected {
        assert!(seen(name).contains(expected), "{name}: no {expected:?} in {:?}", seen(name));
    }
}

/// The guard's words about the leader of a cluster of this many voters.
#[track_caller]
fn assert_leader_protected(name: &str, voters: usize) {
    let counted = format!("{voters} of {voters} voters healthy, quorum {}", voters / 2 + 1);
    assert_seen(
        name,
        &["admission webhook \"guard.etcd-guard.io\" denied the request", "is the leader of", &counted],
    );
}

#[track_caller]
fn assert_no_call_failed(name: &str) {
    let calls: usize = seen(&format!("{name}-calls")).parse().unwrap();
    assert_eq!(seen(&format!("{name}-failed")), "", "of {calls} calls");
    assert!(calls >= 18, "{calls}");
}

/// By both ways of installing.
#[track_caller]
fn by_both_ways(check: impl Fn(&str)) {
    for way in ["manifests", "chart"] {
        check(way);
    }
}

#[test]
fn the_image_holds_one_static_program_and_nothing_else() {
    assert_eq!(seen("image-files").trim(), "./usr/local/bin/etcd-guard");
    let linked = seen("image-linked");
    assert!(linked.contains("statically linked") || linked.contains("not a dynamic executable"), "{linked}");
}

/// Docker's own store of images, which minikube loads into by default, reads another list of contents than containerd.
#[test]
fn docker_finds_the_same_in_the_image_as_containerd() {
    let archives: serde_json::Value = serde_json::from_str(seen("image-docker")).unwrap();
    let [archive] = archives.as_array().unwrap().as_slice() else { panic!("{archives}") };
    assert_eq!(archive["RepoTags"], serde_json::json!([concat!("etcd-guard:", env!("CARGO_PKG_VERSION"))]));
    assert_eq!(archive["Config"].as_str().unwrap(), seen("image-config-blob"));
    assert_eq!(archive["Layers"], serde_json::json!([seen("image-layer-blob")]));
}

#[test]
fn the_image_says_what_it_is() {
    let config: serde_json::Value = serde_json::from_str(seen("image-config")).unwrap();
    let labels = &config["config"]["Labels"];
    assert_eq!(labels["org.opencontainers.image.title"], "etcd-guard");
    assert_eq!(labels["org.opencontainers.image.version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(labels["org.opencontainers.image.licenses"], env!("CARGO_PKG_LICENSE"));
    assert_eq!(labels["org.opencontainers.image.description"], env!("CARGO_PKG_DESCRIPTION"));
    assert_eq!(config["config"]["User"], "65532:65532");
}

#[test]
fn installed_from_manifests_and_from_the_chart_it_denies() {
    by_both_ways(|way| assert_leader_protected(&format!("{way}-denied"), 3));
}

#[test]
fn as_a_kubectl_plugin_it_says_the_same_before_and_how_the_cluster_is() {
    by_both_ways(|way| {
        assert_seen(&format!("{way}-check"), &["DENIED LeaderProtected: delete pod prod/etcd-", "by "]);
        let status = format!("{way}-status");
        assert_seen(&status, &["prod/etcd  cluster id ", "3 voters, 3 healthy, quorum 2, 1 to spare"]);
        assert_seen(&status, &["leader", "follower", "persistent", "policy leader: deny (configuration)"]);
    });
}

#[test]
fn no_admission_call_fails_during_an_upgrade() {
    by_both_ways(|way| {
        assert_eq!(seen(&format!("{way}-image")), "etcd-guard:0.1.0 etcd-guard:0.1.0");
        assert_eq!(seen(&format!("{way}-image-after")), "etcd-guard:0.1.0-next etcd-guard:0.1.0-next");
        assert_no_call_failed(&format!("{way}-upgrade"));
        assert_leader_protected(&format!("{way}-denied-after"), 3);
    });
}

#[test]
fn no_admission_call_fails_while_both_replicas_are_drained_one_after_the_other() {
    assert_seen("drain-said", &["Cannot evict pod as it would violate the pod's disruption budget"]);
    assert_no_call_failed("drain");
}

#[test]
fn while_both_replicas_are_dead_living_pods_stay() {
    assert_eq!(seen("killed"), "2");
    assert_seen("dead-living", &["failed calling webhook \"guard.etcd-guard.io\""]);
    assert_seen("dead-evict", &["failed calling webhook \"eviction.guard.etcd-guard.io\""]);
}

#[test]
fn while_both_replicas_are_dead_terminating_and_finished_pods_go() {
    assert_seen("dead-finished", &["pod \"finished\" deleted"]);
    assert_seen("dead-terminating", &["pod \"going\" deleted"]);
}

#[test]
fn killed_replicas_are_back_when_the_kubelet_has_restarted_them() {
    assert_leader_protected("back", 3);
    // One restart each, and no second one: it starts as well after a kill as after an end.
    assert_eq!(seen("restarts"), "1 1");
}

#[test]
fn with_certificates_by_cert_manager_it_denies_and_serves_the_one_that_is_stored() {
    assert_leader_protected("cert_manager-denied", 3);
    assert_eq!(seen("cert_manager-served"), "the stored one");
}

#[test]
fn no_admission_call_fails_while_cert_manager_makes_another_leaf_and_another_ca() {
    assert_no_call_failed("cert_manager-renewal");
    // Nobody had to be started anew.
    assert_eq!(seen("cert_manager-restarts"), "0 0");
    assert_leader_protected("cert_manager-denied-after", 3);
}

#[test]
fn the_minikube_script_tells_the_whole_story_where_the_image_is_loaded_already() {
    assert_seen("minikube-story", &["9 steps, 0 differences"]);
    assert_leader_protected("minikube-denied", 3);
}

#[test]
fn the_installed_guard_conforms() {
    let (status, said) = seen("conformance-status").split_once(' ').unwrap();
    assert_eq!(status, "0", "{said}");
    let report: serde_json::Value = serde_json::from_str(seen("conformance")).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.len() > 18, "{rows:#?}");
    assert!(rows.iter().all(|row| row["result"] == "passed"), "{rows:#?}");
    assert_eq!(seen("conformance-left"), "");
}

#[test]
fn nothing_stays_behind() {
    for way in ["manifests", "chart", "cert_manager", "minikube"] {
        assert_eq!(seen(&format!("{way}-left")), "", "{way}");
    }
}

#[test]
fn a_namespace_whose_guard_is_gone_can_be_deleted() {
    for part in PARTS {
        assert_eq!(seen(&format!("{part}-namespace-after")), "", "{part}");
    }
}

#[test]
fn the_story_comes_to_its_end() {
    for part in PARTS {
        assert_eq!(seen(&format!("{part}-end")), "reached", "{part}");
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
fn the_examples_learner_and_its_single_member_may_go() {
    assert_seen("example-learner", &["pod \"etcd-learner-0\" deleted"]);
    assert_seen("example-single", &["pod \"etcd-0\" deleted"]);
}
