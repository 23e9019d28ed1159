//! The reservation that precedes an approval.

use crate::guard::{
    assess::{Assessment, assess},
    decide::context::{EvaluationContext, EvaluationError},
    model::{
        request::{Operation, Request, WorkloadOperation},
        reservation::Reservation,
        snapshot::Snapshot,
    },
    observe::siblings::Siblings,
    policy::effective::Policy,
    reserve::store::{Record, ReservationStore},
};
use crate::k8s::{WriteError, pod::Pod};

/// Result of writing a reservation.
pub(super) enum ReserveOutcome {
    /// The reservation is stored.
    Stored,
    /// Another replica has approved a deletion since the record was read: the evaluation must start again.
    Conflict,
}

/// Creates the reservation of the request's pod. The uid is that of the live pod, because the request may lack it.
pub(super) fn new_reservation(
    context: &EvaluationContext<'_>,
    uid: &str,
    assessment: &Assessment,
) -> Reservation {
    Reservation {
        uid: uid.to_owned(),
        namespace: context.request.namespace.clone(),
        pod: context.request.name.clone(),
        member: assessment.member.map(|id| id.to_string()).unwrap_or_default(),
        // The store sets the time.
        at: String::new(),
        by: context.request.user.clone(),
        of_node: false,
    }
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

/// Writes a reservation to the record of its cluster.
pub(super) async fn reserve(
    store: &ReservationStore,
    context: &EvaluationContext<'_>,
    record: &mut Record,
    new: Reservation,
    siblings: &Siblings,
) -> Result<ReserveOutcome, EvaluationError> {
    let live_pods = siblings.live_pods();
    let cluster = format!("{}/{}", context.cluster_key.namespace(), context.cluster_key.name());
    let add = store.add(record, cluster, new, &live_pods);
    match context.deadline.within("writing the reservation to the API server", add).await? {
        Ok(()) => Ok(ReserveOutcome::Stored),
        Err(WriteError::Conflict) => Ok(ReserveOutcome::Conflict),
        Err(error) => Err(EvaluationError::Ledger(error.to_string())),
    }
}
