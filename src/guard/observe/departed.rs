//! Pods of a deleted owner. They are leaving for as long as they exist, however long ago the deletion was approved:
//! the garbage collector may delete them at any time.

use std::collections::BTreeSet;

use tokio::time::{Instant, timeout_at};

use crate::guard::{
    model::snapshot::Snapshot,
    observe::{observer::ClusterObserver, siblings::Siblings},
    ownership::{
        leaving::{Link, OwnerScan},
        record::OwnershipRecord,
    },
};
use crate::k8s::{LookupError, OwnerState, pod::Pod};

/// Maximum number of pods whose owners one evaluation reads. It exceeds the members of any cluster, together with the
/// other pods that one evaluation probes.
const MAX_PODS: usize = 128;

/// The pods of deleted owners.
#[derive(Debug, Default)]
pub(super) struct DepartedPods(BTreeSet<String>);

// === impl DepartedPods ===

impl DepartedPods {
    /// Marks these pods in a snapshot.
    pub(super) fn mark(&self, snapshot: &mut Snapshot) {
        for pod in &mut snapshot.pods {
            pod.owner.is_deleted = self.0.contains(&pod.uid);
        }
    }
}

// === impl ClusterObserver ===

impl ClusterObserver {
    /// Returns the etcd pods of the namespace with deleted owners. Costs no call while the watch shows the StatefulSets
    /// of these pods, and the recorder of owners reads those of other kinds.
    ///
    /// # Errors
    ///
    /// Fails if an owner cannot be read that may have been deleted.
    pub(super) async fn departed_pods(
        &self,
        siblings: &Siblings,
        until: Instant,
    ) -> Result<DepartedPods, LookupError> {
        let started = Instant::now();
        let (mut departed, unknown) = self.departed_without_reads(siblings);
        if !unknown.is_empty() {
            let read = Box::pin(self.read_departed(&siblings.namespace, &unknown));
            departed.extend(timeout_at(until, read).await.unwrap_or_else(|_| {
                Err(LookupError::TimedOut {
                    subject: format!("the owners of the pods in namespace {}", siblings.namespace),
                    limit: until.duration_since(started),
                })
            })?);
        }
        Ok(DepartedPods(departed))
    }

    /// Returns the etcd pods of the namespace whose owner was or may have been deleted. Without its owners, no other pod
    /// counts on them.
    pub(super) fn possibly_departed_pods(&self, siblings: &Siblings) -> DepartedPods {
        let (mut departed, unknown) = self.departed_without_reads(siblings);
        departed.extend(unknown.into_iter().map(|pod| pod.metadata.uid.clone()));
        DepartedPods(departed)
    }

    /// Returns the uids of the pods whose owner was deleted, and the pods whose owners have to be read.
    fn departed_without_reads<'a>(&self, siblings: &'a Siblings) -> (BTreeSet<String>, Vec<&'a Pod>) {
        let namespace = &siblings.namespace;
        let recent = self.ownership.leaving.recent(namespace);
        let is_scanned = recent.is_some();
        let mut departed = recent.unwrap_or_default();
        let mut unknown = Vec::new();
        for pod in siblings.etcd_pods() {
            let Some(owner) = pod.controller() else { continue };
            if !owner.is_stateful_set() {
                if !is_scanned {
                    unknown.push(pod);
                }
                continue;
            }
            match self.annotations.stateful_set_state(namespace, &owner.name, &owner.uid) {
                Some(OwnerState::Terminating) => {
                    departed.insert(pod.metadata.uid.clone());
                }
                Some(_) if is_scanned || !self.annotations.has_controller(namespace, &owner.name) => {}
                Some(_) | None => unknown.push(pod),
            }
        }
        (departed, unknown)
    }

    /// Reads the owners of these pods. Their absence alone proves nothing: the references may be dangling.
    async fn read_departed(&self, namespace: &str, pods: &[&Pod]) -> Result<BTreeSet<String>, LookupError> {
        if pods.len() > MAX_PODS {
            let subject = format!("the owners of the pods in namespace {namespace}");
            let cause = format!("more than {MAX_PODS} etcd pods have an owner that does not exist");
            return Err(LookupError::Failed { subject, cause });
        }
        let mut scan = OwnerScan::new(&self.pods, namespace);
        let mut chains = Vec::new();
        for pod in pods {
            chains.push((pod, scan.links(pod).await?));
        }
        let mut links = chains.iter().flat_map(|(_, links)| links);
        let record = if links.any(Link::needs_record) {
            self.ownership.read(namespace).await?.record
        } else {
            OwnershipRecord::default()
        };
        let departed =
            chains.iter().filter(|(_, links)| links.iter().any(|link| link.shows_deletion(&record)));
        Ok(departed.map(|(pod, _)| pod.metadata.uid.clone()).collect())
    }
}
