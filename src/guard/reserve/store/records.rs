//! The content of records: reservations, handovers and names of the cluster.

use std::{collections::BTreeSet, sync::MutexGuard};

use tokio::time::Instant;

use super::{AllRecords, CLUSTER_ANNOTATION, InvalidRecord, PROVISIONAL_PREFIX, Record, Records, lock};
use crate::guard::{
    model::{
        handover::HandoverState,
        reservation::{LivePod, Reservation},
    },
    reserve::ledger::Ledger,
};

/// Maximum number of names in a record. It exceeds the number of voters that the guard accepts; owners that no longer exist
/// are dropped when it is exceeded.
const MAX_CLUSTER_NAMES: usize = 128;

// === impl Record ===

impl Record {
    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    /// Whether the record contains approvals that could not read the cluster id.
    pub(super) fn is_provisional(&self) -> bool {
        self.lease.name.starts_with(PROVISIONAL_PREFIX)
    }

    pub(super) fn cluster_names(&self) -> BTreeSet<&str> {
        self.lease
            .annotations
            .get(CLUSTER_ANNOTATION)
            .map(|names| names.lines().collect())
            .unwrap_or_default()
    }

    /// Adds names of the cluster, which the next write stores: one for each owner of its pods.
    pub(in crate::guard) fn add_cluster_names(&mut self, names: impl IntoIterator<Item = String>) {
        let new: BTreeSet<String> = names.into_iter().collect();
        let known = self.cluster_names();
        let mut all: BTreeSet<&str> = new.iter().map(String::as_str).chain(known).collect();
        if all.len() > MAX_CLUSTER_NAMES {
            all = new.iter().map(String::as_str).take(MAX_CLUSTER_NAMES).collect();
        }
        let text = all.into_iter().collect::<Vec<_>>().join("\n");
        self.lease.annotations.insert(CLUSTER_ANNOTATION.to_owned(), text);
    }

    /// Whether the record contains the handover of this signal.
    pub(in crate::guard) fn has_signal(&self, signal: &str) -> bool {
        self.handovers.iter().any(|handover| handover.signal == signal)
    }

    /// Returns the state of the handover of this signal, if the record contains one.
    pub(in crate::guard) fn handover_state(&self, signal: &str) -> Option<HandoverState> {
        let handover = self.handovers.iter().find(|handover| handover.signal == signal)?;
        Some(self.ledger().handover_state(handover, Instant::now()))
    }

    /// Returns the reservations that have not expired.
    pub(in crate::guard) fn active(&self) -> Vec<Reservation> {
        self.ledger().active(&self.reservations, Instant::now()).cloned().collect()
    }
}

// === impl AllRecords ===

impl AllRecords {
    /// Returns the records with the handover of one of these signals.
    pub(in crate::guard) fn with_signals<'a>(
        &'a mut self,
        signals: &'a [String],
    ) -> impl Iterator<Item = &'a mut Record> {
        let has_any = move |record: &&mut Record| signals.iter().any(|signal| record.has_signal(signal));
        self.0.values_mut().filter(has_any)
    }

    /// Returns the reservations that have not expired.
    pub(in crate::guard) fn active(&self) -> Vec<Reservation> {
        self.0.values().flat_map(Record::active).collect()
    }
}

// === impl Records ===

impl Records {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Record> {
        let (one, all): (Option<&Record>, &[Result<Record, InvalidRecord>]) = match self {
            Self::Known(_, record) => (Some(record), &[]),
            Self::All(records) => (None, records),
        };
        one.into_iter().chain(all.iter().flatten())
    }

    /// Returns whether a record may be newer than a list of a namespace's pods that was read in parallel.
    pub(in crate::guard) fn may_be_newer_than(&self, namespace: &str, live_pods: &[LivePod<'_>]) -> bool {
        let is_newer = |record: &Record| {
            record.ledger().may_be_newer_than(&record.reservations, namespace, live_pods, Instant::now())
        };
        self.iter().any(is_newer)
    }

    /// Records which reserved pods of a namespace are gone. `live_pods` are the pods that exist.
    pub(in crate::guard) fn observe_pods(&self, namespace: &str, live_pods: &[LivePod<'_>]) {
        for record in self.iter() {
            record.ledger().observe_pods(&record.reservations, namespace, live_pods, Instant::now());
        }
    }

    /// Whether leadership is being handed over to the pod with this uid.
    pub(in crate::guard) fn is_transferee(&self, uid: &str) -> bool {
        let now = Instant::now();
        self.iter().any(|record| record.ledger().is_transferee(&record.handovers, uid, now))
    }

    /// Returns the reservations that have not expired.
    pub(in crate::guard) fn active(&self) -> Vec<Reservation> {
        self.iter().flat_map(Record::active).collect()
    }
}
