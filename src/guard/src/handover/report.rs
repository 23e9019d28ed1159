//! Outcomes of handovers, and their log lines, metrics and events.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;

use crate::metrics::Metrics;
use etcd_guard_cache::{ExpiringCache, Lifetime};
use etcd_guard_core::{
    escape::{MAX_ERROR_CHARS, to_bounded_line, to_shell_word},
    handover::Signal,
};
use etcd_guard_kubernetes::{EventRecord, EventRecorder};

/// Reason of the event for a move.
const MOVED: &str = "LeaderMoved";

/// Reason of the event for a move that failed or was not possible.
const FAILED: &str = "LeaderMoveFailed";

/// Reason of the event for a request that cannot be carried out.
const REJECTED: &str = "LeaderMoveRejected";

/// Maximum number of clusters whose last note is remembered.
const MAX_NOTES: u64 = 1024;

/// Interval at which an event with the same note is repeated.
const REPEAT_INTERVAL: Duration = Duration::from_secs(600);

/// Outcome of a handover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Leadership was moved.
    Moved(Moved),
    /// Leadership is where it has to be.
    NotNeeded(String),
    /// No other voter can take over.
    NoTransferee { leader: String, cause: String },
    /// The request cannot be carried out.
    Rejected(String),
    /// Leadership was not moved, or the result is unknown.
    Failed { leader: Option<String>, cause: String },
    /// The ledger shows that a replica has handled the signal.
    Handled,
    /// The ledger shows that a replica acts, or acted until a moment ago. Contains the time after which the signal has to be
    /// evaluated again: the replica may have ended before the transfer. Also a request soon after the move of another one.
    InProgress(Duration),
    /// The node no longer shows the signal, or the annotation has another value.
    Withdrawn,
}

/// A move of leadership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) from: String,
    pub(super) to: String,
    /// The terms before and after the move.
    pub(super) terms: (u64, u64),
    /// Duration of the transfer.
    pub(super) taken: Duration,
}

/// Reports outcomes.
pub(super) struct Reporter {
    events: EventRecorder,
    metrics: Metrics,
    /// The last note about each cluster whose leadership could not be moved.
    notes: ExpiringCache<String, String>,
}

/// The object on which the event is recorded, and the StatefulSet that receives a copy.
pub(super) struct Subject {
    pub(super) object: ObjectReference,
    pub(super) stateful_set: Option<ObjectReference>,
}

// === impl Outcome ===

impl Outcome {
    /// Value of the metric label, the span attribute and the log field.
    pub(super) const fn label(&self) -> &'static str {
        match self {
            Self::Moved(_) => "moved",
            Self::NotNeeded(_) => "not_needed",
            Self::NoTransferee { .. } => "no_transferee",
            Self::Rejected(_) => "rejected",
            Self::Failed { .. } => "failed",
            Self::Handled => "handled",
            Self::InProgress(_) => "in_progress",
            Self::Withdrawn => "withdrawn",
        }
    }

    /// Whether this replica reports the outcome. The replica that handles a signal reports the outcome of that signal.
    fn is_reported(&self, is_request: bool) -> bool {
        match self {
            Self::Handled | Self::InProgress(_) | Self::Withdrawn => false,
            Self::NotNeeded(_) => is_request,
            Self::Moved(_) | Self::NoTransferee { .. } | Self::Rejected(_) | Self::Failed { .. } => true,
        }
    }

    /// Reason of the event.
    const fn reason(&self) -> &'static str {
        match self {
            Self::Moved(_) | Self::NotNeeded(_) => MOVED,
            Self::Rejected(_) => REJECTED,
            Self::NoTransferee { .. }
            | Self::Failed { .. }
            | Self::Handled
            | Self::InProgress(_)
            | Self::Withdrawn => FAILED,
        }
    }

    /// Returns the pod that leads, or that led before the move.
    pub(super) fn leader(&self) -> Option<&str> {
        match self {
            Self::Moved(moved) => Some(&moved.from),
            Self::NoTransferee { leader, .. } => Some(leader),
            Self::Failed { leader, .. } => leader.as_deref(),
            Self::NotNeeded(_)
            | Self::Rejected(_)
            | Self::Handled
            | Self::InProgress(_)
            | Self::Withdrawn => None,
        }
    }

    /// Returns the outcome as text, with a remedy.
    fn text(&self, namespace: &str) -> String {
        let namespace = to_shell_word(namespace);
        match self {
            Self::Moved(Moved { from, to, terms: (before, after), taken }) => format!(
                "leadership moved from {from} to {to} (term {before} to {after}) in {} ms",
                taken.as_millis()
            ),
            Self::NotNeeded(text) => text.clone(),
            Self::NoTransferee { leader, cause } => format!(
                "leadership stays at {leader}, because no other voter can take over: {cause}. Wait until another voter is \
                 ready: kubectl -n {namespace} get pods -o wide"
            ),
            Self::Rejected(cause) | Self::Failed { cause, .. } => {
                format!(
                    "{cause}. Check the members, then request the move again: kubectl -n {namespace} get pods -o wide"
                )
            }
            Self::Handled | Self::InProgress(_) | Self::Withdrawn => String::new(),
        }
    }
}

// === impl Reporter ===

impl Reporter {
    /// Creates a reporter that records events in `events`.
    pub(super) fn new(events: EventRecorder, metrics: Metrics) -> Self {
        let notes = ExpiringCache::new(MAX_NOTES, Lifetime::SinceInsertion(REPEAT_INTERVAL));
        Self { events, metrics, notes }
    }

    /// Reports the outcome of a signal. `subject` is the pod that leads or led, with its StatefulSet. A failed handover without a
    /// known leader writes no Event, because leadership may not have to leave the node.
    pub(super) fn report_signal(
        &self,
        cluster: &str,
        signal: &Signal,
        outcome: &Outcome,
        elapsed: Duration,
        (namespace, subject): (&str, Subject),
    ) {
        if !outcome.is_reported(false) {
            return;
        }
        self.log(cluster, signal, outcome, elapsed);
        let note = format!("{}: {}", signal.text, outcome.text(namespace));
        let record = record(subject, outcome, note);
        let has_unknown_leader = matches!(outcome, Outcome::Failed { leader: None, .. });
        if !has_unknown_leader && self.is_new(cluster, outcome, &record.note) {
            // `record` would drop the note of a later Event with the same reason.
            self.events.answer(record);
        }
    }

    /// Answers a request. The note begins with the name and the value of the annotation.
    pub(super) fn answer(
        &self,
        cluster: &str,
        (signal, value): (&Signal, &str),
        outcome: &Outcome,
        elapsed: Duration,
        (namespace, subject): (&str, Subject),
    ) {
        if !outcome.is_reported(true) {
            return;
        }
        self.log(cluster, signal, outcome, elapsed);
        let note = format!("move-leader {value}: {}", outcome.text(namespace));
        self.events.answer(record(subject, outcome, note));
    }

    /// Returns whether the note must be written, and stores the note. The guard evaluates a signal every 15 s; an unchanged note is
    /// repeated after [`REPEAT_INTERVAL`]. Each move has a note of its own.
    fn is_new(&self, cluster: &str, outcome: &Outcome, note: &str) -> bool {
        if matches!(outcome, Outcome::Moved(_)) {
            self.notes.invalidate(cluster);
            return true;
        }
        if self.notes.get(cluster).is_some_and(|last| last == note) {
            return false;
        }
        self.notes.insert(cluster.to_owned(), note.to_owned());
        true
    }

    fn log(&self, cluster: &str, signal: &Signal, outcome: &Outcome, elapsed: Duration) {
        let trigger = signal.trigger.as_str();
        self.metrics.record_handover(trigger, outcome.label(), elapsed);
        let (result, signal) = (outcome.label(), signal.id.as_str());
        let duration_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        match outcome {
            Outcome::Moved(Moved { from, to, terms: (_, term), .. }) => {
                tracing::info!(cluster, trigger, signal, from, to, term, result, duration_ms, "handover");
            }
            Outcome::NotNeeded(text) => {
                tracing::info!(cluster, trigger, signal, result, text, duration_ms, "handover");
            }
            Outcome::NoTransferee { cause, .. }
            | Outcome::Rejected(cause)
            | Outcome::Failed { cause, .. } => {
                let cause = to_bounded_line(cause, MAX_ERROR_CHARS);
                tracing::warn!(cluster, trigger, signal, result, cause, duration_ms, "handover");
            }
            Outcome::Handled | Outcome::InProgress(_) | Outcome::Withdrawn => {}
        }
    }
}

fn record(subject: Subject, outcome: &Outcome, note: String) -> EventRecord {
    EventRecord {
        object: subject.object,
        stateful_set: subject.stateful_set,
        is_warning: outcome.reason() != MOVED,
        reason: outcome.reason(),
        action: "MoveLeader",
        note,
        documentation: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_pods_terms_and_duration() {
        let moved = Outcome::Moved(Moved {
            from: String::from("etcd-0"),
            to: String::from("etcd-1"),
            terms: (7, 8),
            taken: Duration::from_millis(23),
        });
        assert_eq!(moved.text("prod"), "leadership moved from etcd-0 to etcd-1 (term 7 to 8) in 23 ms");
        assert_eq!((moved.reason(), moved.label()), ("LeaderMoved", "moved"));
    }

    #[test]
    fn reports_each_signal_once_and_answers_each_request() {
        let not_needed = Outcome::NotNeeded(String::from("etcd-1 leads prod/etcd already (term 7)"));
        assert!(not_needed.is_reported(true) && !not_needed.is_reported(false));
        assert!(!Outcome::Handled.is_reported(true) && !Outcome::Withdrawn.is_reported(true));
        let rejected = Outcome::Rejected(String::from("etcd-2 is a learner"));
        assert_eq!(rejected.reason(), "LeaderMoveRejected");
        assert_eq!(
            rejected.text("prod"),
            "etcd-2 is a learner. Check the members, then request the move again: kubectl -n prod get pods -o wide"
        );
    }
}
