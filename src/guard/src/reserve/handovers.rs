//! Handovers in a ledger, in an annotation of their own: one that cannot be parsed must not block deletions.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use etcd_guard_core::handover::{DEFRAGMENTATION, Handover, REPLACEMENT, REVIEW, Trigger};
use etcd_guard_kubernetes::LeaseRecord;

/// Annotation of the Lease that contains the handovers as a JSON list.
pub(super) const ANNOTATION: &str = "etcd-guard.io/handovers";

/// Maximum number of handovers of one cluster in a ledger. The signals of a cluster are its nodes, rollouts and recent requests; the
/// oldest requests are dropped first, and then the oldest entries.
const MAX_HANDOVERS: usize = 64;

/// Time after which a request, or the move for a deletion, is dropped from the ledger: the guard ignores requests that are older
/// than one minute, and the clocks of replicas differ by less than the rest.
const REQUEST_TTL: SignedDuration = SignedDuration::from_mins(10);

/// Time for which a Lease remains that contains the handover of a signal. Drains take hours; an entry that is lost
/// later can cost at most one more move of leadership.
const SIGNAL_TTL: SignedDuration = SignedDuration::from_hours(24);

/// Age at which a handover protects no transferee any more: its lifetime of 10 s, and the difference of clocks.
const MAX_HANDOVER_AGE: SignedDuration = SignedDuration::from_secs(60);

/// Returns the handovers of a Lease. A list that cannot be parsed must not block deletions: it counts as empty.
pub(super) fn parse(lease: &LeaseRecord) -> Vec<Handover> {
    let Some(text) = lease.annotations.get(ANNOTATION) else { return Vec::new() };
    serde_json::from_str(text).unwrap_or_else(|error| {
        tracing::warn!(lease = lease.name, %error, "ignored handovers that cannot be parsed");
        Vec::new()
    })
}

/// Whether the Lease contains a handover whose signal may persist.
pub(super) fn is_needed(lease: &LeaseRecord, now: Timestamp) -> bool {
    parse(lease).iter().any(|handover| !is_brief(handover) && !is_older(handover, SIGNAL_TTL, now))
}

/// Returns the handovers with a new one, which replaces that of the same signal, and without old requests. The handover of a
/// rollout replaces those of earlier rollouts of the StatefulSet, because a rollback uses the name of an earlier revision again.
pub(super) fn with(known: &[Handover], new: Handover, now: Timestamp) -> Vec<Handover> {
    let set = rollout_of(&new).map(str::to_owned);
    let is_kept = |known: &&Handover| {
        known.cluster != new.cluster
            || known.signal != new.signal
                && (set.is_none() || rollout_of(known) != set.as_deref())
                && !(is_brief(known) && is_older(known, REQUEST_TTL, now))
    };
    let mut handovers: Vec<Handover> = known.iter().filter(is_kept).cloned().collect();
    let cluster = new.cluster.clone();
    handovers.push(new);
    let of_cluster = handovers.iter().filter(|known| known.cluster == cluster).count();
    let mut surplus = of_cluster.saturating_sub(MAX_HANDOVERS);
    for may_drop in [is_request, |_: &Handover| true] {
        handovers.retain(|known| {
            let is_dropped = surplus > 0 && known.cluster == cluster && may_drop(known);
            surplus -= usize::from(is_dropped);
            !is_dropped
        });
    }
    handovers
}

/// Returns trigger and StatefulSet in the signal of a rollout, `rollout/UID/REVISION`.
fn rollout_of(handover: &Handover) -> Option<&str> {
    let (set, _) = handover.signal.rsplit_once('/')?;
    set.starts_with(Trigger::Rollout.as_str()).then_some(set)
}

/// Whether the handover has no signal that may persist.
fn is_brief(handover: &Handover) -> bool {
    handover.signal == REVIEW || is_request(handover)
}

/// Whether an annotation requested the move, a defragmentation, or a step of a replacement.
fn is_request(handover: &Handover) -> bool {
    let kinds = [Trigger::Request.as_str(), DEFRAGMENTATION, REPLACEMENT];
    kinds.iter().any(|kind| handover.signal.starts_with(kind))
}

/// Whether an annotation requested the move, and leadership was to be moved.
pub(super) fn is_requested_move(handover: &Handover) -> bool {
    is_request(handover) && !handover.uid.is_empty()
}

/// Whether the handover has ended, however the clocks of the replicas differ. An invalid time proves nothing.
pub(super) fn is_outdated(handover: &Handover, now: Timestamp) -> bool {
    handover.at.parse().is_ok_and(|at| now.duration_since(at) > MAX_HANDOVER_AGE)
}

fn is_older(handover: &Handover, limit: SignedDuration, now: Timestamp) -> bool {
    let at: Option<Timestamp> = handover.at.parse().ok();
    at.is_none_or(|at| now.duration_since(at) > limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handover(signal: &str, age_minutes: i64) -> Handover {
        let at = Timestamp::now() - SignedDuration::from_mins(age_minutes);
        Handover {
            signal: signal.to_owned(),
            cluster: String::from("c1"),
            uid: String::from("u1"),
            pod: String::from("etcd-1"),
            term: 7,
            ended: false,
            at: at.to_string(),
        }
    }

    fn signals(handovers: &[Handover]) -> Vec<&str> {
        handovers.iter().map(|handover| handover.signal.as_str()).collect()
    }

    #[test]
    fn keeps_signals_and_drops_old_requests() {
        let now = Timestamp::now();
        let known = [handover("request/a", 11), handover("request/b", 1), handover("cordon/n", 600)];
        let next = with(&known, handover("cordon/m", 0), now);
        assert_eq!(signals(&next), ["request/b", "cordon/n", "cordon/m"]);
        let again = with(&next, handover("cordon/n", 0), now);
        assert_eq!(signals(&again), ["request/b", "cordon/m", "cordon/n"], "one entry per signal");
    }

    #[test]
    fn rollback_is_a_new_signal() {
        let now = Timestamp::now();
        let known = [handover("rollout/u1/a", 5), handover("rollout/u2/a", 5), handover("cordon/n", 5)];
        let next = with(&known, handover("rollout/u1/b", 0), now);
        assert_eq!(signals(&next), ["rollout/u2/a", "cordon/n", "rollout/u1/b"]);
    }

    #[test]
    fn bounds_the_number_of_handovers() {
        let mut known = Vec::new();
        for n in 0..100 {
            known = with(&known, handover(&format!("cordon/{n}"), 0), Timestamp::now());
        }
        assert_eq!(known.len(), MAX_HANDOVERS);
        assert_eq!(known.last().map(|last| last.signal.as_str()), Some("cordon/99"));
    }

    #[test]
    fn requests_do_not_push_out_signals() {
        let now = Timestamp::now();
        let mut known = vec![handover("cordon/n", 0)];
        for n in 0..100 {
            known = with(&known, handover(&format!("request/{n}"), 0), now);
        }
        assert_eq!(known.len(), MAX_HANDOVERS);
        assert_eq!(known.first().map(|first| first.signal.as_str()), Some("cordon/n"));
        assert_eq!(known.last().map(|last| last.signal.as_str()), Some("request/99"));
    }

    #[test]
    fn lease_is_needed_while_a_signal_may_persist() {
        let now = Timestamp::now();
        let lease = |handovers: &[Handover]| LeaseRecord {
            annotations: [(ANNOTATION.to_owned(), serde_json::to_string(handovers).unwrap())].into(),
            ..LeaseRecord::default()
        };
        assert!(is_needed(&lease(&[handover("cordon/n", 600)]), now));
        assert!(!is_needed(&lease(&[handover("cordon/n", 25 * 60)]), now));
        assert!(!is_needed(&lease(&[handover("request/a", 1)]), now));
        assert!(!is_needed(&LeaseRecord::default(), now));
        let invalid = LeaseRecord {
            annotations: [(ANNOTATION.to_owned(), String::from("[{}]"))].into(),
            ..LeaseRecord::default()
        };
        assert_eq!(parse(&invalid), []);
    }
}
