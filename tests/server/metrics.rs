//! The metrics page: its contents, and that no label value is taken from a request.

use std::collections::{BTreeMap, BTreeSet};

use etcd_guard_core::reason::Reason;
use etcd_guard_inject::pods as inject;
use fastrand::Rng;
use futures::future::join_all;
use serde_json::{Value, json};

use crate::{Server, UNREACHABLE};
use test_support::{
    guard::process::{CLUSTER_METRICS, SURVEY_INTERVAL},
    http_client::{Connection, get},
};

const PAGE: &str = include_str!("../../docs/metrics.md");

/// The reasons of `/mutate` and of the rules, in addition to those of the guard and of injections.
const OTHER_REASONS: [&str; 15] = [
    "BadRequest",
    "ForbiddenName",
    "Injected",
    "KubeletAsked",
    "Malformed",
    "NameAllowed",
    "NotOurs",
    "NotOverCommitted",
    "UidAdded",
    "UidPresent",
    "NothingToInject",
    "OverCommitted",
    "Restored",
    "UidUnknown",
    "Unreadable",
];

/// The number of concurrent connections, similar to those of API servers.
const CONNECTIONS: u64 = 8;
const REQUESTS: u64 = 10_000;

/// Shows only the label combinations that occurred, because all combinations would be hundreds.
const REQUESTS_METRIC: &str = "etcd_guard_admission_requests_total";

/// Metrics that appear with the first verdict, or with the first survey and its flags: absence is different from zero.
const SHOWN_AFTER_FIRST_USE: [&str; 13] = [
    REQUESTS_METRIC,
    "etcd_guard_admission_duration_seconds",
    "etcd_guard_clusters",
    "etcd_guard_members",
    "etcd_guard_recognition_gaps",
    "etcd_guard_survey_timestamp_seconds",
    "etcd_guard_cluster_state",
    "etcd_guard_cluster_voters",
    "etcd_guard_cluster_healthy_voters",
    "etcd_guard_cluster_quorum",
    "etcd_guard_cluster_has_leader",
    "etcd_guard_cluster_term",
    "etcd_guard_clusters_omitted",
];

/// The largest size of the page before the first review. It is scraped twice a minute for years.
const MAX_IDLE_BYTES: usize = 15_000;

/// A line of the page: the name of the metric and its labels.
type Sample<'a> = (&'a str, Vec<(&'a str, &'a str)>);

fn sample(line: &str) -> Sample<'_> {
    let (series, _) = line.rsplit_once(' ').expect("a value");
    let Some((name, labels)) = series.split_once('{') else { return (series, Vec::new()) };
    let labels = labels.strip_suffix('}').expect("an end of the labels");
    let labels = labels.split("\",").filter(|label| !label.is_empty());
    let labels = labels.map(|label| label.split_once("=\"").expect("a name and a value"));
    (name, labels.map(|(name, value)| (name, value.trim_end_matches('"'))).collect())
}

fn samples(page: &str) -> Vec<Sample<'_>> {
    page.lines().filter(|line| !line.starts_with('#')).map(sample).collect()
}

/// Returns the allowed values of each label, except the bounds of histograms.
fn closed_sets() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let injections = inject::Reason::ALL.iter().map(|reason| reason.as_str());
    let reasons =
        Reason::ALL.iter().map(|reason| reason.as_str()).chain(injections).chain(OTHER_REASONS).collect();
    [
        (
            "webhook",
            [
                "guard.etcd-guard.io",
                "eviction.guard.etcd-guard.io",
                "intent.guard.etcd-guard.io",
                "resources.guard.etcd-guard.io",
                "nodes.guard.etcd-guard.io",
                "rules.etcd-guard.io",
                "uid.guard.etcd-guard.io",
                "update.guard.etcd-guard.io",
                "inject.etcd-guard.io",
                "nodes.etcd-guard.io",
                "unknown",
            ]
            .into(),
        ),
        ("verb", ["get", "list", "watch", "create", "update", "patch", "delete"].into()),
        // No API server answers.
        ("code", ["none"].into()),
        ("resource", ["namespaces", "nodes", "persistentvolumeclaims", "pods", "statefulsets"].into()),
        ("operation", ["CREATE", "UPDATE", "DELETE", "unknown"].into()),
        ("verdict", ["allowed", "denied", "audited"].into()),
        ("reason", reasons),
        (
            "result",
            [
                "success",
                "failure",
                "moved",
                "not_needed",
                "no_transferee",
                "rejected",
                "failed",
                "injected",
                "unchanged",
                "skipped",
                "warned",
                "denied",
                "sent",
                "dropped",
                "written",
                "conflict",
            ]
            .into(),
        ),
        ("cause", etcd_guard_core::etcd::error::MemberError::LABELS.into()),
        (
            "trigger",
            [
                "request",
                "cordon",
                "cluster_autoscaler",
                "karpenter",
                "termination",
                "shutdown",
                "condition",
                "configured",
                "rollout",
            ]
            .into(),
        ),
        ("gap", ["no_member", "port"].into()),
        ("state", ["spare", "no_spare", "single_member", "no_quorum", "unknown"].into()),
        ("version", [env!("CARGO_PKG_VERSION")].into()),
    ]
    .into()
}

fn pick<'a>(random: &mut Rng, known: &[&'a str]) -> &'a str {
    random.choice(known).copied().expect("a word")
}

/// Returns one of these words, or random text.
fn word(random: &mut Rng, known: &[&str]) -> String {
    if random.u8(..) < 200 { pick(random, known).to_owned() } else { noise(random) }
}

fn noise(random: &mut Rng) -> String {
    const LETTERS: [char; 18] =
        ['a', 'b', 'c', 'X', 'Y', '0', '1', '9', '-', '.', '_', '/', '"', '\\', '{', '}', ',', 'é'];
    let length = random.usize(1..30);
    std::iter::repeat_with(|| *random.choice(&LETTERS).expect("a letter")).take(length).collect()
}

fn object(random: &mut Rng) -> Value {
    let phase = word(random, &["Running", "Failed", "Succeeded", "Pending"]);
    let image = word(random, &["quay.io/coreos/etcd:v3.6.16", "nginx"]);
    let annotation =
        word(random, &["etcd-guard.io/inject", "etcd-guard.io/mode", "kubernetes.io/config.mirror"]);
    let value = word(random, &["lxcfs", "audit", "true"]);
    let mut object = json!({
        "metadata": {
            "name": noise(random), "namespace": noise(random), "uid": noise(random),
            "annotations": {annotation: value}, "labels": {noise(random): noise(random)},
        },
        "spec": {"containers": [{"name": noise(random), "image": image}], "replicas": random.u8(..5)},
        "status": {"phase": phase},
    });
    if random.bool() {
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    object
}

/// Returns a random path and body; most are reviews.
fn request(random: &mut Rng) -> (String, String) {
    let path = pick(random, &["/validate", "/mutate"]);
    let path = match random.u8(..20) {
        0 => format!("/{}", random.u32(..)),
        1 => format!("{path}?timeout={}&webhook=w{}", random.u8(..), random.u32(..)),
        _ => format!("{path}?timeout=5s"),
    };
    let resources = ["pods", "statefulsets", "namespaces", "persistentvolumeclaims", "nodes", "secrets"];
    let review = json!({
        "apiVersion": word(random, &["admission.k8s.io/v1", "admission.k8s.io/v1beta1"]),
        "kind": word(random, &["AdmissionReview"]),
        "request": {
            "uid": noise(random),
            "resource": {
                "group": word(random, &["", "apps"]), "version": word(random, &["v1"]),
                "resource": word(random, &resources),
            },
            "subResource": word(random, &["", "", "", "eviction", "status", "scale"]),
            "name": word(random, &["etcd-0", "data-etcd-0", "etcd"]),
            "namespace": word(random, &["prod", "kube-system"]),
            "operation": word(random, &["DELETE", "CREATE", "UPDATE", "CONNECT"]),
            "userInfo": {"username": noise(random), "groups": [noise(random)]},
            "object": object(random),
            "oldObject": object(random),
            "dryRun": random.bool(),
        },
    });
    let mut body = review.to_string();
    if random.u8(..20) == 0 {
        let end = random.usize(..body.len());
        body = body.chars().take(end).collect();
    }
    (path, body)
}

async fn send_random_requests(server: &Server, seed: u64) {
    let mut random = Rng::with_seed(seed);
    let mut connection = Connection::tls(server.address(), &server.guard.ca_pem).await.unwrap();
    for _ in 0..REQUESTS / CONNECTIONS {
        let (path, body) = request(&mut random);
        connection.post(&path, body).await.unwrap();
    }
}

#[tokio::test]
async fn random_requests_add_no_label_values() {
    let server = Server::start(UNREACHABLE);
    join_all((0..CONNECTIONS).map(|seed| send_random_requests(&server, seed))).await;

    let page = get(server.guard.http(), "/metrics").await.unwrap().body;
    let closed = closed_sets();
    let mut reasons = BTreeSet::new();
    for (name, labels) in samples(&page) {
        for (label, value) in labels {
            if label == "le" {
                assert!(value.parse::<f64>().is_ok(), "{name}: {value:?} is no bound");
                continue;
            }
            let known = closed.get(label).unwrap_or_else(|| panic!("{name} has a label {label:?}"));
            assert!(known.contains(value), "{name}: {label}={value:?}");
            // The reasons of injections are on the page from the start.
            if label == "reason" && name == REQUESTS_METRIC {
                reasons.insert(value.to_owned());
            }
        }
    }
    let counted = server.guard.request_count().await;
    assert!(counted > REQUESTS / 2, "{counted} of {REQUESTS} requests were counted");
    assert!(reasons.len() > 8, "few paths were taken: {reasons:?}");
}

/// A metric that appears with its first increase has no rate, so panels and alerts would miss that increase.
#[tokio::test]
async fn shows_series_from_start_on_a_small_page() {
    let server = Server::start(UNREACHABLE);
    let page = get(server.guard.http(), "/metrics").await.unwrap().body;
    let shown: BTreeSet<_> = samples(&page).into_iter().map(|(name, _)| name).collect();
    for name in documented() {
        // The first calls to the API server begin with the server.
        if name.starts_with("etcd_guard_api_server_call") {
            continue;
        }
        // A histogram has buckets, and no sample with its plain name.
        let is_there = shown.contains(name.as_str()) || shown.contains(format!("{name}_count").as_str());
        assert_eq!(is_there, !SHOWN_AFTER_FIRST_USE.contains(&name.as_str()), "{name} in {page}");
    }
    let injections = |line: &&str| line.starts_with("etcd_guard_injections_total{");
    assert_eq!(page.lines().filter(injections).count(), inject::Reason::ALL.len() + 1);
    assert!(page.lines().filter(injections).all(|line| line.ends_with(" 0")), "{page}");
    assert!(page.len() <= MAX_IDLE_BYTES, "{} bytes", page.len());
}

/// Returns the names in the table of the metrics page.
fn documented() -> BTreeSet<String> {
    let row = |line: &str| line.strip_prefix("| `")?.split(['`', '{']).next().map(str::to_owned);
    let is_metric = |name: &String| name.starts_with("etcd_guard_") || name.starts_with("process_");
    PAGE.lines().filter_map(row).filter(is_metric).collect()
}

#[tokio::test]
async fn documents_exactly_the_exported_metrics() {
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join(SURVEY_INTERVAL), "100ms").unwrap();
    std::fs::write(files.path().join(CLUSTER_METRICS), "").unwrap();
    let server = Server::with_files(UNREACHABLE, files);
    // Metrics with labels appear with their first increase.
    send_random_requests(&server, 1).await;
    test_support::wait::wait_until("a survey was made", std::time::Duration::from_secs(60), async || {
        get(server.guard.http(), "/metrics").await.unwrap().body.contains("etcd_guard_clusters{")
    })
    .await;

    let page = get(server.guard.http(), "/metrics").await.unwrap().body;
    let mut shown = BTreeSet::new();
    for line in page.lines().filter_map(|line| line.strip_prefix("# HELP ")) {
        let (name, help) = line.split_once(' ').expect("a name and a text");
        assert!(help.len() > 10, "{name}: {help:?}");
        shown.insert(name.to_owned());
    }
    for line in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').expect("a name and a type");
        assert!(shown.remove(name), "{name} has no help text");
        // Names as in queries.
        let suffix = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        shown.insert(format!("{name}{suffix}"));
    }
    assert_eq!(shown, documented());
}
