//! Deletions that were allowed a moment ago. Until the apiserver shows those pods terminating they look as healthy as
//! ever, and no further deletion must count on them.
//!
//! What is reserved stands in one record per etcd cluster that all replicas share; each replica counts the life of a
//! reservation on its own monotonic clock, from when it first saw it, as leader election does: no skew and no step of
//! any clock can shorten it. A state machine without clock or I/O: records and time come in as values.

use std::{collections::HashMap, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// How long a yes may take to become visible. The apiserver cuts a request off after 34 s, and a write that is under
/// way then may land shortly after; a deletion that did not happen by now will not happen.
pub(super) const RESERVATION_LIFE: Duration = Duration::from_secs(60);

/// How long a reservation stays after its pod is gone. Another replica may still decide on a list with that pod in it and
/// read the record later: each of its reads may take 3 s.
const GONE_FOR: Duration = Duration::from_secs(10);

/// One allowed deletion, as it stands in the shared record.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Reservation {
    /// The pod that may be on its way out; its successor has another uid.
    pub(super) uid: String,
    /// The pod's namespace: one etcd cluster may have members in several.
    #[serde(default)]
    pub(super) namespace: String,
    /// The pod's name, for people.
    pub(super) pod: String,
    /// The pod's member in hexadecimal, for people.
    #[serde(default)]
    pub(super) member: String,
    /// When it was allowed, by the wall clock of whoever allowed it. Nothing is counted from it; with the uid it tells
    /// one yes from the next.
    pub(super) at: String,
    /// For whom it was allowed.
    #[serde(default)]
    pub(super) by: String,
}

/// A pod that exists and may run a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Living<'a> {
    pub(super) name: &'a str,
    pub(super) uid: &'a str,
}

/// Since when one replica knows of each reservation in the record of one cluster. What is reserved, a record says; readers
/// of older and newer ones may take note in any order.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    first_seen: HashMap<Reservation, Instant>,
    /// Since when it knows by their uids of pods that are gone.
    gone: HashMap<String, Instant>,
    /// Since when it knows by their uids of pods that are reserved, however often that was renewed.
    reserved: HashMap<String, Instant>,
}

// === impl Reservation ===

impl Reservation {
    /// Whether this is a pod of the namespace, and none of those that were listed there.
    fn is_unlisted(&self, namespace: &str, living: &[Living<'_>]) -> bool {
        self.namespace == namespace && !living.iter().any(|pod| pod.uid == self.uid)
    }
}

// === impl Ledger ===

impl Ledger {
    /// Takes note of the record as it was just read.
    pub(super) fn observe(&mut self, record: &[Reservation], now: Instant) {
        self.first_seen.retain(|reservation, _| record.contains(reservation));
        for reservation in record {
            self.first_seen.entry(reservation.clone()).or_insert(now);
        }
        self.gone.retain(|uid, _| record.iter().any(|it| it.uid == *uid));
        self.reserved.retain(|uid, _| record.iter().any(|it| it.uid == *uid));
        for reservation in record {
            self.reserved.entry(reservation.uid.clone()).or_insert(now);
        }
    }

    /// Takes note of the pods of a namespace that are reserved and gone.
    pub(super) fn note_living(
        &mut self,
        record: &[Reservation],
        namespace: &str,
        living: &[Living<'_>],
        now: Instant,
    ) {
        for reservation in record.iter().filter(|it| it.is_unlisted(namespace, living)) {
            self.gone.entry(reservation.uid.clone()).or_insert(now);
        }
    }

    /// Whether the record may be newer than a list of pods that was read beside it: a reservation of a pod that was not
    /// listed is that of a pod that is gone, or of one that came after the list.
    pub(super) fn outdates(
        &self,
        record: &[Reservation],
        namespace: &str,
        living: &[Living<'_>],
        now: Instant,
    ) -> bool {
        self.live(record, now).any(|it| it.is_unlisted(namespace, living) && !self.gone.contains_key(&it.uid))
    }

    /// Of a record, what may be on its way out. What an older record made forget counts as new.
    pub(super) fn live<'a>(
        &'a self,
        record: &'a [Reservation],
        now: Instant,
    ) -> impl Iterator<Item = &'a Reservation> {
        record.iter().filter(move |it| self.first_seen.get(it).is_none_or(|since| is_live(*since, now)))
    }

    /// How many reservations of the record that was read last may be on their way out.
    pub(super) fn count(&self, now: Instant) -> usize {
        self.first_seen.values().filter(|since| is_live(**since, now)).count()
    }

    /// How long the longest reserved of the pods that may be on their way out has been reserved without a break: its
    /// deletion was allowed again and again, and it is still there.
    pub(super) fn longest(&self, now: Instant) -> Duration {
        let live = self.first_seen.iter().filter(|(_, since)| is_live(**since, now));
        let since = live.filter_map(|(reservation, _)| self.reserved.get(&reservation.uid));
        since.map(|since| now.duration_since(*since)).max().unwrap_or_default()
    }

    /// The record with one more reservation, and without what is over: an earlier yes for the same pod, deletions that
    /// never came, and pods of the same namespace that were replaced for a while (their successors must prove themselves). A
    /// pod that is gone without a successor holds: after a forced deletion its process may go on, and the member be
    /// found by its name.
    pub(super) fn with(
        &mut self,
        record: &[Reservation],
        new: Reservation,
        living: &[Living<'_>],
        now: Instant,
    ) -> Vec<Reservation> {
        let mut record = self.without(record, &new.namespace, &new.uid, living, now);
        record.push(new);
        record
    }

    /// The record without this pod, and without what is over.
    pub(super) fn without(
        &mut self,
        record: &[Reservation],
        namespace: &str,
        uid: &str,
        living: &[Living<'_>],
        now: Instant,
    ) -> Vec<Reservation> {
        self.note_living(record, namespace, living, now);
        let is_over = |it: &Reservation| {
            it.namespace == namespace
                && living.iter().any(|pod| pod.name == it.pod)
                && self.gone.get(&it.uid).is_some_and(|since| now.duration_since(*since) >= GONE_FOR)
        };
        let stays = |it: &&Reservation| it.uid != uid && !is_over(it);
        let mut record: Vec<Reservation> = self.live(record, now).filter(stays).cloned().collect();
        record.sort_by(|one, other| one.uid.cmp(&other.uid));
        record
    }
}

fn is_live(since: Instant, now: Instant) -> bool {
    now.duration_since(since) < RESERVATION_LIFE
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    fn reservation(uid: &str, at: &str) -> Reservation {
        Reservation {
            uid: uid.to_owned(),
            namespace: String::from("prod"),
            pod: String::from("etcd-0"),
            member: String::new(),
            at: at.to_owned(),
            by: String::new(),
        }
    }

    /// Pods of these uids, all of the name that reservations have here.
    fn living<const N: usize>(uids: [&str; N]) -> [Living<'_>; N] {
        uids.map(|uid| Living { name: "etcd-0", uid })
    }

    fn lives(ledger: &Ledger, record: &[Reservation], now: Instant) -> bool {
        ledger.live(record, now).next().is_some()
    }

    /// Edge case 28.
    #[test]
    fn a_reservation_lives_from_when_it_was_first_seen() {
        let start = Instant::now();
        let record = [reservation("a", "whatever the clock of another replica says")];
        let mut ledger = Ledger::default();
        ledger.observe(&record, start);
        ledger.observe(&record, start + Duration::from_secs(30));
        assert!(lives(&ledger, &record, start + RESERVATION_LIFE - Duration::from_millis(1)));
        assert!(!lives(&ledger, &record, start + RESERVATION_LIFE));
        assert!(!lives(&ledger, &[], start));
    }

    #[test]
    fn a_replica_that_starts_again_counts_anew() {
        let start = Instant::now();
        let record = [reservation("a", "1")];
        let mut restarted = Ledger::default();
        restarted.observe(&record, start + Duration::from_secs(59));
        assert!(lives(&restarted, &record, start + Duration::from_secs(118)));
    }

    #[test]
    fn a_second_yes_for_the_same_pod_starts_its_life_anew() {
        let start = Instant::now();
        let first = [reservation("a", "1")];
        let mut ledger = Ledger::default();
        ledger.observe(&first, start);
        let later = start + Duration::from_secs(50);
        let record = ledger.with(&first, reservation("a", "2"), &living(["a"]), later);
        assert_eq!(record, [reservation("a", "2")]);
        ledger.observe(&record, later);
        assert!(lives(&ledger, &record, start + Duration::from_secs(100)));
    }

    #[test]
    fn a_pod_that_is_allowed_again_and_again_counts_from_its_first_yes() {
        let start = Instant::now();
        let mut ledger = Ledger::default();
        assert_eq!(ledger.longest(start), Duration::ZERO);
        for seconds in (0..=300_u32).step_by(50) {
            let now = start + Duration::from_secs(seconds.into());
            ledger.observe(&[reservation("a", &seconds.to_string())], now);
            assert_eq!(ledger.longest(now), Duration::from_secs(seconds.into()));
        }
        let end = start + Duration::from_secs(300);
        assert_eq!(ledger.longest(end + RESERVATION_LIFE), Duration::ZERO, "it has expired");
        ledger.observe(&[reservation("b", "1")], end);
        assert_eq!(ledger.longest(end), Duration::ZERO, "another pod is another matter");
    }

    #[test]
    fn what_is_over_is_left_out_of_the_next_record() {
        let start = Instant::now();
        let mut ledger = Ledger::default();
        ledger.observe(&[reservation("gone", "1"), reservation("old", "1")], start);
        let later = start + Duration::from_secs(40);
        let record = [reservation("gone", "1"), reservation("old", "1"), reservation("young", "1")];
        ledger.observe(&record, later);
        let living = living(["old", "young", "new"]);
        let record = ledger.with(&record, reservation("new", "1"), &living, start + RESERVATION_LIFE);
        assert_eq!(record, [reservation("young", "1"), reservation("new", "1")]);
    }

    #[test]
    fn a_pod_that_is_gone_holds_until_a_successor_is_there_and_nobody_can_have_it_in_a_list() {
        let start = Instant::now();
        let gone = [Reservation { pod: String::from("etcd-1"), ..reservation("gone", "1") }];
        let mut ledger = Ledger::default();
        ledger.observe(&gone, start);
        let mut next = |living: &[Living<'_>], now| ledger.with(&gone, reservation("a", "1"), living, now);
        let held = [reservation("a", "1"), gone[0].clone()];
        let sorted = |mut record: Vec<Reservation>| {
            record.sort_by(|one, other| one.uid.cmp(&other.uid));
            record
        };
        assert_eq!(sorted(next(&living(["a"]), start)), held);
        assert_eq!(sorted(next(&living(["a"]), start + GONE_FOR)), held, "its process may live on");
        let replaced = [living(["a"]).as_slice(), &[Living { name: "etcd-1", uid: "successor" }]].concat();
        // Another replica may have listed the pod while it was there, and reads the record last.
        let soon = start + GONE_FOR.saturating_sub(Duration::from_millis(1));
        assert_eq!(sorted(next(&replaced, soon)), held);
        assert_eq!(next(&replaced, start + GONE_FOR), [reservation("a", "1")]);
        assert_eq!(ledger.gone.keys().collect::<Vec<_>>(), ["gone"]);
    }

    #[test]
    fn a_pod_is_known_to_be_gone_for_as_long_as_its_reservation_stands() {
        let start = Instant::now();
        let record = [reservation("gone", "1")];
        let mut ledger = Ledger::default();
        ledger.observe(&record, start);
        ledger.note_living(&record, "prod", &[], start);
        ledger.observe(&record, start);
        assert!(ledger.gone.contains_key("gone"));
        ledger.observe(&[reservation("other", "1")], start);
        assert!(!ledger.gone.contains_key("gone"), "nobody asks any more");
    }

    #[test]
    fn members_in_other_namespaces_are_not_cleared_away() {
        let start = Instant::now();
        let elsewhere = Reservation { namespace: String::from("other"), ..reservation("far", "1") };
        let mut ledger = Ledger::default();
        ledger.observe(std::slice::from_ref(&elsewhere), start);
        let record =
            ledger.with(std::slice::from_ref(&elsewhere), reservation("a", "1"), &living(["a"]), start);
        assert_eq!(record, [elsewhere, reservation("a", "1")]);
    }

    #[test]
    fn a_reservation_that_was_taken_back_no_longer_holds() {
        let start = Instant::now();
        let record = [reservation("a", "1")];
        let mut ledger = Ledger::default();
        ledger.observe(&record, start);
        assert_eq!(ledger.without(&record, "prod", "a", &living(["a"]), start), []);
    }

    #[test]
    fn a_record_is_newer_than_a_list_that_lacks_a_reserved_pod() {
        let now = Instant::now();
        let record = [reservation("a", "1"), reservation("b", "1")];
        let mut ledger = Ledger::default();
        ledger.observe(&record, now);
        let outdates = |uids: &[Living<'_>]| ledger.outdates(&record, "prod", uids, now);
        assert!(!outdates(&living(["a", "b"])));
        assert!(!outdates(&living(["b", "c", "a"])));
        assert!(outdates(&living(["a"])), "one of the two is missing");
        assert!(outdates(&living(["b", "successor"])), "another pod of its name is another pod");
        assert!(outdates(&[]));
        assert!(!ledger.outdates(&[], "prod", &[], now), "nothing is reserved");
    }

    #[test]
    fn a_list_says_nothing_of_pods_in_other_namespaces() {
        let now = Instant::now();
        let record = [reservation("a", "1")];
        let ledger = Ledger::default();
        assert!(ledger.outdates(&record, "prod", &[], now));
        assert!(!ledger.outdates(&record, "other", &[], now));
    }

    #[test]
    fn a_reservation_that_is_over_makes_no_list_old() {
        let start = Instant::now();
        let record = [reservation("a", "1")];
        let mut ledger = Ledger::default();
        ledger.observe(&record, start);
        let soon = start + RESERVATION_LIFE.saturating_sub(Duration::from_millis(1));
        assert!(ledger.outdates(&record, "prod", &[], soon));
        assert!(!ledger.outdates(&record, "prod", &[], start + RESERVATION_LIFE));
    }

    #[test]
    fn a_pod_that_is_known_to_be_gone_makes_no_list_old() {
        let now = Instant::now();
        let gone = [reservation("gone", "1")];
        let mut ledger = Ledger::default();
        ledger.observe(&gone, now);
        ledger.note_living(&gone, "other", &[], now);
        assert!(ledger.outdates(&gone, "prod", &[], now), "it is no pod of the namespace that was listed");
        ledger.note_living(&gone, "prod", &living(["gone"]), now);
        assert!(ledger.outdates(&gone, "prod", &[], now), "it was listed");
        ledger.note_living(&gone, "prod", &[], now);
        assert!(!ledger.outdates(&gone, "prod", &[], now));
        let more = [reservation("gone", "1"), reservation("b", "1")];
        ledger.observe(&more, now);
        assert!(ledger.outdates(&more, "prod", &[], now), "of the other nobody knows");
    }

    /// Two reads of one record go side by side, and the older one is taken note of last.
    #[test]
    fn a_record_that_was_read_earlier_and_noted_later_takes_nothing_from_a_newer_one() {
        let start = Instant::now();
        let (older, newer) = ([], [reservation("a", "1")]);
        let mut ledger = Ledger::default();
        ledger.observe(&newer, start);
        ledger.observe(&older, start);
        assert!(lives(&ledger, &newer, start));
        let record = ledger.with(&newer, reservation("b", "1"), &living(["a", "b"]), start);
        assert_eq!(record, [reservation("a", "1"), reservation("b", "1")]);
    }
}
