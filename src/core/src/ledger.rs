//! Reservations of approved deletions. After an approval the pod appears healthy until the API server marks it as
//! terminating. Until then the reservation prevents other evaluations from counting the pod as serving.
//!
//! All replicas share one record of reservations per etcd cluster. Each replica measures the lifetime of a reservation
//! on its own monotonic clock, starting at its first read, as leader election does. Clock skew and clock changes
//! therefore cannot shorten a reservation. The ledger is a state machine without clock or I/O: records and times are
//! arguments.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use crate::{
    handover::{Handover, HandoverState},
    reservation::{LivePod, Reservation},
};

/// Maximum time between an approval and the visible deletion. The API server cancels a request after 34 s; a write that is
/// in progress at that moment can complete shortly afterwards.
pub const RESERVATION_TTL: Duration = Duration::from_secs(60);

/// Maximum time between the approved deletion of a node and the visible deletion of its pods. Pod garbage collection runs
/// every 20 s, waits for 40 s after it has found the node missing, and deletes the pods in the run after that.
pub const NODE_RESERVATION_TTL: Duration = Duration::from_secs(120);

/// Time for which a reservation remains after its pod is gone. Another replica can still use a list that contains the pod
/// and read the record later; each of its reads takes up to 3 s.
const GONE_TTL: Duration = Duration::from_secs(10);

/// Time for which a handover protects its transferee: a transfer takes 100 ms and at most 2 s, and the new leader is
/// verified within another second. The rest covers slow reads of other replicas.
pub const HANDOVER_TTL: Duration = Duration::from_secs(10);

/// The knowledge of one replica about the record of one cluster: the time of its first read of each reservation. Concurrent
/// evaluations can observe older and newer versions of the record in any order.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    first_seen: BTreeMap<Reservation, Instant>,
    /// Time at which the replica found each reserved pod missing, by uid.
    gone: BTreeMap<String, Instant>,
    /// Time of the first read of each handover, by its signal and its time.
    handovers: BTreeMap<(String, String), Instant>,
    /// Time since which each pod has been reserved without a break, by uid. Used only by a metric.
    reserved: BTreeMap<String, Instant>,
}

// === impl Reservation ===

impl Reservation {
    /// Whether the pod belongs to the namespace and is not among its listed pods.
    fn is_unlisted(&self, namespace: &str, live_pods: &[LivePod<'_>]) -> bool {
        self.namespace == namespace && !live_pods.iter().any(|pod| pod.uid == self.uid)
    }

    /// Whether the reservation has not expired, if the replica first read it at `since`.
    fn is_live(&self, since: Instant, now: Instant) -> bool {
        let ttl = if self.of_node { NODE_RESERVATION_TTL } else { RESERVATION_TTL };
        now.duration_since(since) < ttl
    }
}

// === impl Ledger ===

impl Ledger {
    /// Records the content of the record at the time of a read.
    pub fn observe(&mut self, record: &[Reservation], now: Instant) {
        self.first_seen.retain(|reservation, _| record.contains(reservation));
        for reservation in record.iter().filter(|reservation| !self.first_seen.contains_key(reservation)) {
            // The replica that approved the deletion read the pod, so the pod existed.
            self.gone.remove(&reservation.uid);
        }
        for reservation in record {
            self.first_seen.entry(reservation.clone()).or_insert(now);
        }
        self.gone.retain(|uid, _| record.iter().any(|reservation| reservation.uid == *uid));
        self.reserved.retain(|uid, _| record.iter().any(|reservation| reservation.uid == *uid));
        for reservation in record {
            self.reserved.entry(reservation.uid.clone()).or_insert(now);
        }
    }

    /// Records the handovers of the record at the time of a read. They are no reservations: a transferee stays.
    pub fn observe_handovers(&mut self, record: &[Handover], now: Instant) {
        let keys: Vec<(String, String)> = record.iter().map(handover_key).collect();
        self.handovers.retain(|known, _| keys.contains(known));
        for key in keys {
            self.handovers.entry(key).or_insert(now);
        }
    }

    /// Whether a handover to the pod with this uid is in progress.
    #[must_use] 
    pub fn is_transferee(&self, record: &[Handover], uid: &str, now: Instant) -> bool {
        let is_live = |handover: &Handover| !handover.ended && !self.remaining(handover, now).is_zero();
        record.iter().any(|handover| !uid.is_empty() && handover.uid == uid && is_live(handover))
    }

    /// Returns the state of a handover.
    #[must_use] 
    pub fn handover_state(&self, handover: &Handover, now: Instant) -> HandoverState {
        let remaining = self.remaining(handover, now);
        match handover.ended {
            true => HandoverState::Ended,
            false if remaining.is_zero() => HandoverState::Expired { term: handover.term },
            false => HandoverState::InProgress(remaining),
        }
    }

    /// Returns the rest of the lifetime of a handover. One that the ledger does not know counts as new.
    fn remaining(&self, handover: &Handover, now: Instant) -> Duration {
        let since = self.handovers.get(&handover_key(handover)).copied().unwrap_or(now);
        HANDOVER_TTL.saturating_sub(now.duration_since(since))
    }

    /// Records the reserved pods of a namespace that are gone. A pod that is listed again was only absent from an earlier,
    /// partial list.
    pub fn observe_pods(
        &mut self,
        record: &[Reservation],
        namespace: &str,
        live_pods: &[LivePod<'_>],
        now: Instant,
    ) {
        self.gone.retain(|uid, _| !live_pods.iter().any(|pod| pod.uid == uid));
        for reservation in record.iter().filter(|reservation| reservation.is_unlisted(namespace, live_pods)) {
            self.gone.entry(reservation.uid.clone()).or_insert(now);
        }
    }

    /// Whether the record can be newer than the list of pods that was read at the same time: it contains an active
    /// reservation of an unlisted pod that is not known to be gone.
    #[must_use] 
    pub fn may_be_newer_than(
        &self,
        record: &[Reservation],
        namespace: &str,
        live_pods: &[LivePod<'_>],
        now: Instant,
    ) -> bool {
        self.active(record, now).any(|reservation| {
            reservation.is_unlisted(namespace, live_pods) && !self.gone.contains_key(&reservation.uid)
        })
    }

    /// Returns the reservations of the record that have not expired. A reservation that the ledger does not know counts as
    /// new.
    pub fn active<'a>(
        &'a self,
        record: &'a [Reservation],
        now: Instant,
    ) -> impl Iterator<Item = &'a Reservation> {
        record.iter().filter(move |reservation| {
            self.first_seen.get(reservation).is_none_or(|since| reservation.is_live(*since, now))
        })
    }

    /// Returns the number of active reservations in the record that was read last.
    #[must_use] 
    pub fn active_count(&self, now: Instant) -> usize {
        self.first_seen.iter().filter(|(reservation, since)| reservation.is_live(**since, now)).count()
    }

    /// Returns the longest time for which a pod has been reserved without a break. A long time means that its deletion
    /// was approved repeatedly and the pod still exists.
    #[must_use] 
    pub fn longest_reservation(&self, now: Instant) -> Duration {
        let live = self.first_seen.iter().filter(|(reservation, since)| reservation.is_live(**since, now));
        let since = live.filter_map(|(reservation, _)| self.reserved.get(&reservation.uid));
        since.map(|since| now.duration_since(*since)).max().unwrap_or_default()
    }

    /// Returns the record with a new reservation. It omits earlier reservations of the same pod, expired reservations, and
    /// reservations of pods in the same namespace that were replaced at least [`GONE_TTL`] ago; their successors must prove
    /// their health. A reservation of a missing pod without a successor remains: after a forced deletion the process can
    /// still run, and the member is then found by its name.
    pub fn record_with(
        &mut self,
        record: &[Reservation],
        new: Reservation,
        live_pods: &[LivePod<'_>],
        now: Instant,
    ) -> Vec<Reservation> {
        let mut record = self.record_without(record, &new.namespace, &new.uid, live_pods, now);
        record.push(new);
        record
    }

    /// Returns the record without the reservations of this pod and without obsolete reservations.
    pub fn record_without(
        &mut self,
        record: &[Reservation],
        namespace: &str,
        uid: &str,
        live_pods: &[LivePod<'_>],
        now: Instant,
    ) -> Vec<Reservation> {
        self.observe_pods(record, namespace, live_pods, now);
        let is_obsolete = |reservation: &Reservation| {
            reservation.namespace == namespace
                && live_pods.iter().any(|pod| pod.name == reservation.pod)
                && self.gone.get(&reservation.uid).is_some_and(|since| now.duration_since(*since) >= GONE_TTL)
        };
        let remains = |reservation: &&Reservation| reservation.uid != uid && !is_obsolete(reservation);
        let mut record: Vec<Reservation> = self.active(record, now).filter(remains).cloned().collect();
        record.sort_by(|left, right| left.uid.cmp(&right.uid));
        record
    }
}

/// Returns the key of a handover. It remains the same when the handover ends.
fn handover_key(handover: &Handover) -> (String, String) {
    (handover.signal.clone(), handover.at.clone())
}

#[cfg(test)]
mod protocol;

#[cfg(test)]
mod tests;
