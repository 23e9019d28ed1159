//! Metrics of the guard: probe rounds, leader transfers, break-glass approvals and surveyed clusters.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use etcd_guard_core::{
    cluster_state::ClusterState,
    etcd::{
        error::MemberError,
        probe_result::ProbeResult,
        release::{stale_read_fix, wrong_list_fix},
    },
    handover::Trigger,
};

/// Upper bounds in seconds: from a probe round on reused connections to one that waits for a frozen member.
const PROBE_DURATION_BUCKETS: [f64; 9] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 0.5, 1.0];

/// Upper bounds in seconds: from a transfer that one heartbeat and one probe round complete to one at the timeout of a
/// webhook.
const TRANSFER_DURATION_BUCKETS: [f64; 7] = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// Upper bounds in seconds: from a handover on reused connections, of which the transfer takes 100 ms, to one that waits for
/// an election.
const HANDOVER_DURATION_BUCKETS: [f64; 8] = [0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0];

/// Results of handovers that are counted.
const HANDOVER_RESULTS: [&str; 5] = ["moved", "not_needed", "no_transferee", "rejected", "failed"];

/// The guard's metrics. Clones share the values.
#[derive(Clone)]
pub(super) struct Metrics {
    probe_durations: Histogram,
    probe_failures: Family<FailureLabels, Counter>,
    transfers: Family<TransferLabels, Counter>,
    transfer_durations: Histogram,
    handovers: Family<HandoverLabels, Counter>,
    handover_durations: Histogram,
    break_glass: Counter,
    clusters: Family<StateLabel, Gauge>,
    members: Family<ReleaseLabel, Gauge>,
    recognition_gaps: Family<GapLabel, Gauge>,
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
struct HandoverLabels {
    trigger: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReleaseLabel {
    release: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GapLabel {
    gap: &'static str,
}

/// Values of [`ReleaseLabel`].
const RELEASES: [&str; 4] = ["stale_reads", "wrong_lists", "ok", "unknown"];

/// Returns the label of a member with this version, if it returned one.
fn release_label(version: Option<&str>) -> &'static str {
    match version {
        Some(version) if stale_read_fix(version).is_some() => "stale_reads",
        Some(version) if wrong_list_fix(version).is_some() => "wrong_lists",
        Some(_) => "ok",
        None => "unknown",
    }
}

// === impl Metrics ===

impl Metrics {
    /// Registers the metrics in `registry`.
    pub(super) fn register(registry: &mut Registry) -> Self {
        let probe_durations = Histogram::new(PROBE_DURATION_BUCKETS);
        let probe_failures: Family<FailureLabels, Counter> = Family::default();
        // All labels exist from the start: a counter that appears with its first increase has no rate.
        for cause in MemberError::LABELS {
            drop(probe_failures.get_or_create(&FailureLabels { cause }));
        }
        registry.register(
            "probe_duration_seconds",
            "Duration of a probe round, which probes all members of a cluster in parallel",
            probe_durations.clone(),
        );
        registry.register(
            "probe_failures",
            "Members that failed to serve a linearizable read, by cause",
            probe_failures.clone(),
        );
        let transfers: Family<TransferLabels, Counter> = Family::default();
        for result in ["moved", "failed"] {
            drop(transfers.get_or_create(&TransferLabels { result }));
        }
        let handovers: Family<HandoverLabels, Counter> = Family::default();
        for trigger in Trigger::ALL {
            for result in HANDOVER_RESULTS {
                drop(handovers.get_or_create(&HandoverLabels { trigger: trigger.as_str(), result }));
            }
        }
        let handover_durations = Histogram::new(HANDOVER_DURATION_BUCKETS);
        registry.register(
            "handovers",
            "Handovers of leadership on signals of nodes and rollouts and on request, by trigger and result",
            handovers.clone(),
        );
        registry.register(
            "handover_duration_seconds",
            "Time from the signal that this replica evaluates to the verified new leader",
            handover_durations.clone(),
        );
        let break_glass = Counter::default();
        registry.register(
            "leader_transfers",
            "Leader transfers before deletions, by result",
            transfers.clone(),
        );
        let transfer_durations = Histogram::new(TRANSFER_DURATION_BUCKETS);
        registry.register(
            "leader_transfer_duration_seconds",
            "Time from the request to move leadership until a snapshot proved that the former leader can be deleted",
            transfer_durations.clone(),
        );
        registry.register(
            "break_glass",
            "Denials overruled by a break-glass annotation",
            break_glass.clone(),
        );
        let clusters = Family::default();
        registry.register(
            "clusters",
            "Guarded etcd clusters by their state in the last survey; empty without --survey-interval",
            clusters.clone(),
        );
        let members = Family::default();
        registry.register(
            "members",
            "Members of guarded etcd clusters in the last survey; stale_reads if the release can confirm a read at a deposed \
             leader (etcd issue 20418), otherwise wrong_lists if it can list a learner as a voter or a voter as a learner (21694, \
             19557)",
            members.clone(),
        );
        let recognition_gaps = Family::default();
        registry.register(
            "recognition_gaps",
            "Guarded namespaces without a recognized member (no_member), and unrecognized pods that declare a port of etcd \
             (port), in the last survey",
            recognition_gaps.clone(),
        );
        Self {
            probe_durations,
            probe_failures,
            transfers,
            transfer_durations,
            handovers,
            handover_durations,
            break_glass,
            clusters,
            members,
            recognition_gaps,
        }
    }

    /// Counts an attempt to move leadership.
    pub(super) fn record_transfer(&self, is_moved: bool) {
        let result = if is_moved { "moved" } else { "failed" };
        self.transfers.get_or_create(&TransferLabels { result }).inc();
    }

    /// Records the duration of a transfer, until a snapshot verified the result.
    pub(super) fn record_transfer_duration(&self, duration: Duration) {
        self.transfer_durations.observe(duration.as_secs_f64());
    }

    /// Counts a handover with one of [`HANDOVER_RESULTS`], and records the duration of a move.
    pub(super) fn record_handover(&self, trigger: &'static str, result: &'static str, duration: Duration) {
        self.handovers.get_or_create(&HandoverLabels { trigger, result }).inc();
        if result == "moved" {
            self.handover_durations.observe(duration.as_secs_f64());
        }
    }

    /// Counts a denial that a break-glass annotation overruled.
    pub(super) fn record_break_glass(&self) {
        self.break_glass.inc();
    }

    /// Sets the number of clusters in each state after a survey.
    pub(super) fn record_survey(&self, states: &[ClusterState]) {
        for state in ClusterState::ALL {
            let count = states.iter().filter(|found| **found == state).count();
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.clusters.get_or_create(&StateLabel { state: state.as_str() }).set(count);
        }
    }

    /// Sets the number of members of each kind of release after a survey. A member that did not answer has no version.
    pub(super) fn record_releases(&self, versions: &[Option<&str>]) {
        for release in RELEASES {
            let count = versions.iter().filter(|version| release_label(**version) == release).count();
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.members.get_or_create(&ReleaseLabel { release }).set(count);
        }
    }

    /// Sets the number of guarded namespaces without a recognized member, and of workloads with unrecognized pods that
    /// declare a port of etcd, after a survey.
    pub(super) fn record_gaps(&self, namespaces: usize, workloads: usize) {
        for (gap, count) in [("no_member", namespaces), ("port", workloads)] {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.recognition_gaps.get_or_create(&GapLabel { gap }).set(count);
        }
    }

    /// Records the duration and the failures of a probe round.
    pub(super) fn record_probe_round(&self, duration: Duration, results: &[ProbeResult]) {
        self.probe_durations.observe(duration.as_secs_f64());
        for cause in results.iter().filter_map(ProbeResult::cause) {
            self.probe_failures.get_or_create(&FailureLabels { cause: cause.label() }).inc();
        }
    }
}
