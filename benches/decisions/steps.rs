//! The steps of a fresh approval, from the trace spans of a guard that exports them.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;

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
    /// The time in the evaluation beside these steps.
    rest: Duration,
    /// The time from the request to the response, without the evaluation: TLS, HTTP and the client.
    transport: Duration,
}

/// Measures approvals of this pod's deletion by a guard that exports its spans, and reviews of a pod that runs no etcd in turn
/// with them, on the same connection.
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
            let started = Instant::now();
            let response = connection.post(PATH, review).await.unwrap();
            times.push(started.elapsed());
            let (allowed, message) = verdict(&response.body);
            assert!(allowed, "{message}");
        }
    }
    let reviews = wait_for("the spans of all approvals arrive", START_TIMEOUT, async || {
        let found = reviews(&receiver.spans());
        (found.len() == WARM_UP + APPROVALS).then_some(found)
    })
    .await;
    let parts: Vec<Parts> = reviews
        .iter()
        .zip(approvals)
        .skip(WARM_UP)
        .map(|((review, steps), time)| parts(review, steps, time))
        .collect();
    let times = |part: fn(&Parts) -> Duration| Times::new(parts.iter().map(part).collect());
    let all = [
        ("reads", times(|parts| parts.reads)),
        ("round", times(|parts| parts.round)),
        ("write", times(|parts| parts.write)),
        ("evaluation", times(|parts| parts.rest)),
        ("TLS, HTTP and client", times(|parts| parts.transport)),
    ];
    let texts = all.map(|(name, times)| {
        format!("{name} {} (p99 {})", ms(times.percentile(50)), ms(times.percentile(99)))
    });
    let others = Times::new(others.split_off(WARM_UP));
    Row {
        quantity: format!("steps of a fresh approval, {cluster}, with traces"),
        figure: texts.join(", "),
        reference: String::from("review of a pod without etcd, same connection"),
        reference_figure: format!("{} (p99 {})", ms(others.percentile(50)), ms(others.percentile(99))),
        bar: None,
    }
}

/// Returns the spans of the approvals with their steps, in the order of the approvals.
fn reviews(spans: &[ReceivedSpan]) -> Vec<(ReceivedSpan, Vec<ReceivedSpan>)> {
    let is_approval = |span: &&ReceivedSpan| {
        span.attribute("reason") == "SafeToDelete" && span.attribute("dry_run") == "false"
    };
    let mut approvals: Vec<ReceivedSpan> = spans.iter().filter(is_approval).cloned().collect();
    approvals.sort_by_key(|span| span.began);
    let steps = |review: &ReceivedSpan| {
        spans.iter().filter(|span| span.parent_id == review.span_id).cloned().collect()
    };
    approvals.into_iter().map(|review| (review.clone(), steps(&review))).collect()
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
    }
}
