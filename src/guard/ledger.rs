//! Pods whose deletion was allowed a moment ago. Until the apiserver shows them terminating they look as healthy as
//! ever, and a second deletion must not count on them.
//!
//! A state machine without clock or I/O: time comes in as a value.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

/// How long a yes may take to become visible. The apiserver cuts a request off after 34 s, and a write that is under
/// way then may land shortly after; a deletion that did not happen by now will not happen.
pub(super) const RESERVATION_LIFE: Duration = Duration::from_secs(60);

/// The allowed deletions of one cluster, by pod uid.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    reserved_at: HashMap<String, Instant>,
}

// === impl Ledger ===

impl Ledger {
    /// Notes that this pod's deletion is allowed now. A second yes for the same pod starts its time anew.
    pub(super) fn reserve(&mut self, uid: &str, now: Instant) {
        self.reserved_at.insert(uid.to_owned(), now);
    }

    /// Whether this pod may be on its way out.
    #[must_use]
    pub(super) fn holds(&self, uid: &str, now: Instant) -> bool {
        self.reserved_at.get(uid).is_some_and(|since| now.duration_since(*since) < RESERVATION_LIFE)
    }

    /// Drops what is over: reservations of pods that are gone (their successors have other uids and must prove
    /// themselves), and those whose deletion never came.
    pub(super) fn keep_only(&mut self, living: &[&str], now: Instant) {
        self.reserved_at.retain(|uid, since| {
            living.contains(&uid.as_str()) && now.duration_since(*since) < RESERVATION_LIFE
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_holds_until_its_life_is_over() {
        let start = Instant::now();
        let mut ledger = Ledger::default();
        ledger.reserve("a", start);
        assert!(ledger.holds("a", start));
        assert!(ledger.holds("a", start + RESERVATION_LIFE - Duration::from_millis(1)));
        assert!(!ledger.holds("a", start + RESERVATION_LIFE));
        assert!(!ledger.holds("b", start));
    }

    #[test]
    fn a_second_yes_for_the_same_pod_starts_its_time_anew() {
        let start = Instant::now();
        let mut ledger = Ledger::default();
        ledger.reserve("a", start);
        ledger.reserve("a", start + Duration::from_secs(50));
        assert!(ledger.holds("a", start + Duration::from_secs(100)));
    }

    #[test]
    fn reservations_of_pods_that_are_gone_are_dropped() {
        let start = Instant::now();
        let mut ledger = Ledger::default();
        ledger.reserve("a", start);
        ledger.reserve("b", start);
        ledger.keep_only(&["b", "c"], start);
        assert!(!ledger.holds("a", start));
        assert!(ledger.holds("b", start));
        ledger.keep_only(&["b"], start + RESERVATION_LIFE);
        assert!(ledger.reserved_at.is_empty());
    }
}
