//! The consequences of an accepted deletion of an owner or namespace: its members are reserved, and the record of owners
//! contains the deletion.
//!
//! A deletion is accepted in three cases: break-glass or audit mode overrules a denial, no member runs, or the deletion is part
//! of a proven cascade. The garbage collector deletes the members afterwards, one request each. Until then they can be healthy, or
//! become healthy. Members of the same cluster with other owners or in other namespaces must not count them.

use std::collections::BTreeSet;

use crate::{
    evaluation::{Evaluation, ledger, ledger::member_reservation},
    observe::error::EvaluationError,
    policy::owner_chain::Kinds,
};
use etcd_guard_core::{
    cluster_key::ClusterKey,
    config::owner_kinds::OwnerKind,
    discovery::etcd_pod,
    objects::{owner_reference::OwnerReference, pod::Pod},
    request::{Request, WorkloadOperation},
    reservation::Reservation,
};

/// The pods of a namespace, and the uids of those whose members are deleted with the parent object.
struct DeletedMembers {
    pods: Vec<Pod>,
    uids: BTreeSet<String>,
}

/// The object with which members are deleted.
enum Parent {
    Namespace,
    StatefulSet { uid: String },
    Owner { kind: OwnerKind, uid: String },
}

/// Records an accepted operation. `owns_members` states that the object owns members, even if none of their pods exists.
/// Returns a warning for each part that could not be recorded; the operation is approved in any case.
pub(crate) async fn record(
    on: &Evaluation<'_>,
    operation: WorkloadOperation,
    owns_members: bool,
) -> Vec<String> {
    let request = on.request;
    let parent = match parent(on, operation).await {
        Some(Ok(parent)) => parent,
        Some(Err(cause)) => return vec![unrecorded(request, &cause)],
        None => return Vec::new(),
    };
    let deleted = deleted_members(on, &parent).await;
    // Most Deployments and ReplicaSets own no member. Their deletions must not fill the record.
    let is_unrelated = matches!(parent, Parent::Owner { .. })
        && !owns_members
        && deleted.as_ref().is_ok_and(|deleted| deleted.uids.is_empty());
    if is_unrelated {
        return Vec::new();
    }
    let mut warnings = record_owner(on, &parent).await;
    let reserved = match deleted {
        Ok(deleted) => reserve_members(on, &deleted).await,
        Err(error) => Err(error),
    };
    if reserved.is_err() {
        warnings
            .push(String::from("the members could not be reserved: delete no other member of the cluster"));
    }
    warnings
}

/// Returns the parent object whose deletion an operation requests; `None` for other operations. Its uid is read from the
/// API server, because the request may contain another one.
async fn parent(on: &Evaluation<'_>, operation: WorkloadOperation) -> Option<Result<Parent, String>> {
    let &Evaluation { services, request, deadline } = on;
    let Request { namespace, name, .. } = request;
    match operation {
        WorkloadOperation::DeleteNamespace => Some(Ok(Parent::Namespace)),
        WorkloadOperation::DeleteStatefulSet => {
            let read = services.observer.pods.stateful_set_metadata(namespace, name);
            let read = deadline.within("reading the StatefulSet from the API server", read).await;
            Some(match read {
                Ok(Ok(metadata)) => Ok(Parent::StatefulSet { uid: metadata.uid }),
                Ok(Err(error)) => Err(error.to_string()),
                Err(late) => Err(late.to_string()),
            })
        }
        WorkloadOperation::DeleteOwner => {
            let kind = services.owners.kind_of(request)?;
            match services.owners.object(request, &kind, deadline).await {
                Ok(Some(metadata)) => Some(Ok(Parent::Owner { kind, uid: metadata.uid })),
                Ok(None) => None,
                Err(error) => Some(Err(error.to_string())),
            }
        }
        _ => None,
    }
}

/// Records the uid of the parent, unless it is the namespace. Returns a warning if it could not be recorded.
async fn record_owner(on: &Evaluation<'_>, parent: &Parent) -> Vec<String> {
    let &Evaluation { services, request, deadline } = on;
    let (kind, uid) = match parent {
        Parent::Namespace => return Vec::new(),
        Parent::StatefulSet { uid } => ("StatefulSet", uid),
        Parent::Owner { kind, uid } => (&*kind.kind, uid),
    };
    let owner = OwnerReference {
        kind: kind.to_owned(),
        name: request.name.clone(),
        uid: uid.clone(),
        ..OwnerReference::default()
    };
    let key = owner.key();
    let record = services.ownership.accept(&request.namespace, &key);
    let recorded = deadline.within("recording the deletion of the owner", record).await;
    let cause = recorded.map_err(|late| late.to_string()).and_then(|recorded| recorded).err();
    cause.map(|cause| unrecorded(request, &cause)).into_iter().collect()
}

/// Finds the members that are deleted with the parent object.
async fn deleted_members(on: &Evaluation<'_>, parent: &Parent) -> Result<DeletedMembers, EvaluationError> {
    let &Evaluation { services, request, deadline } = on;
    let pods = services.observer.list_pods(&request.namespace, deadline).await?;
    let is_member = |pod: &&Pod| {
        !pod.is_terminating()
            && !pod.is_finished()
            && etcd_pod::read(pod, &pod.metadata.annotations).is_some()
    };
    let mut reads = services.owners.reads(&request.namespace, Kinds::All, deadline);
    let mut uids = BTreeSet::new();
    for pod in pods.iter().filter(is_member) {
        let is_deleted = match parent {
            Parent::Namespace => true,
            Parent::StatefulSet { .. } => pod.stateful_set() == Some(request.name.as_str()),
            Parent::Owner { kind, uid } => {
                let owners = reads.owners_up_to(pod, uid, kind).await;
                owners.map_err(EvaluationError::Lookup)?.is_some()
            }
        };
        if is_deleted {
            uids.insert(pod.metadata.uid.clone());
        }
    }
    Ok(DeletedMembers { pods, uids })
}

/// Reserves the members that are deleted with the parent object.
async fn reserve_members(on: &Evaluation<'_>, deleted: &DeletedMembers) -> Result<(), EvaluationError> {
    let &Evaluation { services, request, deadline } = on;
    let DeletedMembers { pods, uids } = deleted;
    let mut clusters: Vec<(ClusterKey, Vec<&Pod>)> = Vec::new();
    for pod in pods.iter().filter(|pod| uids.contains(&pod.metadata.uid)) {
        let key = ClusterKey::from_pod(&request.namespace, pod);
        match clusters.iter_mut().find(|(known, _)| *known == key) {
            Some((_, members)) => members.push(pod),
            None => clusters.push((key, vec![pod])),
        }
    }
    for (key, members) in clusters {
        let snapshot = services.observer.observe_listed(&key, pods, &[], deadline).await;
        // Members that do not answer this replica can serve at other replicas, or serve again.
        let new: Vec<Reservation> =
            members.iter().map(|pod| member_reservation(request, pod, &snapshot)).collect();
        ledger::reserve_members(on, &key, &snapshot, &new).await?;
        services.cache.invalidate_snapshot(&key);
    }
    Ok(())
}

fn unrecorded(request: &Request, cause: &str) -> String {
    let kind = request.owner.as_ref().map_or("StatefulSet", |owner| owner.kind.as_str());
    format!("the deletion of {kind} {} could not be recorded: {cause}", request.name)
}
