//! Metrics of admission requests.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram, info::Info},
    registry::Registry,
};

use etcd_guard_core::{
    request::{Operation, workload_operation::WorkloadOperation},
    verdict::Verdict,
};
use etcd_guard_inject::pods as inject;

/// Upper bounds of the duration histogram in seconds, from a response without I/O to the API server's default timeout.
const DURATION_BUCKETS: [f64; 10] = [0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 3.0, 10.0];

/// The reason code of a pod without a matching injection.
pub(super) const NOTHING_TO_INJECT: &str = "NothingToInject";

/// Entries of the webhook configurations that do not depend on an etcd cluster.
#[derive(Clone, Copy, Debug)]
pub(super) enum WebhookEntry {
    /// Mutation of new pods.
    Inject,
    /// Mutation of node status updates.
    Nodes,
    /// Validation of the names of new pods.
    Rules,
    /// Mutation of evictions.
    Uid,
    /// A request that no entry of the shipped configurations sends.
    Unknown,
}

/// Counters and histograms of admission requests.
#[derive(Clone)]
pub(crate) struct Metrics {
    requests: Family<RequestLabels, Counter>,
    injections: Family<InjectionLabels, Counter>,
    durations: Family<WebhookLabel, Histogram, fn() -> Histogram>,
}

/// All values are from closed sets. Content of a request never becomes a label.
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

/// Returns the labels `webhook` and `operation` of an operation.
fn operation_labels(operation: Operation) -> (&'static str, &'static str) {
    match operation {
        Operation::Delete => ("guard.etcd-guard.io", "DELETE"),
        Operation::Evict => ("eviction.guard.etcd-guard.io", "CREATE"),
        Operation::Update(_) => ("update.guard.etcd-guard.io", "UPDATE"),
        Operation::Workload(WorkloadOperation::ScaleDown { .. } | WorkloadOperation::ScaleOwner { .. }) => {
            ("intent.guard.etcd-guard.io", "UPDATE")
        }
        Operation::Workload(WorkloadOperation::DeleteResource(_)) => {
            ("resources.guard.etcd-guard.io", "DELETE")
        }
        Operation::Workload(WorkloadOperation::DeleteNode { .. }) => ("nodes.guard.etcd-guard.io", "DELETE"),
        Operation::Workload(_) => ("intent.guard.etcd-guard.io", "DELETE"),
    }
}

// === impl WebhookEntry ===

impl WebhookEntry {
    /// Returns the labels `webhook` and `operation`.
    fn labels(self) -> (&'static str, &'static str) {
        match self {
            Self::Inject => ("inject.etcd-guard.io", "CREATE"),
            Self::Nodes => ("nodes.etcd-guard.io", "UPDATE"),
            Self::Rules => ("rules.etcd-guard.io", "CREATE"),
            Self::Uid => ("uid.guard.etcd-guard.io", "CREATE"),
            Self::Unknown => ("unknown", "unknown"),
        }
    }
}

// === impl InjectionLabels ===

impl InjectionLabels {
    fn new(reason: Option<inject::Reason>) -> Self {
        let result = reason.map_or(inject::Outcome::Unchanged, inject::Reason::outcome);
        Self { result: result.as_str(), reason: reason.map_or(NOTHING_TO_INJECT, inject::Reason::as_str) }
    }
}

// === impl Metrics ===

impl Metrics {
    /// Registers the server's metrics.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let requests = Family::default();
        let new_histogram: fn() -> Histogram = || Histogram::new(DURATION_BUCKETS);
        let durations = Family::new_with_constructor(new_histogram);
        registry.register(
            "admission_requests",
            "Admission requests by webhook, operation, verdict and reason",
            requests.clone(),
        );
        registry.register(
            "admission_duration_seconds",
            "Time from the last byte of an admission request to its verdict",
            durations.clone(),
        );
        let injections: Family<InjectionLabels, Counter> = Family::default();
        // All series exist from the start: a counter that appears with its first increase has no rate.
        for reason in inject::Reason::ALL.iter().copied().map(Some).chain([None]) {
            drop(injections.get_or_create(&InjectionLabels::new(reason)));
        }
        registry.register("injections", "Injections into pods by result and reason", injections.clone());
        let build = Info::new(BuildLabels { version: env!("CARGO_PKG_VERSION") });
        registry.register("build", "Version of the running program", build);
        Self { requests, injections, durations }
    }

    /// Records a result that does not depend on an etcd cluster.
    pub(super) fn record_result(
        &self,
        entry: WebhookEntry,
        allowed: bool,
        reason: &'static str,
        elapsed: Duration,
    ) {
        let (webhook, operation) = entry.labels();
        let verdict = if allowed { "allowed" } else { "denied" };
        self.requests.get_or_create(&RequestLabels { webhook, operation, verdict, reason }).inc();
        self.durations.get_or_create(&WebhookLabel { webhook }).observe(elapsed.as_secs_f64());
    }

    /// Records the result of one injection, or a pod without a matching injection.
    pub(super) fn record_injection(&self, reason: Option<inject::Reason>) {
        self.injections.get_or_create(&InjectionLabels::new(reason)).inc();
    }

    /// Records a verdict of the guard.
    pub(super) fn record_verdict(&self, operation: Operation, verdict: &Verdict, elapsed: Duration) {
        let (webhook, operation) = operation_labels(operation);
        let labels =
            RequestLabels { webhook, operation, verdict: verdict.outcome(), reason: verdict.reason.as_str() };
        self.requests.get_or_create(&labels).inc();
        self.durations.get_or_create(&WebhookLabel { webhook }).observe(elapsed.as_secs_f64());
    }

    /// Records a malformed request.
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
