//! Reservations while the cluster id is unknown: the provisional record, and the comparison of the records after a write.
//!
//! A provisional reservation can concern each cluster. Its writer compares all records with those that it has read before, and
//! changes each of them, so that evaluations in progress cannot write, and the next ones read the provisional record (decision 7).
//! All clusters share one provisional record. An evaluation reads it by its name, so that the number of calls does not depend on the
//! number of clusters.

use std::{collections::BTreeMap, sync::Arc};

use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    AllRecords, Record, Records, ReservationStore, lease_name,
    record::{COMPLETE_ANNOTATION, InvalidRecord, PROVISIONAL_NAME, ReadRecords},
};
use etcd_guard_core::{
    etcd::member::ClusterId,
    mistakes::Mistake,
    reservation::{LivePod, Reservation},
};
use etcd_guard_kubernetes::{LeaseRecord, LookupError, WriteError};

/// Annotation of a record that another replica has changed because of a provisional reservation: name and version of the
/// provisional record.
pub(super) const INVALIDATED_ANNOTATION: &str = "etcd-guard.io/invalidated-by";

/// Maximum number of concurrent writes after a provisional reservation.
const MAX_WRITES: usize = 16;

/// Maximum number of attempts to change a record that other replicas change at the same time.
const MAX_ATTEMPTS: usize = 5;

// === impl ReservationStore ===

impl ReservationStore {
    /// Reads the provisional record, before the first probe round of a cluster.
    pub(crate) async fn read_provisional(&self) -> Result<Records, LookupError> {
        if Mistake::IgnoreOtherRecords.is_active() {
            let empty = self.empty_record(PROVISIONAL_NAME).map_err(|invalid| invalid.error)?;
            return Ok(Records::Provisional(empty));
        }
        self.read_record(PROVISIONAL_NAME).await.map(Records::Provisional)
    }

    /// Returns an empty record of the cluster that the first probe round has reported. Returns `None` if the cluster has a record:
    /// an evaluation must read its reservations before the probe round. A missing record had no active reservation during the probe round,
    /// because records are deleted only after [`STALE_RECORD_INTERVAL`](super::STALE_RECORD_INTERVAL) without a change.
    pub(crate) async fn new_record(
        &self,
        provisional: Record,
        cluster: ClusterId,
    ) -> Result<Option<Record>, LookupError> {
        let record = self.read_record(&lease_name(cluster)).await?;
        if record.lease.version.is_some() {
            return Ok(None);
        }
        let read = Arc::new(ReadRecords::new([&provisional].into_iter()));
        Ok(Some(self.observe(record.complete(provisional.active(), read))))
    }

    /// Returns the provisional record, which can be empty. Used while no member reports the cluster id. Returns `None` if not all
    /// records were read: each unread record can belong to the cluster.
    pub(crate) fn select_provisional(&self, records: Records) -> Result<Option<Record>, LookupError> {
        let Records::All(records) = records else { return Ok(None) };
        let records: BTreeMap<String, Record> = records
            .into_iter()
            .map(|record| record.map(|record| (record.lease.name.clone(), record)))
            .collect::<Result<_, _>>()
            .map_err(|invalid: InvalidRecord| invalid.error)?;
        let mut records = AllRecords(records);
        self.provisional_entry(&mut records)?;
        Ok(records.0.remove(PROVISIONAL_NAME))
    }

    /// Returns the provisional record among all records, or an empty one.
    pub(crate) fn provisional_entry<'a>(
        &self,
        records: &'a mut AllRecords,
    ) -> Result<&'a mut Record, LookupError> {
        self.entry_of(records, PROVISIONAL_NAME.to_owned())
    }

    /// Adds provisional reservations, with the errors of [`Self::add`](super::ReservationStore::add).
    pub(super) async fn add_provisional(
        &self,
        record: &mut Record,
        cluster: &str,
        new: &[Reservation],
        live_pods: &[LivePod<'_>],
    ) -> Result<(), WriteError> {
        let previous = self.write_provisional(record, cluster, new, live_pods).await?;
        if Mistake::IgnoreOtherRecords.is_active() {
            return Ok(());
        }
        let checked = self.require_first(record).await;
        if checked.is_err() {
            // A reservation that is not withdrawn expires.
            let _ = self.withdraw_provisional(record, new, previous).await;
        }
        checked
    }

    /// Writes the provisional record with new reservations. If another replica has written it since the read, repeats only the
    /// write: a decision without a cluster id does not depend on reservations, because no member proves a member list, or the
    /// deletion is approved in any case. Returns the active reservations before the new ones.
    async fn write_provisional(
        &self,
        record: &mut Record,
        cluster: &str,
        new: &[Reservation],
        live_pods: &[LivePod<'_>],
    ) -> Result<Vec<Reservation>, WriteError> {
        let _turn = match self.provisional_writes.try_lock() {
            Ok(turn) => turn,
            Err(_) => {
                let turn = self.provisional_writes.lock().await;
                self.read_again(record).await?;
                turn
            }
        };
        for _ in 1..MAX_ATTEMPTS {
            match self.write_new(record, cluster, new, live_pods).await {
                Err(WriteError::Conflict) => self.read_again(record).await?,
                written => return written,
            }
        }
        self.write_new(record, cluster, new, live_pods).await
    }

    /// Removes the new reservations from the provisional record. Restores the active reservations of the same pods that they have
    /// replaced; their lifetimes start again. If the deadline ends first, the new reservations expire.
    async fn withdraw_provisional(
        &self,
        record: &mut Record,
        new: &[Reservation],
        mut previous: Vec<Reservation>,
    ) -> Result<(), WriteError> {
        let _turn = self.provisional_writes.lock().await;
        previous.retain(|known| new.iter().any(|new| new.uid == known.uid));
        for _ in 0..MAX_ATTEMPTS {
            let mut remaining = record.reservations.clone();
            remaining.retain(|known| !new.contains(known));
            previous.retain(|known| remaining.iter().all(|other| other.uid != known.uid));
            remaining.extend_from_slice(&previous);
            match self.write(record, remaining, record.handovers.clone()).await {
                Err(WriteError::Conflict) => self.read_again(record).await?,
                written => return written,
            }
        }
        Err(WriteError::Conflict)
    }

    /// Reads the provisional record again. The later comparison still uses the records that the evaluation read before its probe round.
    async fn read_again(&self, record: &mut Record) -> Result<(), WriteError> {
        let current = self.read_record(PROVISIONAL_NAME).await;
        let current = current.map_err(|error| unread(PROVISIONAL_NAME, &error))?;
        *record = Record { read: record.read.take(), ..current };
        Ok(())
    }

    /// Returns [`WriteError::Conflict`] if another replica can have approved a deletion in the same cluster between the reads
    /// before the probe round and the write of this record. After a provisional reservation, evaluations that have read another
    /// record before this call, and write it afterwards, receive a conflict.
    pub(super) async fn require_first(&self, record: &Record) -> Result<(), WriteError> {
        let name = &record.lease.name;
        if !record.is_provisional() {
            let provisional =
                self.leases.read(PROVISIONAL_NAME).await.map_err(|error| unread(name, &error))?;
            return self.require_no_new(record, provisional);
        }
        let leases = self.leases.list().await.map_err(|error| unread(name, &error))?;
        let others: Vec<LeaseRecord> = leases.into_iter().filter(|lease| lease.name != *name).collect();
        for other in &others {
            self.require_no_new(record, other.clone())?;
        }
        let marker = format!("{name} {}", record.lease.version.as_deref().unwrap_or_default());
        let writes = others.into_iter().map(|lease| self.invalidate(record, lease, &marker));
        stream::iter(writes).buffer_unordered(MAX_WRITES).try_collect().await
    }

    /// Returns [`WriteError::Conflict`] if the other Lease contains a reservation that was not read before.
    fn require_no_new(&self, record: &Record, other: LeaseRecord) -> Result<(), WriteError> {
        match self.parse_record(other) {
            Ok(other) if record.misses(&other) => Err(WriteError::Conflict),
            Err(InvalidRecord { name, error }) => Err(unread(&name, &error)),
            Ok(_) => Ok(()),
        }
    }

    /// Changes the Lease of a cluster, so that evaluations that have read it cannot write it, and the next one also reads the
    /// provisional record.
    async fn invalidate(
        &self,
        record: &Record,
        mut lease: LeaseRecord,
        marker: &str,
    ) -> Result<(), WriteError> {
        for _ in 0..MAX_ATTEMPTS {
            lease.annotations.remove(COMPLETE_ANNOTATION);
            // Without a change of its content, the Lease would keep its version.
            lease.annotations.insert(INVALIDATED_ANNOTATION.to_owned(), marker.to_owned());
            match self.leases.write(&lease, lease.annotations.clone()).await {
                Err(WriteError::Conflict) => {}
                written => return written.map(drop),
            }
            let read = self.leases.read(&lease.name).await;
            lease = read.map_err(|error| unread(&lease.name, &error))?;
            if lease.version.is_none() {
                // The evaluation that creates it again reads the provisional record afterwards.
                return Ok(());
            }
            self.require_no_new(record, lease.clone())?;
        }
        Err(WriteError::Conflict)
    }
}

/// Returns the failure of a write because a record could not be read.
fn unread(name: &str, error: &LookupError) -> WriteError {
    WriteError::Failed { name: name.to_owned(), cause: error.to_string() }
}
