//! The background task that records which dependents and owners exist at the same time.
//!
//! A namespace is read when one of its StatefulSets changes, and periodically. The watch of StatefulSets shows each
//! pod that a StatefulSet creates as a change of the status within moments. No verdict waits for a read of this task.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, sleep};

use crate::ownership::{
    leaving::{Link, OwnerScan},
    record::OwnershipRecord,
    store::{OwnershipStore, StoredRecord},
};
use etcd_guard_core::{
    discovery::etcd_pod,
    objects::{
        claim::Claim,
        owner_reference::{ControllerWalk, OwnerReference},
        pod::{Metadata, Pod},
    },
};
use etcd_guard_kubernetes::{
    AnnotationCache, ApiReader, ClaimReader, Existence, LeaseRecord, LookupError, Owner,
};

/// Interval between comparisons of the watch with the last read. A comparison calls no API.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between two reads of a namespace without changed StatefulSets.
const RESCAN_INTERVAL: Duration = Duration::from_secs(300);

/// The same interval if members have owners without a watch. Until the next read, the reservation (60 s) covers the members
/// of an owner whose deletion was accepted.
const UNWATCHED_RESCAN_INTERVAL: Duration = Duration::from_secs(15);

/// The same interval if no member is known: an owner without a watch may create the first one.
const EMPTY_RESCAN_INTERVAL: Duration = Duration::from_secs(60);

/// Minimum time between two reads of a namespace, so that a rollout does not cause a read for each change of a status.
const MIN_SCAN_INTERVAL: Duration = Duration::from_secs(2);

/// Pause after a read that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Time for which a missing dependent stays in the record. Another replica may have recorded a dependent after the read
/// of this replica.
const MISSING_TTL: Duration = Duration::from_secs(60);

/// Interval between searches for records of namespaces that are not guarded any more.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(600);

/// Maximum number of owners that are read for one dependent. More than one is rare.
pub(crate) const MAX_OWNERS: usize = 8;

/// Records the owners of members.
pub(crate) struct OwnershipRecorder {
    store: Arc<OwnershipStore>,
    reader: ApiReader,
    claims: ClaimReader,
    annotations: AnnotationCache,
}

/// The state of a guarded namespace.
#[derive(Default)]
struct NamespaceState {
    /// Version of the StatefulSets before the last successful read.
    version: Option<u64>,
    scanned_at: Option<Instant>,
    has_failed: bool,
    /// Interval to the next read if nothing changes.
    rescan: Duration,
    /// Time since which each recorded uid or owner has been missing.
    missing: BTreeMap<String, Instant>,
    /// Controllers of clusters with several voters, as the last successful read recorded them.
    several_voters: BTreeSet<String>,
    /// Owners that the log names as unreadable, by uid.
    reported: BTreeSet<String>,
}

// === impl OwnershipRecorder ===

impl OwnershipRecorder {
    /// Creates a recorder that writes to `store`.
    pub(crate) fn new(
        store: Arc<OwnershipStore>,
        reader: &ApiReader,
        claims: ClaimReader,
        annotations: AnnotationCache,
    ) -> Self {
        Self { store, reader: reader.for_background_tasks(), claims, annotations }
    }

    /// Records the owners in all guarded namespaces until the future is dropped.
    pub(crate) async fn run(&self) {
        // Until then, every namespace seems to be unguarded.
        while !self.annotations.wait_until_synced().await {
            sleep(CHECK_INTERVAL).await;
        }
        tokio::join!(self.scan_continuously(), self.delete_unused_records());
    }

    async fn scan_continuously(&self) {
        let mut states: BTreeMap<String, NamespaceState> = BTreeMap::new();
        loop {
            let guarded = self.annotations.guarded_namespaces().borrow().clone();
            let versions = self.annotations.stateful_set_versions(&guarded);
            let mut several_voters = self.store.voters.controllers();
            states.retain(|namespace, _| guarded.contains(namespace));
            self.store.leaving.retain(&guarded);
            for namespace in guarded {
                // A namespace that has just become guarded is read when its StatefulSets are known.
                let Some(version) = versions.get(&namespace).copied() else { continue };
                // The version was read before the pods: a change in between causes another read.
                let state = states.entry(namespace.clone()).or_default();
                let several_voters = several_voters.remove(&namespace).unwrap_or_default();
                if !several_voters.is_subset(&state.several_voters) {
                    state.version = None;
                }
                if state.is_due(version, Instant::now()) {
                    let result = self.scan(&namespace, state, &several_voters).await;
                    state.scanned_at = Some(Instant::now());
                    state.has_failed = result.is_err();
                    state.version = result.is_ok().then_some(version);
                    if result.is_ok() {
                        state.several_voters = several_voters;
                    }
                    if let Err(cause) = result {
                        tracing::warn!(namespace, cause, "could not record the owners of members");
                    }
                }
            }
            sleep(CHECK_INTERVAL).await;
        }
    }

    /// Reads the members of a namespace and their owners, and updates the record.
    async fn scan(
        &self,
        namespace: &str,
        state: &mut NamespaceState,
        several_voters: &BTreeSet<String>,
    ) -> Result<(), String> {
        let started = Instant::now();
        let mut pods = self.reader.list_pods(namespace).await.map_err(|error| error.to_string())?;
        self.annotations.apply_inherited(
            namespace,
            &mut pods,
            &etcd_pod::MEMBER_ANNOTATIONS,
            etcd_pod::inherits_from_namespace,
        );
        pods.retain(may_run_member);
        let stored = self.store.read(namespace).await.map_err(|error| error.to_string())?;
        let mut scan = OwnerScan::new(&self.reader, namespace);
        let claims = self.claims.last_known(namespace);
        let dependents = dependents(&mut scan, &pods, &claims).await;
        let mut leaving = BTreeSet::new();
        state.rescan = if pods.is_empty() { EMPTY_RESCAN_INTERVAL } else { RESCAN_INTERVAL };
        for pod in &pods {
            let links = scan.links(pod).await.map_err(|error| error.to_string())?;
            if !links.iter().all(Link::is_watched) {
                state.rescan = UNWATCHED_RESCAN_INTERVAL;
            }
            if links.iter().any(|link| link.shows_deletion(&stored.record)) {
                leaving.insert(pod.metadata.uid.clone());
            }
        }
        self.store.leaving.replace(namespace, started, leaving);
        let mut record = stored.record.clone();
        for dependent in dependents.iter().filter(|dependent| dependent.deletion_timestamp.is_none()) {
            for owner in dependent.owner_references.iter().take(MAX_OWNERS) {
                let key = owner.key();
                if record.has_pair(&dependent.uid, &key) {
                    continue;
                }
                // The dependent was read before its owner: both existed at the time of the first read.
                match scan.owner(owner).await {
                    Ok(Owner { state: Existence::Alive | Existence::Terminating, .. }) => {
                        if !record.insert(&dependent.uid, &key) {
                            tracing::warn!(namespace, "the record of owners is full");
                        }
                    }
                    Ok(Owner { state: Existence::Gone, .. }) => {}
                    Err(error @ LookupError::Forbidden { .. }) => {
                        if state.reported.insert(owner.uid.clone()) {
                            tracing::warn!(
                                namespace,
                                dependent = dependent.name,
                                %error,
                                "the guard cannot recognize deletions that follow from the deletion of this owner; \
                                 grant it the permission get for this kind (deploy/owners-role.yaml)"
                            );
                        }
                    }
                    Err(error) => return Err(error.to_string()),
                }
            }
        }
        record.insert_several_voters(several_voters);
        // While a StatefulSet has no pods, its owner and its claims can be deleted as well.
        let mut existing = self.annotations.stateful_set_uids(namespace);
        existing.extend(claims.into_iter().map(|claim| claim.metadata.uid));
        state.remove_missing(&mut record, &dependents, &existing, Instant::now());
        self.write(&stored, &record).await
    }

    async fn write(&self, stored: &StoredRecord, record: &OwnershipRecord) -> Result<(), String> {
        if stored.record == *record {
            return Ok(());
        }
        self.store.write(stored, record).await.map_err(|error| error.to_string())
    }

    /// Deletes the records of namespaces that were not guarded for [`CLEANUP_INTERVAL`].
    async fn delete_unused_records(&self) {
        let mut unused: BTreeMap<String, LeaseRecord> = BTreeMap::new();
        loop {
            sleep(CLEANUP_INTERVAL).await;
            let mut found = match self.store.list().await {
                Ok(found) => found,
                Err(error) => {
                    tracing::warn!(%error, "could not delete unused records of owners");
                    continue;
                }
            };
            let guarded = self.annotations.guarded_namespaces().borrow().clone();
            found.retain(|namespace, _| !guarded.contains(namespace));
            for (namespace, lease) in &found {
                if unused.get(namespace) == Some(lease)
                    && let Err(error) = self.store.delete(lease).await
                {
                    tracing::warn!(%error, "could not delete unused records of owners");
                }
            }
            unused = found;
        }
    }
}

// === impl NamespaceState ===

impl NamespaceState {
    fn is_due(&self, version: u64, now: Instant) -> bool {
        let Some(scanned_at) = self.scanned_at else { return true };
        let age = now.duration_since(scanned_at);
        let is_changed = self.version != Some(version);
        let pause = if self.has_failed { RETRY_INTERVAL } else { MIN_SCAN_INTERVAL };
        age >= self.rescan.max(pause) || is_changed && age >= pause
    }

    /// Removes pairs whose dependent has lost the reference, and uids that have been missing for [`MISSING_TTL`]. The
    /// references of further objects that exist are not known.
    fn remove_missing(
        &mut self,
        record: &mut OwnershipRecord,
        dependents: &[Metadata],
        existing: &BTreeSet<String>,
        now: Instant,
    ) {
        let keys =
            |dependent: &Metadata| dependent.owner_references.iter().map(OwnerReference::key).collect();
        let owners_by_uid: BTreeMap<&str, BTreeSet<String>> =
            dependents.iter().map(|dependent| (dependent.uid.as_str(), keys(dependent))).collect();
        let owners: BTreeSet<&String> = owners_by_uid.values().flatten().collect();
        let before = std::mem::take(&mut self.missing);
        let mut missing = BTreeMap::new();
        let mut is_recent = |uid: &str| {
            let since = before.get(uid).copied().unwrap_or(now);
            missing.insert(uid.to_owned(), since);
            now.duration_since(since) < MISSING_TTL
        };
        // An accepted owner is gone. It remains in the record as long as an object refers to it.
        let accepted: Vec<String> = record.accepted().map(str::to_owned).collect();
        let expired: BTreeSet<String> =
            accepted.into_iter().filter(|owner| !owners.contains(owner) && !is_recent(owner)).collect();
        record.retain(
            |dependent, owner| match owners_by_uid.get(dependent) {
                Some(owners) => owners.contains(owner),
                None => existing.contains(dependent) || is_recent(dependent),
            },
            |owner| !expired.contains(owner),
        );
        self.missing = missing;
    }
}

/// Returns the pods, their claims, and the owners that have owners themselves, for instance StatefulSets.
async fn dependents(scan: &mut OwnerScan<'_>, pods: &[Pod], claims: &[Claim]) -> Vec<Metadata> {
    let mounted: BTreeSet<&str> = pods
        .iter()
        .flat_map(|pod| &pod.spec.volumes)
        .filter_map(|volume| volume.persistent_volume_claim.as_ref())
        .map(|claim| claim.claim_name.as_str())
        .collect();
    let claims = claims.iter().filter(|claim| mounted.contains(claim.metadata.name.as_str()));
    let mut dependents: Vec<Metadata> = claims.map(|claim| claim.metadata.clone()).collect();
    dependents.extend(pods.iter().map(|pod| pod.metadata.clone()));
    let mut seen = BTreeSet::new();
    for pod in pods {
        let mut walk = ControllerWalk::of_pod(pod);
        while let Some((_, reference)) = walk.step().filter(|(_, reference)| seen.insert(reference.key())) {
            let Ok(owner) = scan.owner(&reference).await else { break };
            if owner.state == Existence::Gone {
                break;
            }
            walk.continue_above(&owner.metadata);
            dependents.push(owner.metadata);
        }
    }
    dependents
}

/// Whether this pod may run a member, also if an annotation excludes it at present.
fn may_run_member(pod: &Pod) -> bool {
    !pod.is_finished()
        && (etcd_pod::read(pod, &pod.metadata.annotations).is_some() || etcd_pod::is_excluded(pod))
}

#[cfg(test)]
mod tests;
