//! Ledgers as one evaluation has read them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{LedgerName, lock};
use crate::reserve::handovers;
use etcd_guard_core::{
    etcd::member::ClusterId,
    handover::{Handover, HandoverState, REVIEW},
    ledger::Sightings,
    reservation::{LivePod, Reservation},
};
use etcd_guard_kubernetes::LeaseRecord;

/// The content of a Lease at the time of one read. Concurrent evaluations have copies of their own.
pub(crate) struct Ledger {
    pub(super) lease: LeaseRecord,
    pub(super) reservations: Vec<Reservation>,
    /// The reservations that had not expired at the read. They count until the end of the evaluation.
    pub(super) active: Vec<Reservation>,
    /// The active reservations before the last write of new ones, for its withdrawal.
    pub(super) replaced: Option<Vec<Reservation>>,
    pub(super) handovers: Vec<Handover>,
    pub(super) sightings: Arc<Mutex<Sightings>>,
}

/// The ledgers that an evaluation has read before its probe round.
pub(crate) struct Ledgers(pub(super) BTreeMap<LedgerName, Ledger>);

// === impl Ledger ===

impl Ledger {
    /// Returns the reservations that had not expired at the read.
    pub(crate) fn active(&self) -> &[Reservation] {
        &self.active
    }

    /// Returns the signals of the handovers.
    pub(crate) fn signals(&self) -> impl Iterator<Item = &str> {
        self.handovers.iter().map(|handover| handover.signal.as_str())
    }

    /// Whether the ledger contains the handover of this signal.
    pub(crate) fn has_signal(&self, cluster: ClusterId, signal: &str) -> bool {
        self.handover(cluster, signal).is_some()
    }

    /// Returns the state of the handover of this signal, if the ledger contains one.
    pub(crate) fn handover_state(&self, cluster: ClusterId, signal: &str) -> Option<HandoverState> {
        let handover = self.handover(cluster, signal)?;
        Some(lock(&self.sightings).handover_state(handover, Instant::now()))
    }

    /// Returns the time until leadership of this cluster may move for another request, if it moved for one recently. `time` is
    /// the time of the wall clock: a replica that has restarted starts another lifetime.
    pub(crate) fn pause_between_requests(&self, cluster: ClusterId, time: Timestamp) -> Option<Duration> {
        let (cluster, now) = (cluster.to_string(), Instant::now());
        let known = lock(&self.sightings);
        let moves = self.handovers.iter().filter(|known| {
            known.cluster == cluster
                && handovers::is_requested_move(known)
                && !handovers::is_outdated(known, time)
        });
        moves.map(|last| known.remaining(last, now)).max().filter(|rest| !rest.is_zero())
    }

    /// Whether the ledger contains exactly this handover.
    pub(crate) fn contains(&self, handover: Option<&Handover>) -> bool {
        handover.is_some_and(|handover| self.handovers.contains(handover))
    }

    fn handover(&self, cluster: ClusterId, signal: &str) -> Option<&Handover> {
        let cluster = cluster.to_string();
        self.handovers.iter().find(|known| known.signal == signal && known.cluster == cluster)
    }
}

// === impl Ledgers ===

impl Ledgers {
    /// Whether all these ledgers were read.
    pub(crate) fn contain(&self, names: &BTreeSet<LedgerName>) -> bool {
        names.iter().all(|name| self.0.contains_key(name))
    }

    /// Returns the single ledger of a namespace.
    pub(crate) fn into_first(self) -> Option<Ledger> {
        self.0.into_values().next()
    }

    /// Returns the reservations that had not expired at the read, each of them once.
    pub(crate) fn active(&self) -> Vec<Reservation> {
        let all: BTreeSet<&Reservation> = self.0.values().flat_map(Ledger::active).collect();
        all.into_iter().cloned().collect()
    }

    /// Returns the reservations that had not expired at the read, each with the time at which it expires on this replica.
    pub(crate) fn expiries(&self) -> Vec<(Reservation, Instant)> {
        let now = Instant::now();
        let of_ledger = |ledger: &Ledger| -> Vec<(Reservation, Instant)> {
            let known = lock(&ledger.sightings);
            ledger.active.iter().map(|entry| (entry.clone(), known.expires(entry, now))).collect()
        };
        self.0.values().flat_map(of_ledger).collect()
    }

    /// Whether a ledger may be newer than the list of a namespace's pods that was read in parallel: see
    /// [`Sightings::may_be_newer_than`]. `may_concern` selects the reservations that matter.
    pub(crate) fn may_be_newer_than(
        &self,
        namespace: &str,
        pods: &[LivePod<'_>],
        may_concern: impl Fn(&Reservation) -> bool,
    ) -> bool {
        let now = Instant::now();
        let is_newer = |ledger: &Ledger| {
            let reservations = ledger.reservations.iter().filter(|known| may_concern(known));
            let reservations: Vec<Reservation> = reservations.cloned().collect();
            lock(&ledger.sightings).may_be_newer_than(&reservations, namespace, pods, now)
        };
        self.0.values().any(is_newer)
    }

    /// Records which reserved pods are missing in a list of the namespace that was read after the ledgers.
    pub(crate) fn observe_pods(&self, namespace: &str, pods: &[LivePod<'_>]) {
        for ledger in self.0.values() {
            lock(&ledger.sightings).observe_pods(&ledger.reservations, namespace, pods);
        }
    }

    /// Whether leadership is being handed over to the pod with this uid. `time` is the time of the wall clock: a replica that
    /// has restarted starts another lifetime.
    pub(crate) fn is_transferee(&self, uid: &str, time: Timestamp) -> bool {
        let now = Instant::now();
        self.0.values().any(|ledger| {
            let recent = ledger.handovers.iter().filter(|handover| !handovers::is_outdated(handover, time));
            let recent: Vec<Handover> = recent.cloned().collect();
            lock(&ledger.sightings).is_transferee(&recent, uid, now)
        })
    }

    /// Returns the time until leadership of this cluster may move for another deletion, if it moved for one recently.
    pub(crate) fn pause_between_moves(&self, cluster: ClusterId, time: Timestamp) -> Option<Duration> {
        let now = Instant::now();
        let rests = self.0.values().filter_map(|ledger| {
            let last = ledger.handover(cluster, REVIEW)?;
            let rest = lock(&ledger.sightings).remaining(last, now);
            (!handovers::is_outdated(last, time)).then_some(rest)
        });
        rests.max().filter(|rest| !rest.is_zero())
    }
}
