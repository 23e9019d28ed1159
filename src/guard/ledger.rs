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
        for reservation in record.iter().filter(|it| !self.first_seen.contains_key(it)) {
            // Whoever said this yes saw the pod.
            self.gone.remove(&reservation.uid);
        }
        for reservation in record {
            self.first_seen.entry(reservation.clone()).or_insert(now);
        }
        self.gone.retain(|uid, _| record.iter().any(|it| it.uid == *uid));
        self.reserved.retain(|uid, _| record.iter().any(|it| it.uid == *uid));
        for reservation in record {
            self.reserved.entry(reservation.uid.clone()).or_insert(now);
        }
    }

    /// Takes note of the pods of a namespace that are reserved and gone. One that is there after all was only not among those that
    /// were read when it was taken for gone.
    pub(super) fn note_living(
        &mut self,
        record: &[Reservation],
        namespace: &str,
        living: &[Living<'_>],
        now: Instant,
    ) {
        self.gone.retain(|uid, _| !living.iter().any(|pod| pod.uid == uid));
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
mod tests;
