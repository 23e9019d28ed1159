//! Members of deleted owners, which the garbage collector deletes next.
//!
//! The watch of StatefulSets shows the absence of a StatefulSet at once. Owners of other kinds have no watch. When
//! the recorder reads a namespace, it finds the members whose owner is gone. A decision needs no call for them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{PoisonError, RwLock},
    time::Duration,
};

use tokio::time::Instant;

use crate::ownership::record::OwnershipRecord;
use etcd_guard_core::objects::{
    owner_reference::{ControllerWalk, OwnerReference},
    pod::Pod,
};
use etcd_guard_kubernetes::{ApiReader, Existence, LookupError, Owner};

/// Age at which the result of a read no longer counts. It is less than the lifetime of a reservation (60 s), which covers
/// the time before the next read, and more than the interval of the reads.
const MAX_AGE: Duration = Duration::from_secs(40);

/// The members of deleted owners, from the last read of each namespace.
#[derive(Default)]
pub(crate) struct LeavingMembers(RwLock<BTreeMap<String, LastRead>>);

/// The result of one read.
struct LastRead {
    started: Instant,
    /// Uids of the pods.
    pods: BTreeSet<String>,
}

/// An owner of a pod, or of one of its owners.
#[derive(Debug)]
pub(crate) struct Link {
    /// Uid of the object with the reference.
    dependent: String,
    reference: OwnerReference,
    /// Whether the owner exists; `None` if the owner cannot be read.
    state: Option<Existence>,
}

/// Live reads of the owners in one namespace. Each owner is read at most once.
pub(crate) struct OwnerScan<'a> {
    reader: &'a ApiReader,
    namespace: &'a str,
    owners: BTreeMap<String, Result<Owner, LookupError>>,
}

// === impl LeavingMembers ===

impl LeavingMembers {
    /// Returns the uids of the members of deleted owners, or `None` if the namespace was not read recently.
    pub(crate) fn recent(&self, namespace: &str) -> Option<BTreeSet<String>> {
        let reads = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let last = reads.get(namespace)?;
        (last.started.elapsed() < MAX_AGE).then(|| last.pods.clone())
    }

    /// Stores the result of a read that began at this time.
    pub(super) fn replace(&self, namespace: &str, started: Instant, pods: BTreeSet<String>) {
        let mut reads = self.0.write().unwrap_or_else(PoisonError::into_inner);
        reads.insert(namespace.to_owned(), LastRead { started, pods });
    }

    /// Removes the results of all other namespaces.
    pub(super) fn retain(&self, namespaces: &BTreeSet<String>) {
        let mut reads = self.0.write().unwrap_or_else(PoisonError::into_inner);
        reads.retain(|namespace, _| namespaces.contains(namespace));
    }
}

// === impl Link ===

impl Link {
    /// Whether the owner was deleted according to the record, so that the pod is deleted next. While an owner cannot be
    /// read, only the record of an accepted deletion proves this: its absence would also be unknown to the garbage collector.
    pub(crate) fn shows_deletion(&self, record: &OwnershipRecord) -> bool {
        match self.state {
            Some(state) => record.shows_deletion(&self.dependent, &self.reference, state),
            None => record.is_accepted(&self.reference.key()),
        }
    }

    /// Whether the owner may have been deleted, so that the record decides.
    pub(crate) fn needs_record(&self) -> bool {
        matches!(self.state, None | Some(Existence::Gone))
    }

    /// Whether the owner has a watch.
    pub(super) fn is_watched(&self) -> bool {
        self.reference.is_stateful_set()
    }
}

// === impl OwnerScan ===

impl<'a> OwnerScan<'a> {
    /// Creates a scan that has read no owner.
    pub(crate) fn new(reader: &'a ApiReader, namespace: &'a str) -> Self {
        Self { reader, namespace, owners: BTreeMap::new() }
    }

    /// Returns the controllers above a pod, the nearest first. The chain ends at an owner that does not exist or cannot be
    /// read.
    ///
    /// # Errors
    ///
    /// Fails if a StatefulSet cannot be read. Owners of other kinds can be unreadable for a long time: the guard lacks the
    /// permission, or the API server cannot convert them.
    pub(crate) async fn links(&mut self, pod: &Pod) -> Result<Vec<Link>, LookupError> {
        let mut links: Vec<Link> = Vec::new();
        let mut walk = ControllerWalk::of_pod(pod);
        while let Some((dependent, reference)) = walk.step() {
            let state = match self.owner(&reference).await {
                Ok(owner) => {
                    walk.continue_above(&owner.metadata);
                    Some(owner.state)
                }
                Err(error) if reference.is_stateful_set() => return Err(error),
                Err(_) => None,
            };
            links.push(Link { dependent, reference, state });
        }
        Ok(links)
    }

    /// Returns an owner, which is read at most once.
    pub(super) async fn owner(&mut self, owner: &OwnerReference) -> Result<Owner, LookupError> {
        let key = owner.key();
        if let Some(known) = self.owners.get(&key) {
            return known.clone();
        }
        let read = self.reader.owner(self.namespace, owner).await;
        self.owners.insert(key, read.clone());
        read
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use etcd_guard_kubernetes::fake;

    fn pod(controller: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "ea-x", "uid": "pod", "ownerReferences": [controller]},
        }))
        .unwrap()
    }

    fn reference(kind: &str) -> Value {
        json!({"apiVersion": "apps/v1", "kind": kind, "name": "ea", "uid": kind, "controller": true})
    }

    #[tokio::test]
    async fn finds_deletion_above_the_controller() {
        let set = json!({"metadata": {"name": "ea", "uid": "ReplicaSet", "ownerReferences": [reference("Deployment")]}});
        let api = fake::api_server([("/apis/apps/v1/namespaces/prod/replicasets/ea", 200, set)]);
        let reader = ApiReader::new(api);
        let mut scan = OwnerScan::new(&reader, "prod");
        let links = scan.links(&pod(&reference("ReplicaSet"))).await.unwrap();
        let states: Vec<Option<Existence>> = links.iter().map(|link| link.state).collect();
        assert_eq!(states, [Some(Existence::Alive), Some(Existence::Gone)]);
        let mut record = OwnershipRecord::default();
        assert!(!links.iter().any(|link| link.shows_deletion(&record)), "the reference may be dangling");
        record.insert("ReplicaSet", "Deployment/ea/Deployment");
        assert!(links.iter().any(|link| link.shows_deletion(&record)));
    }

    #[tokio::test]
    async fn unreadable_owner_was_deleted_only_if_accepted() {
        let reader = |resource: &str| {
            let path = format!("/apis/apps/v1/namespaces/prod/{resource}/ea");
            ApiReader::new(fake::api_server([(&*path, 403, fake::status_failure(403, "forbidden"))]))
        };
        let replica_sets = reader("replicasets");
        let mut scan = OwnerScan::new(&replica_sets, "prod");
        let links = scan.links(&pod(&reference("ReplicaSet"))).await.unwrap();
        let mut record = OwnershipRecord::default();
        record.insert("pod", "ReplicaSet/ea/ReplicaSet");
        let is_deleted = |record: &OwnershipRecord| links.iter().any(|link| link.shows_deletion(record));
        assert!(!is_deleted(&record), "the owner may exist");
        record.accept("ReplicaSet/ea/ReplicaSet");
        assert!(is_deleted(&record));
        let sets = reader("statefulsets");
        assert!(OwnerScan::new(&sets, "prod").links(&pod(&reference("StatefulSet"))).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn result_of_an_old_read_does_not_count() {
        let leaving = LeavingMembers::default();
        assert!(leaving.recent("prod").is_none());
        leaving.replace("prod", Instant::now(), BTreeSet::from([String::from("pod")]));
        assert!(leaving.recent("prod").is_some_and(|pods| pods.contains("pod")));
        tokio::time::advance(MAX_AGE).await;
        assert!(leaving.recent("prod").is_none());
        leaving.retain(&BTreeSet::new());
        assert!(leaving.0.read().unwrap().is_empty());
    }
}
