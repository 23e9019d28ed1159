//! The content of one Lease, and the records that an evaluation has read together with it.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::time::Instant;

use etcd_guard_core::{
    handover::{Handover, HandoverState},
    ledger::Ledger,
    reservation::Reservation,
};
use etcd_guard_kubernetes::{LeaseRecord, LookupError};

/// Annotation of the Lease with the names of the cluster, one per line: `NAMESPACE/OWNER` for each owner of its pods, as far as
/// evaluations have found them. For people who read the Leases.
pub(super) const CLUSTER_ANNOTATION: &str = "etcd-guard.io/cluster";

/// Annotation of a record that contains all reservations of the provisional record. It is absent until a replica has read the
/// provisional record after the record was created, and after each new provisional reservation, whose writer removes it.
pub(super) const COMPLETE_ANNOTATION: &str = "etcd-guard.io/complete";

/// Maximum number of names in a record. It exceeds the number of voters that the guard accepts; owners that no longer exist
/// are dropped when it is exceeded. In the provisional record, the names of other clusters are dropped as well.
const MAX_CLUSTER_NAMES: usize = 128;

/// Name of the provisional record, which contains the approvals of all clusters whose id was not known. A cluster id contains no
/// letter `u`.
pub(super) const PROVISIONAL_NAME: &str = "etcd-guard.unknown";

/// The content of a cluster's Lease at the time of one evaluation's read.
pub(crate) struct Record {
    pub(super) lease: LeaseRecord,
    /// Content of the Lease at the time of the read. Concurrent evaluations have copies of their own.
    pub(super) reservations: Vec<Reservation>,
    /// Handovers in the Lease at the time of the read.
    pub(super) handovers: Vec<Handover>,
    pub(super) ledger: Arc<Mutex<Ledger>>,
    /// Whether the next write contains all approvals of the provisional record.
    pub(super) is_complete: bool,
    /// The records that were read together with this one; `None` if it was read alone.
    pub(super) read: Option<Arc<ReadRecords>>,
}

/// A record that cannot be parsed.
pub(crate) struct InvalidRecord {
    pub(super) name: String,
    pub(super) error: LookupError,
}

/// The records that an evaluation has read.
#[derive(Default)]
pub(super) struct ReadRecords {
    /// The uids of the reserved pods, each with the time of its reservation.
    reservations: BTreeSet<(String, String)>,
}

pub(super) fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns uid and time of a reservation.
fn entry_of(reservation: &Reservation) -> (String, String) {
    (reservation.uid.clone(), reservation.at.clone())
}

// === impl Record ===

impl Record {
    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    /// Whether the record contains approvals whose evaluations did not know the cluster id.
    pub(super) fn is_provisional(&self) -> bool {
        self.lease.name == PROVISIONAL_NAME
    }

    pub(super) fn cluster_names(&self) -> BTreeSet<&str> {
        self.lease
            .annotations
            .get(CLUSTER_ANNOTATION)
            .map(|names| names.lines().collect())
            .unwrap_or_default()
    }

    /// Adds names of the cluster, which the next write stores: one for each owner of its pods.
    pub(crate) fn add_cluster_names(&mut self, names: impl IntoIterator<Item = String>) {
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
    pub(crate) fn has_signal(&self, signal: &str) -> bool {
        self.handovers.iter().any(|handover| handover.signal == signal)
    }

    /// Returns the state of the handover of this signal, if the record contains one.
    pub(crate) fn handover_state(&self, signal: &str) -> Option<HandoverState> {
        let handover = self.handovers.iter().find(|handover| handover.signal == signal)?;
        Some(self.ledger().handover_state(handover, Instant::now()))
    }

    /// Returns the reservations that have not expired.
    pub(crate) fn active(&self) -> Vec<Reservation> {
        self.ledger().active(&self.reservations, Instant::now()).cloned().collect()
    }

    /// Adds the reservations of the provisional record, unless the record has contained all of them since an earlier write.
    pub(super) fn complete(mut self, provisional: Vec<Reservation>, read: Arc<ReadRecords>) -> Self {
        self.read = Some(read);
        if !self.is_complete {
            let new = provisional.into_iter().filter(|reservation| !self.reservations.contains(reservation));
            let new: Vec<Reservation> = new.collect();
            self.reservations.extend(new);
            self.is_complete = self.lease.version.is_some();
        }
        self
    }

    /// Whether another record contains a reservation of the same cluster, as far as can be known, that no record contained when
    /// the records were read: a provisional reservation can concern each cluster.
    pub(super) fn misses(&self, other: &Self) -> bool {
        let Some(read) = &self.read else { return false };
        let can_be_same_cluster = self.is_provisional() != other.is_provisional();
        let is_new = |reservation: &Reservation| !read.reservations.contains(&entry_of(reservation));
        can_be_same_cluster && other.reservations.iter().any(is_new)
    }
}

// === impl ReadRecords ===

impl ReadRecords {
    pub(super) fn new<'a>(records: impl Iterator<Item = &'a Record>) -> Self {
        Self { reservations: records.flat_map(|record| record.reservations.iter().map(entry_of)).collect() }
    }
}
