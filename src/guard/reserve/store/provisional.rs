//! Reservations while the cluster id is unknown: provisional records, and the comparison with all other records after a write.
//!
//! A provisional record can concern each cluster. Its writer compares all records with those that it has read before, and changes
//! each of them, so that evaluations in progress cannot write, and the next ones read all records (decision 7).

use std::collections::BTreeMap;

use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    AllRecords, Record, Records, ReservationStore,
    record::{self, COMPLETE_ANNOTATION, InvalidRecord, provisional_name},
};
use crate::k8s::{LeaseRecord, LookupError, WriteError};

/// Annotation of a record that another replica has changed because of a provisional reservation: name and version of the
/// provisional record.
pub(super) const INVALIDATED_ANNOTATION: &str = "etcd-guard.io/invalidated-by";

/// Maximum number of concurrent writes after a provisional reservation.
const MAX_WRITES: usize = 16;

/// Maximum number of attempts to change one of the other records.
const MAX_ATTEMPTS: usize = 5;

// === impl ReservationStore ===

impl ReservationStore {
    /// Returns the provisional record for the cluster of this name, which can be empty. Used while no member reports the cluster
    /// id. Returns `None` if only the record of a known cluster was read.
    pub(in crate::guard) fn select_provisional(
        &self,
        records: Records,
        cluster: &str,
    ) -> Result<Option<Record>, LookupError> {
        let Records::All(records) = records else { return Ok(None) };
        // Each record can belong to this cluster.
        let records: BTreeMap<String, Record> = records
            .into_iter()
            .map(|record| record.map(|record| (record.lease.name.clone(), record)))
            .collect::<Result<_, _>>()
            .map_err(|invalid: InvalidRecord| invalid.error)?;
        let mut records = AllRecords(records);
        self.provisional_entry(&mut records, cluster)?;
        Ok(records.0.remove(&provisional_name(cluster)))
    }

    /// Returns the provisional record for the cluster of this name among all records, or an empty one.
    pub(in crate::guard) fn provisional_entry<'a>(
        &self,
        records: &'a mut AllRecords,
        cluster: &str,
    ) -> Result<&'a mut Record, LookupError> {
        self.entry_of(records, provisional_name(cluster))
    }

    /// Returns [`WriteError::Conflict`] if another replica can have approved a deletion in the same cluster between the read of
    /// all records and the write of this one. Evaluations that have read another record before that, and write it afterwards,
    /// receive a conflict.
    pub(super) async fn require_first(&self, record: &Record) -> Result<(), WriteError> {
        let leases = self.leases.list().await.map_err(|error| WriteError::Failed {
            name: record.lease.name.clone(),
            cause: error.to_string(),
        })?;
        let mut others: Vec<LeaseRecord> =
            leases.into_iter().filter(|lease| lease.name != record.lease.name).collect();
        for other in &others {
            self.require_no_new(record, other.clone())?;
        }
        if !record.is_provisional() {
            return Ok(());
        }
        others.retain(|lease| !record::has_provisional_name(&lease.name));
        let marker = format!("{} {}", record.lease.name, record.lease.version.as_deref().unwrap_or_default());
        let writes = others.into_iter().map(|lease| self.invalidate(record, lease, &marker));
        stream::iter(writes).buffer_unordered(MAX_WRITES).try_collect().await
    }

    /// Returns [`WriteError::Conflict`] if the other Lease contains a reservation that was not read before.
    fn require_no_new(&self, record: &Record, other: LeaseRecord) -> Result<(), WriteError> {
        match self.parse_record(other) {
            Ok(other) if record.misses(&other) => Err(WriteError::Conflict),
            Err(InvalidRecord { name, error })
                if record.is_provisional() || record::has_provisional_name(&name) =>
            {
                Err(WriteError::Failed { name, cause: error.to_string() })
            }
            // The record of another cluster.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Changes the Lease of a cluster, so that evaluations that have read it cannot write it, and the next one reads all records.
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
            lease = read
                .map_err(|error| WriteError::Failed { name: lease.name.clone(), cause: error.to_string() })?;
            if lease.version.is_none() {
                // The evaluation that creates it again lists all records afterwards.
                return Ok(());
            }
            self.require_no_new(record, lease.clone())?;
        }
        Err(WriteError::Conflict)
    }
}
