//! Reservations of approved deletions. After an approval the pod appears healthy until the API server marks it as
//! terminating. Until then the reservation prevents other evaluations from counting the pod as serving.
//!
//! All replicas share one ledger per guarded namespace. Each replica measures the lifetime of a reservation on its own
//! monotonic clock, starting at its first read, as leader election does. Clock skew and clock changes therefore cannot shorten
//! a reservation. Nothing here has a clock or I/O: reservations and times are arguments. The rules, and what goes wrong without
//! each of them, are listed in the model (`namespaces.rs`).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

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

/// Time for which a handover protects its transferee: a transfer takes 100 ms and at most 2 s, and the new leader is
/// verified within another second. The rest covers slow reads of other replicas. It is also the time between two moves of one
/// cluster that follow from reviews, which can be forged.
pub const HANDOVER_TTL: Duration = Duration::from_secs(10);

/// Cluster, signal and time of a handover.
type HandoverKey = [String; 3];

/// What one replica knows about one ledger: when it first read each entry. Concurrent evaluations can observe older and newer
/// versions of the ledger in any order.
#[derive(Clone, Debug, Default)]
pub struct Sightings {
    /// Uid of the Lease that was read last; `None` if it did not exist.
    lease: Option<String>,
    first_seen: BTreeMap<Reservation, Instant>,
    /// Uids of reserved pods that this replica knows to be gone. It saves lists of pods.
    gone: BTreeSet<String>,
    /// Time of the first read of each handover, by its cluster, its signal and its time.
    handovers: BTreeMap<HandoverKey, Instant>,
    /// Time since which each pod has been reserved without a break, by uid. Used only by a metric.
    reserved: BTreeMap<String, Instant>,
}

// === impl Sightings ===

impl Sightings {
    /// Records a read of the ledger and returns its reservations. If the Lease was deleted since the last read, they include the
    /// unexpired ones of the former Lease. The next write restores them.
    pub fn observe(
        &mut self,
        lease: Option<&str>,
        mut read: Vec<Reservation>,
        now: Instant,
    ) -> Vec<Reservation> {
        if lease.is_some() && (self.lease.is_none() || self.lease.as_deref() == lease) {
            self.first_seen.retain(|known, _| read.contains(known));
            self.lease = lease.map(str::to_owned);
        } else {
            self.first_seen.retain(|known, since| known.is_live(*since, now));
            let lost: Vec<Reservation> =
                self.first_seen.keys().filter(|known| !read.contains(known)).cloned().collect();
            // The former Lease is remembered until all its reservations are restored or have expired.
            if lost.is_empty() {
                self.lease = lease.map(str::to_owned);
            }
            read.extend(lost);
        }
        for reservation in &read {
            self.first_seen.entry(reservation.clone()).or_insert(now);
        }
        self.gone.retain(|uid| read.iter().any(|known| known.uid == *uid));
        self.reserved.retain(|uid, _| read.iter().any(|known| known.uid == *uid));
        for reservation in &read {
            self.reserved.entry(reservation.uid.clone()).or_insert(now);
        }
        read
    }

    /// Records the handovers of the ledger at the time of a read. They are no reservations: a transferee stays.
    pub fn observe_handovers(&mut self, known: &[Handover], now: Instant) {
        let keys: Vec<HandoverKey> = known.iter().map(handover_key).collect();
        self.handovers.retain(|key, _| keys.contains(key));
        for key in keys {
            self.handovers.entry(key).or_insert(now);
        }
    }

    /// Whether a handover to the pod with this uid is in progress.
    pub fn is_transferee(&self, known: &[Handover], uid: &str, now: Instant) -> bool {
        let is_live = |handover: &Handover| !handover.ended && !self.remaining(handover, now).is_zero();
        known.iter().any(|handover| !uid.is_empty() && handover.uid == uid && is_live(handover))
    }

    /// Returns the state of a handover.
    pub fn handover_state(&self, handover: &Handover, now: Instant) -> HandoverState {
        let remaining = self.remaining(handover, now);
        match handover.ended {
            true => HandoverState::Ended,
            false if remaining.is_zero() => HandoverState::Expired { term: handover.term },
            false => HandoverState::InProgress(remaining),
        }
    }

    /// Returns the rest of the lifetime of a handover, also of one that has ended. One that the replica did not read counts as
    /// new.
    pub fn remaining(&self, handover: &Handover, now: Instant) -> Duration {
        let since = self.handovers.get(&handover_key(handover)).copied().unwrap_or(now);
        HANDOVER_TTL.saturating_sub(now.duration_since(since))
    }

    /// Returns the reservations that have not expired. One that this replica never read counts as new.
    pub fn active<'a>(
        &'a self,
        ledger: &'a [Reservation],
        now: Instant,
    ) -> impl Iterator<Item = &'a Reservation> {
        let is_live = move |since: &Instant, known: &Reservation| known.is_live(*since, now);
        ledger
            .iter()
            .filter(move |known| self.first_seen.get(known).is_none_or(|since| is_live(since, known)))
    }

    /// Returns when a reservation expires. One that this replica never read counts as new.
    pub fn expires(&self, known: &Reservation, now: Instant) -> Instant {
        self.first_seen.get(known).copied().unwrap_or(now) + known.lifetime()
    }

    /// Returns the number of active reservations in the ledger that was read last.
    pub fn active_count(&self, now: Instant) -> usize {
        self.first_seen.iter().filter(|(reservation, since)| reservation.is_live(**since, now)).count()
    }

    /// Returns the longest time for which a pod has been reserved without a break. A long time means that its deletion
    /// was approved repeatedly and the pod still exists.
    pub fn longest_reservation(&self, now: Instant) -> Duration {
        let live = self.first_seen.iter().filter(|(reservation, since)| reservation.is_live(**since, now));
        let since = live.filter_map(|(reservation, _)| self.reserved.get(&reservation.uid));
        since.map(|since| now.duration_since(*since)).max().unwrap_or_default()
    }

    /// Records which reserved pods are missing in a list of the namespace that was read after the ledger.
    pub fn observe_pods(&mut self, ledger: &[Reservation], namespace: &str, pods: &[LivePod<'_>]) {
        let unlisted = ledger.iter().filter(|known| known.is_unlisted(namespace, pods));
        self.gone.extend(unlisted.map(|known| known.uid.clone()));
    }

    /// Whether the ledger can be newer than the list of the namespace's pods: it reserves a pod that is neither listed nor known
    /// to be gone.
    pub fn may_be_newer_than(
        &self,
        ledger: &[Reservation],
        namespace: &str,
        pods: &[LivePod<'_>],
        now: Instant,
    ) -> bool {
        let is_unlisted =
            |known: &Reservation| known.is_unlisted(namespace, pods) && !self.gone.contains(&known.uid);
        self.active(ledger, now).any(is_unlisted)
    }

    /// Returns the ledger with new reservations, without the earlier ones of the same pods, the expired ones, and those whose
    /// successor serves. A renewal keeps what the earlier one knew, and the longer lifetime.
    pub fn with(
        &self,
        ledger: &[Reservation],
        new: &[Reservation],
        pods: &[LivePod<'_>],
        now: Instant,
    ) -> Vec<Reservation> {
        let is_renewed = |known: &Reservation| {
            new.iter().any(|new| new.uid == known.uid && (new.by_name || !known.by_name))
        };
        let remains = |known: &&Reservation| !is_renewed(known) && !known.has_returned(pods);
        let mut next: Vec<Reservation> = self.active(ledger, now).filter(remains).cloned().collect();
        next.extend(new.iter().map(|new| {
            let mut new = new.clone();
            for known in self.active(ledger, now).filter(|known| known.uid == new.uid) {
                new.of_node |= known.of_node;
                // The pod returns from the first of two requests while the second one can still arrive.
                new.image_id = None;
                if new.member.is_empty() {
                    new.member.clone_from(&known.member);
                }
                new.cluster = new.cluster.or_else(|| known.cluster.clone());
            }
            new
        }));
        next.sort_by(|one, other| one.uid.cmp(&other.uid));
        next
    }
}

// === impl Reservation ===

impl Reservation {
    /// Whether the reservation has not expired, if the replica first read it at `since`.
    fn is_live(&self, since: Instant, now: Instant) -> bool {
        now.duration_since(since) < self.lifetime()
    }

    fn lifetime(&self) -> Duration {
        if self.of_node { NODE_RESERVATION_TTL } else { RESERVATION_TTL }
    }

    /// Whether the pod belongs to the namespace and is not among its listed pods.
    fn is_unlisted(&self, namespace: &str, pods: &[LivePod<'_>]) -> bool {
        self.namespace == namespace && !pods.iter().any(|pod| pod.uid == self.uid)
    }

    /// Whether this pod is leaving because of the reservation: it is the reserved pod, or its successor that has not served yet.
    /// An eviction that names no uid can also remove a successor that serves.
    pub fn takes(&self, pod: &LivePod<'_>) -> bool {
        let is_same_name = self.namespace == pod.namespace && self.pod == pod.name;
        let is_reserved = self.uid == pod.uid && !self.has_restarted(pod);
        is_reserved || (is_same_name && (self.by_name || !pod.serves))
    }

    /// Whether this pod serves again after the update that was approved. After a crash, the container restarts with the former
    /// image, and the update is still to come. An update to an image with the same id, or of resources, ends with its lifetime.
    fn has_restarted(&self, pod: &LivePod<'_>) -> bool {
        let is_updated = |before: &String| !pod.image_id.is_empty() && *before != pod.image_id;
        self.uid == pod.uid && pod.serves && self.image_id.as_ref().is_some_and(is_updated)
    }

    /// Whether the reserved pod has restarted, or is gone and its successor serves.
    fn has_returned(&self, pods: &[LivePod<'_>]) -> bool {
        if pods.iter().any(|pod| self.has_restarted(pod)) {
            return true;
        }
        let is_successor =
            |pod: &LivePod<'_>| pod.serves && self.namespace == pod.namespace && self.pod == pod.name;
        !self.by_name && !pods.iter().any(|pod| pod.uid == self.uid) && pods.iter().any(is_successor)
    }
}

/// Returns the key of a handover. It remains the same when the handover ends.
fn handover_key(handover: &Handover) -> HandoverKey {
    [&handover.cluster, &handover.signal, &handover.at].map(String::clone)
}

#[cfg(test)]
mod namespaces;
#[cfg(test)]
mod protocol;
#[cfg(test)]
mod tests;
