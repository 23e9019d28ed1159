//! The steps of a fresh approval, from the trace spans of a guard that exports them.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use crate::{approvals::wait_until_approved, webhook::PATH};
use test_support::{
    bench_table::{Row, Times, ms},
    guard::{
        process::{GuardProcess, OTLP_ENDPOINT},
        review::{deletion_review, verdict},
    },
    guarded_cluster::START_TIMEOUT,
    http_client::Connection,
    telemetry::trace_receiver::{ReceivedSpan, TraceReceiver},
    wait::wait_for,
};

/// The number of approvals whose steps are measured.
const APPROVALS: usize = 500;

/// Approvals that are not measured.
const WARM_UP: usize = 20;

/// The spans of the reads from the API server, which are concurrent.
const READS: [&str; 2] =
    ["reading the pods from the API server", "reading the reservations from the API server"];

/// The span of the probe round.
const ROUND: &str = "probing the members";

/// The span of the write to the API server.
const WRITE: &str = "writing the reservation to the API server";

/// The parts of an approval, which follow each other.
struct Parts {
    /// From the start of the first read until the end of the last one.
    reads: Duration,
    round: Duration,
    write: Duration,
    /// The rest of the review's span: receiving and parsing the body, the evaluation, and the text of the response.
    rest: Duration,
    /// The time of the client outside of this span: TLS, HTTP and the client itself.
    transport: Duration,
    /// The time from the request to the response.
    all: Duration,
}

/// Starts a guard that exports its spans. Sends by turns a review of `pod`, which is approved after a probe, and a review of
/// `other`, which runs no etcd, on one connection.
pub(crate) async fn measure(cluster: &str, kubeconfig: &Path, files: &Path, pod: &Pod, other: &Pod) -> Row {
    let receiver = TraceReceiver::start().await;
    std::fs::create_dir_all(files).unwrap();
    std::fs::write(files.join(OTLP_ENDPOINT), receiver.endpoint()).unwrap();
    let guard = GuardProcess::start(kubeconfig, files).await;
    let mut connection = Connection::tls(guard.https(), &guard.ca_pem).await.unwrap();
    wait_until_approved(&mut connection, pod).await;
    let (mut approvals, mut others) = (Vec::new(), Vec::new());
    for _ in 0..WARM_UP + APPROVALS {
        for (pod, times) in [(pod, &mut approvals), (other, &mut others)] {
            let review = deletion_review(pod);
            let uid = review_uid(&review);
            let started = Instant::now();
            let response = connection.post(PATH, review).await.unwrap();
            times.push((uid, started.elapsed()));
            let (allowed, message) = verdict(&response.body);
            assert!(allowed, "{message}");
        }
    }
    let reviews = wait_for("the spans of all approvals arrive", START_TIMEOUT, async || {
        let found = reviews(&receiver.spans());
        (found.len() == WARM_UP + APPROVALS).then_some(found)
    })
    .await;
    let reviews: BTreeMap<&str, _> =
        reviews.iter().map(|(review, steps)| (review.attribute("uid"), (review, steps))).collect();
    let parts: Vec<Parts> = approvals
        .iter()
        .skip(WARM_UP)
        .map(|(uid, time)| {
            let (review, steps) = reviews[uid.as_str()];
            parts(review, steps, *time)
        })
        .collect();
    let times = |part: fn(&Parts) -> Duration| Times::new(parts.iter().map(part).collect());
    let all = [
        ("reads", times(|parts| parts.reads)),
        ("round", times(|parts| parts.round)),
        ("write", times(|parts| parts.write)),
        ("rest of the review", times(|parts| parts.rest)),
        ("TLS, HTTP and client", times(|parts| parts.transport)),
        ("all", times(|parts| parts.all)),
    ];
    let texts = all.map(|(name, times)| {
        format!("{name} {} (p99 {})", ms(times.percentile(50)), ms(times.percentile(99)))
    });
    let others = Times::new(others.split_off(WARM_UP).into_iter().map(|(_, time)| time).collect());
    Row {
        quantity: format!("steps of a fresh approval, {cluster}, with traces"),
        figure: texts.join(", "),
        reference: String::from("review of a pod without etcd, same connection"),
        reference_figure: format!("{} (p99 {})", ms(others.percentile(50)), ms(others.percentile(99))),
        bar: None,
    }
}

/// Returns the uid in the text of a review.
fn review_uid(review: &str) -> String {
    let review: Value = serde_json::from_str(review).unwrap();
    review["request"]["uid"].as_str().unwrap().to_owned()
}

/// Returns the spans of the approvals with their steps.
fn reviews(spans: &[ReceivedSpan]) -> Vec<(ReceivedSpan, Vec<ReceivedSpan>)> {
    let is_approval = |span: &&ReceivedSpan| {
        span.attribute("reason") == "SafeToDelete" && span.attribute("dry_run") == "false"
    };
    let steps = |review: &ReceivedSpan| {
        spans.iter().filter(|span| span.parent_id == review.span_id).cloned().collect()
    };
    spans.iter().filter(is_approval).map(|review| (review.clone(), steps(review))).collect()
}

fn parts(review: &ReceivedSpan, steps: &[ReceivedSpan], time: Duration) -> Parts {
    let total = |names: &[&str]| {
        let named: Vec<_> = steps.iter().filter(|span| names.contains(&span.name.as_str())).collect();
        assert_eq!(named.len(), names.len(), "{names:?}: {steps:?}");
        let began = named.iter().map(|span| span.began).min().unwrap_or_default();
        let ended = named.iter().map(|span| span.began + span.took).max().unwrap_or_default();
        ended.saturating_sub(began)
    };
    let (reads, round, write) = (total(&READS), total(&[ROUND]), total(&[WRITE]));
    Parts {
        reads,
        round,
        write,
        rest: review.took.saturating_sub(reads + round + write),
        transport: time.saturating_sub(review.took),
        all: time,
    }
}
