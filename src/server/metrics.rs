//! What the server counts of its answers, and the page that shows it.

use std::time::Duration;

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, histogram::Histogram, info::Info},
    registry::Registry,
};

use crate::{
    guard::{Intent, Operation, Verdict},
    inject,
};

/// The content type of the text format.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper bounds in seconds: from an answer out of the cache to the apiserver's longest patience.
const ANSWER_BUCKETS: [f64; 10] = [0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 3.0, 10.0];

/// Of a pod that could get nothing.
pub(super) const NOTHING_TO_INJECT: &str = "NothingToInject";

/// Entries of webhook configurations whose answers hang on no etcd cluster.
#[derive(Clone, Copy, Debug)]
pub(super) enum Entry {
    /// New pods, to be mutated.
    Inject,
    /// Updates of nodes' status, to be mutated.
    Nodes,
    /// New pods, to be judged by their names.
    Rules,
    /// What no entry of ours sends.
    Unknown,
}

/// Counters and histograms of answered requests.
#[derive(Clone)]
pub(super) struct Metrics {
    requests: Family<RequestLabels, Counter>,
    injections: Family<InjectionLabels, Counter>,
    durations: Family<WebhookLabel, Histogram, fn() -> Histogram>,
}

/// All from closed sets: what a request brings never becomes a label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    webhook: &'static str,
    operation: &'static str,
    verdict: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InjectionLabels {
    result: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WebhookLabel {
    webhook: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
}

/// The entry of the webhook configuration that sends an operation.
fn webhook(operation: Operation) -> (&'static str, &'static str) {
    match operation {
        Operation::Delete => ("guard.etcd-guard.io", "DELETE"),
        Operation::Evict => ("eviction.guard.etcd-guard.io", "CREATE"),
        Operation::Intent(Intent::ScaleDown { .. }) => ("intent.guard.etcd-guard.io", "UPDATE"),
        Operation::Intent(_) => ("intent.guard.etcd-guard.io", "DELETE"),
    }
}

// === impl Entry ===

impl Entry {
    /// As the webhook configuration names it, and the operation that it sends.
    fn labels(self) -> (&'static str, &'static str) {
        match self {
            Self::Inject => ("inject.etcd-guard.io", "CREATE"),
            Self::Nodes => ("nodes.etcd-guard.io", "UPDATE"),
            Self::Rules => ("rules.etcd-guard.io", "CREATE"),
            Self::Unknown => ("unknown", "unknown"),
        }
    }
}

// === impl InjectionLabels ===

impl InjectionLabels {
    fn of(reason: Option<inject::Reason>) -> Self {
        let result = reason.map_or(inject::Result::Unchanged, inject::Reason::result);
        Self { result: result.word(), reason: reason.map_or(NOTHING_TO_INJECT, inject::Reason::word) }
    }
}

// === impl Metrics ===

impl Metrics {
    /// Registers the server's metrics.
    pub(super) fn register(registry: &mut Registry) -> Self {
        let requests = Family::default();
        let new_histogram: fn() -> Histogram = || Histogram::new(ANSWER_BUCKETS);
        let durations = Family::new_with_constructor(new_histogram);
        registry.register("admission_requests", "Answered admission requests", requests.clone());
        registry.register(
            "admission_duration_seconds",
            "Time from an admission request's last byte to its verdict",
            durations.clone(),
        );
        let injections: Family<InjectionLabels, Counter> = Family::default();
        // All from the start: what appears with its first increase has no rate.
        for reason in inject::Reason::ALL.iter().copied().map(Some).chain([None]) {
            drop(injections.get_or_create(&InjectionLabels::of(reason)));
        }
        registry.register("injections", "Things injected into pods, or left out", injections.clone());
        let build = Info::new(BuildLabels { version: env!("CARGO_PKG_VERSION") });
        registry.register("build", "The release that runs", build);
        Self { requests, injections, durations }
    }

    /// Counts an answer that hangs on no etcd cluster.
    pub(super) fn record_answer(&self, entry: Entry, allowed: bool, reason: &'static str, took: Duration) {
        let (webhook, operation) = entry.labels();
        let verdict = if allowed { "allowed" } else { "denied" };
        self.requests.get_or_create(&RequestLabels { webhook, operation, verdict, reason }).inc();
        self.durations.get_or_create(&WebhookLabel { webhook }).observe(took.as_secs_f64());
    }

    /// Counts what became of one thing that a pod could get, or a pod that could get nothing.
    pub(super) fn record_injection(&self, reason: Option<inject::Reason>) {
        self.injections.get_or_create(&InjectionLabels::of(reason)).inc();
    }

    /// Counts a verdict.
    pub(super) fn record(&self, operation: Operation, verdict: &Verdict, took: Duration) {
        let (webhook, operation) = webhook(operation);
        let labels =
            RequestLabels { webhook, operation, verdict: verdict.word(), reason: verdict.reason.word() };
        self.requests.get_or_create(&labels).inc();
        self.durations.get_or_create(&WebhookLabel { webhook }).observe(took.as_secs_f64());
    }

    /// Counts a request that could not be judged because of a mistake in it.
    pub(super) fn record_bad_request(&self) {
        let labels = RequestLabels {
            webhook: "unknown",
            operation: "unknown",
            verdict: "denied",
            reason: "BadRequest",
        };
        self.requests.get_or_create(&labels).inc();
    }
}

/// All metrics of the process as text.
pub(super) fn render(registry: &Registry) -> Result<String, std::fmt::Error> {
    let mut page = String::new();
    encode(&mut page, registry)?;
    Ok(page)
}
