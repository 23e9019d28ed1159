//! The records as Leases in the guard's namespace, one per guarded namespace, changed by compare-and-swap.

use std::collections::BTreeMap;

use crate::ownership::{leaving::LeavingMembers, record::OwnershipRecord, voter_history::VoterHistory};
use etcd_guard_core::cluster_key::ClusterKey;
use etcd_guard_kubernetes::{LeaseRecord, Leases, LookupError, WriteError};

/// Annotation of the Lease that contains the record as JSON.
const ANNOTATION: &str = "etcd-guard.io/owners";

/// Prefix of the names of the Leases; the name of the guarded namespace follows.
const NAME_PREFIX: &str = "etcd-guard-owners.";

/// Maximum number of attempts of a write. Each conflict means that another replica made progress.
const MAX_ATTEMPTS: usize = 5;

/// Reads and writes the records of owners.
pub(crate) struct OwnershipStore {
    leases: Leases,
    /// The clusters that had several voters since the start of this replica.
    pub(crate) voters: VoterHistory,
    /// The members of deleted owners, as the recorder last found them.
    pub(crate) leaving: LeavingMembers,
}

/// A record as it was read.
pub(crate) struct StoredRecord {
    lease: LeaseRecord,
    /// The content at the time of the read.
    pub(crate) record: OwnershipRecord,
    /// Whether the content could be parsed.
    is_valid: bool,
}

// === impl OwnershipStore ===

impl OwnershipStore {
    /// Creates a store next to the Leases with reservations.
    pub(crate) fn new(reservations: &Leases) -> Self {
        Self {
            leases: reservations.of_owners(),
            voters: VoterHistory::new(),
            leaving: LeavingMembers::default(),
        }
    }

    /// Whether a member list of this cluster contained several voters, also before the start of this replica.
    pub(crate) async fn had_more_voters(&self, cluster_key: &ClusterKey) -> Result<bool, LookupError> {
        if self.voters.contains(cluster_key) {
            return Ok(true);
        }
        let Some(controller) = cluster_key.controller_uid() else { return Ok(false) };
        let stored = self.read(cluster_key.namespace()).await?;
        Ok(!stored.is_valid || stored.record.may_have_had_more_voters(controller))
    }

    /// Reads the record of a namespace. A record that cannot be parsed is empty: the next scan replaces it with all
    /// pairs that still exist.
    pub(crate) async fn read(&self, namespace: &str) -> Result<StoredRecord, LookupError> {
        Ok(StoredRecord::from(self.leases.read(&format!("{NAME_PREFIX}{namespace}")).await?))
    }

    /// Writes a record if the Lease did not change since it was read.
    pub(crate) async fn write(
        &self,
        stored: &StoredRecord,
        record: &OwnershipRecord,
    ) -> Result<(), WriteError> {
        let text = serde_json::to_string(record).map_err(|error| WriteError::Failed {
            name: stored.lease.name.clone(),
            cause: error.to_string(),
        })?;
        self.leases.write(&stored.lease, BTreeMap::from([(ANNOTATION.to_owned(), text)])).await?;
        Ok(())
    }

    /// Records that the deletion of an owner in this namespace was accepted.
    ///
    /// # Errors
    ///
    /// Returns the reason if the record could not be written.
    pub(crate) async fn accept(&self, namespace: &str, owner: &str) -> Result<(), String> {
        for _ in 0..MAX_ATTEMPTS {
            let stored = self.read(namespace).await.map_err(|error| error.to_string())?;
            let mut record = stored.record.clone();
            if !record.accept(owner) {
                return Err(String::from("the record of accepted deletions is full"));
            }
            match self.write(&stored, &record).await {
                Ok(()) => return Ok(()),
                Err(WriteError::Conflict) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Err(String::from("other replicas changed the record at the same time"))
    }

    /// Returns the Leases of all records, by the name of their guarded namespace.
    pub(crate) async fn list(&self) -> Result<BTreeMap<String, LeaseRecord>, LookupError> {
        let by_namespace = |lease: LeaseRecord| {
            let namespace = lease.name.strip_prefix(NAME_PREFIX)?.to_owned();
            Some((namespace, lease))
        };
        Ok(self.leases.list().await?.into_iter().filter_map(by_namespace).collect())
    }

    /// Deletes the record of a namespace, unless it changed since it was listed.
    pub(crate) async fn delete(&self, lease: &LeaseRecord) -> Result<(), WriteError> {
        match self.leases.delete(lease).await {
            Err(WriteError::Conflict) => Ok(()),
            result => result,
        }
    }
}

// === impl StoredRecord ===

impl From<LeaseRecord> for StoredRecord {
    fn from(lease: LeaseRecord) -> Self {
        let text = lease.annotations.get(ANNOTATION).map_or("{}", String::as_str);
        let parsed = serde_json::from_str(text).inspect_err(|error| {
            tracing::warn!(lease = lease.name, %error, "the record of owners cannot be parsed; it is replaced");
        });
        let is_valid = parsed.is_ok();
        Self { lease, record: parsed.unwrap_or_default(), is_valid }
    }
}
