//! The consequences of an accepted deletion of a StatefulSet or namespace: its members are reserved, and the record of
//! owners contains the deletion.
//!
//! The deletion is accepted although it was denied: by a break-glass annotation or in audit mode. The garbage collector
//! deletes the members afterwards, one request each. Until then, the members look healthy. Members of the same cluster
//! in other StatefulSets or namespaces must not count them.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use crate::etcd::ClusterId;
use crate::guard::{
    assess::assess,
    decide::{cluster_cache::ClusterCache, context::EvaluationError},
    discovery::etcd_pod,
    model::{
        cluster_key::ClusterKey,
        deadline::Deadline,
        request::{Request, WorkloadOperation},
        reservation::{LivePod, Reservation},
        snapshot::Snapshot,
    },
    observe::observer::ClusterObserver,
    ownership::store::OwnershipStore,
    policy::effective::Policy,
    reserve::store::ReservationStore,
};
use crate::k8s::{
    WriteError,
    pod::{OwnerReference, Pod},
};

/// Maximum number of attempts to write the reservations of one cluster. Each conflict means that another evaluation made
/// progress.
const MAX_ATTEMPTS: usize = 5;

/// Records accepted deletions of parent objects.
pub(in crate::guard::decide) struct AcceptedDeletions {
    pub(in crate::guard::decide) observer: Arc<ClusterObserver>,
    pub(in crate::guard::decide) cache: Arc<ClusterCache>,
    pub(in crate::guard::decide) reservations: Arc<ReservationStore>,
    pub(in crate::guard::decide) ownership: Arc<OwnershipStore>,
}

// === impl AcceptedDeletions ===

impl AcceptedDeletions {
    /// Records an accepted operation. Returns a warning for each part that could not be recorded; the operation is
    /// approved in any case.
    pub(in crate::guard::decide) async fn record(
        &self,
        request: &Request,
        operation: WorkloadOperation,
        deadline: Deadline,
    ) -> Vec<String> {
        let is_set = match operation {
            WorkloadOperation::DeleteStatefulSet => true,
            WorkloadOperation::DeleteNamespace => false,
            _ => return Vec::new(),
        };
        let mut warnings = Vec::new();
        if is_set && let Err(cause) = self.record_owner(request, deadline).await {
            warnings
                .push(format!("the deletion of StatefulSet {} could not be recorded: {cause}", request.name));
        }
        if self.reserve_members(request, is_set, deadline).await.is_err() {
            warnings.push(String::from(
                "the members could not be reserved: delete no other member of the cluster",
            ));
        }
        warnings
    }

    /// Records the uid of the StatefulSet. The uid is read from the API server, because the request may contain another
    /// one.
    async fn record_owner(&self, request: &Request, deadline: Deadline) -> Result<(), String> {
        let Request { namespace, name, .. } = request;
        let record = async {
            let read = self.observer.pods.stateful_set_metadata(namespace, name).await;
            let metadata = read.map_err(|error| error.to_string())?;
            let owner = OwnerReference {
                kind: String::from("StatefulSet"),
                name: metadata.name,
                uid: metadata.uid,
                ..OwnerReference::default()
            };
            self.ownership.accept(namespace, &owner.key()).await
        };
        let recorded = deadline.within("recording the deletion of the StatefulSet", record).await;
        recorded.map_err(|error| error.to_string())?
    }

    /// Reserves the members that are deleted with the parent object.
    async fn reserve_members(
        &self,
        request: &Request,
        is_set: bool,
        deadline: Deadline,
    ) -> Result<(), EvaluationError> {
        let pods = self.observer.list_pods(&request.namespace, deadline).await?;
        let is_deleted = |pod: &&Pod| {
            !pod.is_terminating()
                && !pod.is_finished()
                && (!is_set || pod.stateful_set() == Some(request.name.as_str()))
                && etcd_pod::read(pod, &pod.metadata.annotations).is_some()
        };
        let mut clusters: Vec<(ClusterKey, Vec<&Pod>)> = Vec::new();
        for pod in pods.iter().filter(is_deleted) {
            let key = ClusterKey::from_pod(&request.namespace, pod);
            match clusters.iter_mut().find(|(known, _)| *known == key) {
                Some((_, members)) => members.push(pod),
                None => clusters.push((key, vec![pod])),
            }
        }
        let live_pods: Vec<LivePod<'_>> =
            pods.iter().map(|pod| LivePod { name: &pod.metadata.name, uid: &pod.metadata.uid }).collect();
        for (key, members) in clusters {
            let snapshot = self.observer.observe_listed(&key, &pods, deadline).await;
            // A cluster that reports no id, and never did, has no record, and loses nothing.
            let Some(id) = snapshot.cluster_id().or_else(|| self.cache.cluster_id(&key)) else { continue };
            let new: Vec<Reservation> =
                members.iter().map(|pod| new_reservation(request, pod, &snapshot)).collect();
            self.reserve(&key, id, &new, &live_pods, deadline).await?;
            self.cache.invalidate_snapshot(&key);
        }
        Ok(())
    }

    async fn reserve(
        &self,
        key: &ClusterKey,
        id: ClusterId,
        new: &[Reservation],
        live_pods: &[LivePod<'_>],
        deadline: Deadline,
    ) -> Result<(), EvaluationError> {
        for _ in 0..MAX_ATTEMPTS {
            let read = self.reservations.read(Some(id));
            let read = deadline.within("reading the reservations from the API server", read).await?;
            let record = read.and_then(|records| self.reservations.select(records, id));
            let record = record.map_err(|error| EvaluationError::unreadable_record(&error))?;
            let Some(mut record) = record else { break };
            let cluster = format!("{}/{}", key.namespace(), key.name());
            let add = self.reservations.add_all(&mut record, cluster, new.to_vec(), live_pods);
            match deadline.within("writing the reservations to the API server", add).await? {
                Ok(()) => return Ok(()),
                Err(WriteError::Conflict) => {}
                Err(error) => return Err(EvaluationError::Ledger(error.to_string())),
            }
        }
        Err(EvaluationError::Ledger(String::from(
            "other evaluations changed the reservations at the same time",
        )))
    }
}

fn new_reservation(request: &Request, pod: &Pod, snapshot: &Snapshot) -> Reservation {
    let target = snapshot.pod(&pod.metadata.name);
    let member = target.and_then(|target| assess(snapshot, target, &Policy::default()).member);
    Reservation {
        uid: pod.metadata.uid.clone(),
        namespace: request.namespace.clone(),
        pod: pod.metadata.name.clone(),
        member: member.map(|id| id.to_string()).unwrap_or_default(),
        at: Timestamp::now().to_string(),
        by: request.user.clone(),
    }
}
