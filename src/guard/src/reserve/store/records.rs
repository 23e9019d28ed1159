//! The records that an evaluation, or the component for handovers, has read.

use std::slice;

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{AllRecords, InvalidRecord, Record, Records, handovers};
use etcd_guard_core::{
    handover::Handover,
    reservation::{LivePod, Reservation},
};

// === impl AllRecords ===

impl AllRecords {
    /// Returns the records with the handover of one of these signals.
    pub(crate) fn with_signals<'a>(
        &'a mut self,
        signals: &'a [String],
    ) -> impl Iterator<Item = &'a mut Record> {
        let has_any = move |record: &&mut Record| signals.iter().any(|signal| record.has_signal(signal));
        self.0.values_mut().filter(has_any)
    }

    /// Returns the signals of all recorded handovers.
    pub(crate) fn signals(&self) -> impl Iterator<Item = &str> {
        self.0.values().flat_map(|record| record.handovers.iter().map(|handover| handover.signal.as_str()))
    }

    /// Returns the reservations that have not expired, each of them once.
    pub(crate) fn active(&self) -> Vec<Reservation> {
        active(self.0.values())
    }
}

// === impl Records ===

impl Records {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Record> {
        let (few, all): (&[Record], &[Result<Record, InvalidRecord>]) = match self {
            Self::Known(_, record) | Self::Provisional(record) => (slice::from_ref(record), &[]),
            Self::Incomplete(_, records) => (&records[..], &[]),
            Self::All(records) => (&[], records),
        };
        few.iter().chain(all.iter().flatten())
    }

    /// Returns whether a record may be newer than a list of a namespace's pods that was read in parallel.
    pub(crate) fn may_be_newer_than(&self, namespace: &str, live_pods: &[LivePod<'_>]) -> bool {
        let is_newer = |record: &Record| {
            record.ledger().may_be_newer_than(&record.reservations, namespace, live_pods, Instant::now())
        };
        self.iter().any(is_newer)
    }

    /// Records which reserved pods of a namespace are gone. `live_pods` are the pods that exist.
    pub(crate) fn observe_pods(&self, namespace: &str, live_pods: &[LivePod<'_>]) {
        for record in self.iter() {
            record.ledger().observe_pods(&record.reservations, namespace, live_pods, Instant::now());
        }
    }

    /// Whether leadership is being handed over to the pod with this uid. `time` is the time of the wall clock: after the ledger of
    /// the record was lost, an entry would start another lifetime.
    pub(crate) fn is_transferee(&self, uid: &str, time: Timestamp) -> bool {
        let now = Instant::now();
        self.iter().any(|record| {
            let recent = record.handovers.iter().filter(|handover| !handovers::is_outdated(handover, time));
            let recent: Vec<Handover> = recent.cloned().collect();
            record.ledger().is_transferee(&recent, uid, now)
        })
    }

    /// Returns the reservations that have not expired, each of them once.
    pub(crate) fn active(&self) -> Vec<Reservation> {
        active(self.iter())
    }
}

/// Returns the active reservations of these records. A record can contain a copy of a reservation in the provisional record.
fn active<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<Reservation> {
    let mut active: Vec<Reservation> = Vec::new();
    for reservation in records.flat_map(Record::active) {
        if !active.contains(&reservation) {
            active.push(reservation);
        }
    }
    active
}
