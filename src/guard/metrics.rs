//! What the guard counts of its own work.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use super::survey::State;
use crate::etcd::{Cause, Reply};

/// Upper bounds in seconds: from a round on reused connections to one that waits for a frozen member.
const ROUND_BUCKETS: [f64; 9] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 0.5, 1.0];

/// Counters and histograms of probe rounds.
#[derive(Clone)]
pub(super) struct Metrics {
    rounds: Histogram,
    failures: Family<FailureLabels, Counter>,
    transfers: Family<TransferLabels, Counter>,
    break_glass: Counter,
    clusters: Family<StateLabel, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailureLabels {
    cause: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TransferLabels {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

// === impl Metrics ===

impl Metrics {
    /// Registers the guard's metrics.
    pub(super) fn register(registry: &mut Registry) -> Self {
        let rounds = Histogram::new(ROUND_BUCKETS);
        let failures: Family<FailureLabels, Counter> = Family::default();
        // All from the start: what appears with its first increase has no rate.
        for cause in Cause::LABELS {
            drop(failures.get_or_create(&FailureLabels { cause }));
        }
        registry.register(
            "probe_duration_seconds",
            "Time of a probe round, in which all members of a cluster are asked in parallel",
            rounds.clone(),
        );
        registry.register(
            "probe_failures",
            "Members that did not serve a linearizable read, by cause",
            failures.clone(),
        );
        let transfers: Family<TransferLabels, Counter> = Family::default();
        for result in ["moved", "failed"] {
            drop(transfers.get_or_create(&TransferLabels { result }));
        }
        let break_glass = Counter::default();
        registry.register(
            "leader_transfers",
            "Attempts to move leadership before a deletion, by result",
            transfers.clone(),
        );
        registry.register(
            "break_glass",
            "Denials that a break-glass annotation overruled",
            break_glass.clone(),
        );
        let clusters = Family::default();
        registry.register(
            "clusters",
            "Guarded etcd clusters by what the last survey found: none without --survey-interval",
            clusters.clone(),
        );
        Self { rounds, failures, transfers, break_glass, clusters }
    }

    pub(super) fn record_transfer(&self, moved: bool) {
        let result = if moved { "moved" } else { "failed" };
        self.transfers.get_or_create(&TransferLabels { result }).inc();
    }

    pub(super) fn record_break_glass(&self) {
        self.break_glass.inc();
    }

    /// Shows how many clusters a survey found in each state.
    pub(super) fn record_survey(&self, found: &[State]) {
        for state in State::ALL {
            let count = found.iter().filter(|it| **it == state).count();
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.clusters.get_or_create(&StateLabel { state: state.word() }).set(count);
        }
    }

    pub(super) fn record_round(&self, took: Duration, replies: &[Reply]) {
        self.rounds.observe(took.as_secs_f64());
        for cause in replies.iter().filter_map(Reply::cause) {
            self.failures.get_or_create(&FailureLabels { cause: cause.label() }).inc();
        }
    }
}
