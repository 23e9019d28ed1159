//! The ledger as evaluations use it: read before the probe round, and written after it with the version that was read.
//!
//! No other file of an evaluation of pods reads or writes reservations.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use crate::{
    evaluation::{Evaluation, Why},
    observe::{error::EvaluationError, namespace_pods::NamespacePods},
    reserve::store::{Record, Records},
};
use etcd_guard_core::{
    assess::assess,
    cluster_key::ClusterKey,
    etcd::member::ClusterId,
    objects::pod::Pod,
    policy::Policy,
    request::{Operation, Request, WorkloadOperation},
    reservation::{LivePod, Reservation},
    snapshot::Snapshot,
};
use etcd_guard_kubernetes::{LookupError, WriteError};

/// Maximum number of attempts to write the reservations of one cluster after an accepted deletion of its owner. Each
/// conflict means that another evaluation made progress.
const MAX_ATTEMPTS: usize = 5;

/// The reservations that an evaluation read before its probe round. If they cannot be read, approvals are not possible,
/// but a denial for another reason takes precedence over the error.
pub(super) struct Ledger(Result<Records, EvaluationError>);

/// Result of writing a reservation.
pub(super) enum Written {
    /// The reservation is stored.
    Stored,
    /// Another replica has approved a deletion since the ledger was read: the evaluation must start again.
    Conflict,
}

// === impl Ledger ===

impl Ledger {
    /// Whether the ledger of this cluster can be read together with its pods, because an earlier probe round named it.
    pub(super) fn is_known(on: &Evaluation<'_>, cluster_key: &ClusterKey) -> bool {
        on.services.cache.cluster_id(cluster_key).is_some()
    }

    /// Reads what the next evaluation of this cluster requires before its probe round.
    pub(super) async fn read(on: &Evaluation<'_>, cluster_key: &ClusterKey) -> Self {
        let (cache, store) = (&on.services.cache, &on.services.reservations);
        let id = cache.cluster_id(cluster_key);
        Self(if cache.requires_all_records(cluster_key) {
            Box::pin(read(on, store.read(None))).await
        } else if id.is_some() {
            Box::pin(read(on, store.read(id))).await
        } else {
            Box::pin(read(on, store.read_provisional())).await
        })
    }

    /// Reads all reservations.
    pub(super) async fn read_all(on: &Evaluation<'_>) -> Result<Self, EvaluationError> {
        read(on, on.services.reservations.read(None)).await.map(|records| Self(Ok(records)))
    }

    /// Returns the reservations that have not expired.
    pub(super) fn active(&self) -> Vec<Reservation> {
        self.0.as_ref().map(Records::active).unwrap_or_default()
    }

    /// Whether the ledger may be newer than these pods, which were read in parallel: it may reserve a pod that was created
    /// after the list.
    pub(super) fn may_be_newer_than(&self, namespace: &str, pods: &NamespacePods) -> bool {
        self.0.as_ref().is_ok_and(|records| records.may_be_newer_than(namespace, &pods.live_pods()))
    }

    /// Records which reserved pods of a namespace are gone.
    pub(super) fn observe_pods(&self, namespace: &str, pods: &NamespacePods) {
        if let Ok(records) = &self.0 {
            records.observe_pods(namespace, &pods.live_pods());
        }
    }

    /// Whether leadership is being handed over to the pod with this uid.
    pub(super) fn is_transferee(&self, uid: &str, time: Timestamp) -> bool {
        self.0.as_ref().is_ok_and(|records| records.is_transferee(uid, time))
    }

    /// Stores the cluster id of a probe round, with which the next evaluation finds its reservations. `needs_all` means that
    /// a reservation may follow, which requires all reservations if the id is unknown.
    pub(super) fn learn_cluster(
        &self,
        on: &Evaluation<'_>,
        cluster_key: &ClusterKey,
        id: Option<ClusterId>,
        needs_all: bool,
    ) -> Result<(), Why> {
        let is_missing = id.is_none() && needs_all && !matches!(self.0, Err(_) | Ok(Records::All(_)));
        // After a first probe round without a common id, the next evaluation reads all records at once.
        if id.is_some() || is_missing || matches!(self.0, Ok(Records::Provisional(_))) {
            on.services.cache.store_cluster_id(cluster_key, id);
        }
        // Without a common id, each record can belong to the cluster. The next attempt reads all records.
        if is_missing { Err(Why::MoreReservations) } else { Ok(()) }
    }

    /// Returns the record for a reservation after the probe round of this snapshot. `is_proven` means that the snapshot
    /// proves a member list.
    ///
    /// # Errors
    ///
    /// Fails if the ledger that was read belongs to another cluster. The inner error states that no reservation is
    /// possible.
    pub(super) async fn select(
        self,
        on: &Evaluation<'_>,
        snapshot: &Snapshot,
        is_proven: bool,
    ) -> Result<Result<Record, EvaluationError>, Why> {
        let store = &on.services.reservations;
        let id = snapshot.cluster_id();
        let selected = match (self.0, id) {
            (Err(error), _) => return Ok(Err(error)),
            (Ok(Records::Provisional(provisional)), Some(id)) => {
                Box::pin(read(on, store.new_record(provisional, id))).await
            }
            (Ok(records), Some(id)) => unreadable(store.select(records, id)),
            // A proven member list contradicts the missing id: the decision would depend on reservations of an unknown
            // record.
            (_, None) if is_proven => Err(no_cluster("the members report no common cluster ID")),
            // The members report no common cluster id. A crashed member may serve again before its deletion is executed,
            // so the deletion still requires a reservation.
            (Ok(records), None) => unreadable(store.select_provisional(records)),
        };
        match selected.transpose() {
            Some(selected) => Ok(selected),
            None if id.is_some() => Err(Why::OtherReservations),
            None => Ok(Err(no_cluster("no member reports the cluster ID"))),
        }
    }
}

/// Writes the reservation of the request's pod to the record that [`Ledger::select`] returned. The uid is that of the live
/// pod, because the request may lack it.
pub(super) async fn reserve(
    on: &Evaluation<'_>,
    cluster_key: &ClusterKey,
    record: &mut Record,
    uid: &str,
    member: String,
    pods: &NamespacePods,
) -> Result<Written, EvaluationError> {
    let new = Reservation {
        uid: uid.to_owned(),
        namespace: on.request.namespace.clone(),
        pod: on.request.name.clone(),
        member,
        // The store sets the time.
        at: String::new(),
        by: on.request.user.clone(),
        of_node: false,
    };
    let (live_pods, cluster) = (pods.live_pods(), cluster_name(cluster_key));
    let add = on.services.reservations.add(record, cluster, new, &live_pods);
    written(on.deadline.within("writing the reservation to the API server", add).await?)
}

/// Withdraws the reservation of this pod. If this fails as well, the reservation expires.
pub(super) async fn withdraw(on: &Evaluation<'_>, record: &mut Record, uid: &str, pods: &NamespacePods) {
    let live_pods = pods.live_pods();
    let withdraw = on.services.reservations.cancel(record, &on.request.namespace, uid, &live_pods);
    let _ = on.deadline.within("withdrawing the reservation", withdraw).await;
}

/// Reserves a deletion that follows from the deletion of an owner. A replica that has not evaluated this cluster yet
/// probes its members first. Without a reservation, members outside the cascade would count this pod until it terminates.
pub(super) async fn reserve_cascade(on: &Evaluation<'_>, cluster_key: &ClusterKey, policy: &Policy) {
    let &Evaluation { services, request, deadline } = on;
    if services.cache.cluster_id(cluster_key).is_none() {
        let Ok(pods) = services.observer.list_pods(&request.namespace, deadline).await else { return };
        let snapshot = services.observer.observe_listed(cluster_key, &pods, &[], deadline).await;
        services.cache.store_cluster_id(cluster_key, snapshot.cluster_id());
        services.cache.store_snapshot(cluster_key, snapshot);
    }
    reserve_overruled(on, cluster_key, policy).await;
}

/// Reserves a deletion that is approved in either case: break-glass or audit mode overrules its denial, or it follows from
/// another deletion. Other evaluations then do not count the pod as serving. Returns whether the reservation is stored.
pub(super) async fn reserve_overruled(
    on: &Evaluation<'_>,
    cluster_key: &ClusterKey,
    policy: &Policy,
) -> bool {
    let cache = &on.services.cache;
    let snapshot = cache.snapshot(cluster_key, Duration::MAX).map(|cached| cached.snapshot);
    if snapshot.as_ref().is_some_and(|snapshot| snapshot.cluster_id().is_none()) {
        // The cluster can have been restored under another id.
        cache.store_cluster_id(cluster_key, None);
    }
    let member = snapshot.and_then(|snapshot| {
        let target = snapshot.pod(&on.request.name)?;
        assess(&snapshot, target, policy).member
    });
    let member = member.map(|id| id.to_string()).unwrap_or_default();
    let is_stored = loop {
        match try_reserve_overruled(on, cluster_key, member.clone()).await {
            Ok(Some(Written::Conflict)) => {}
            Ok(Some(Written::Stored)) => break true,
            Ok(None) | Err(_) => break false,
        }
    };
    cache.invalidate_snapshot(cluster_key);
    is_stored
}

/// Makes one attempt of [`reserve_overruled`]. Returns `None` if the record or the pod is not known.
async fn try_reserve_overruled(
    on: &Evaluation<'_>,
    cluster_key: &ClusterKey,
    member: String,
) -> Result<Option<Written>, EvaluationError> {
    let &Evaluation { services, request, deadline } = on;
    let known = services.cache.cluster_id(cluster_key);
    let records = read(on, services.reservations.read(known)).await?;
    let pods = services.observer.list_pods(&request.namespace, deadline).await?;
    // Nothing remains to be reserved if the pod is gone, or stops already.
    if on.ended(pods.iter().find(|pod| request.matches(pod))).is_some() {
        return Ok(None);
    }
    let pods = NamespacePods::new(cluster_key, pods);
    let Some(mut record) = select_by_id(on, records, known)? else { return Ok(None) };
    // The uid is read from the API server, because the request may contain another one.
    let Some(uid) = pods.uid(&request.name) else { return Ok(None) };
    reserve(on, cluster_key, &mut record, uid, member, &pods).await.map(Some)
}

/// Returns the reservations of all clusters. A pod whose deletion was approved leaves, also before the API server has
/// executed the deletion.
pub(super) async fn all_active(on: &Evaluation<'_>) -> Result<Vec<Reservation>, EvaluationError> {
    read(on, on.services.reservations.read_active()).await
}

/// Creates the reservation of a member pod that is deleted with another object: its owner, its namespace or its node.
pub(super) fn member_reservation(request: &Request, pod: &Pod, snapshot: &Snapshot) -> Reservation {
    let target = snapshot.pod(&pod.metadata.name);
    let member = target.and_then(|target| assess(snapshot, target, &Policy::default()).member);
    Reservation {
        uid: pod.metadata.uid.clone(),
        namespace: pod.metadata.namespace.clone(),
        pod: pod.metadata.name.clone(),
        member: member.map(|id| id.to_string()).unwrap_or_default(),
        // The store sets the time.
        at: String::new(),
        by: request.user.clone(),
        of_node: matches!(request.operation, Operation::Workload(WorkloadOperation::DeleteNode { .. })),
    }
}

/// Reserves members of one cluster that are deleted with their owner or namespace.
pub(super) async fn reserve_members(
    on: &Evaluation<'_>,
    cluster_key: &ClusterKey,
    id: Option<ClusterId>,
    new: &[Reservation],
    live_pods: &[LivePod<'_>],
) -> Result<(), EvaluationError> {
    let store = &on.services.reservations;
    for _ in 0..MAX_ATTEMPTS {
        let records = read(on, store.read(id)).await?;
        let Some(mut record) = select_by_id(on, records, id)? else { break };
        let add = store.add_all(&mut record, cluster_name(cluster_key), new.to_vec(), live_pods);
        match written(on.deadline.within("writing the reservations to the API server", add).await?)? {
            Written::Stored => return Ok(()),
            Written::Conflict => {}
        }
    }
    Err(EvaluationError::Ledger(String::from("other evaluations changed the reservations at the same time")))
}

/// Returns what a write of reservations means for its evaluation.
pub(super) fn written(result: Result<(), WriteError>) -> Result<Written, EvaluationError> {
    match result {
        Ok(()) => Ok(Written::Stored),
        Err(WriteError::Conflict) => Ok(Written::Conflict),
        Err(error) => Err(EvaluationError::Ledger(error.to_string())),
    }
}

/// Returns the name of a cluster in its record: `NAMESPACE/OWNER`.
pub(super) fn cluster_name(cluster_key: &ClusterKey) -> String {
    format!("{}/{}", cluster_key.namespace(), cluster_key.name())
}

/// Waits for a read of reservations until the deadline.
pub(super) async fn read<T>(
    on: &Evaluation<'_>,
    read: impl Future<Output = Result<T, LookupError>>,
) -> Result<T, EvaluationError> {
    unreadable(on.deadline.within("reading the reservations from the API server", read).await?)
}

fn select_by_id(
    on: &Evaluation<'_>,
    records: Records,
    id: Option<ClusterId>,
) -> Result<Option<Record>, EvaluationError> {
    let store = &on.services.reservations;
    unreadable(match id {
        Some(id) => store.select(records, id),
        None => store.select_provisional(records),
    })
}

fn unreadable<T>(result: Result<T, LookupError>) -> Result<T, EvaluationError> {
    result.map_err(|error| EvaluationError::Ledger(error.to_string()))
}

fn no_cluster(cause: &str) -> EvaluationError {
    EvaluationError::Ledger(cause.to_owned())
}
