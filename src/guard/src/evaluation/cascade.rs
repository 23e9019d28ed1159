//! Deletions that follow from an accepted deletion of the namespace or of an owner. A denial would preserve no data,
//! and would leave the parent and its dependents half deleted. The guard therefore evaluates only the deletion of the
//! parent object.
//!
//! A request of the garbage collector proves no cascade by itself: the garbage collector also deletes objects whose
//! ownerReference is dangling. The [`ownership`](crate::ownership) record distinguishes the two.

pub(crate) mod acceptance;

use crate::{
    evaluation::Evaluation,
    ownership::{record::OwnershipRecord, recorder::MAX_OWNERS},
};
use etcd_guard_core::{
    explain::{break_glass_advice, capitalized},
    mistakes::Mistake,
    objects::{
        owner_reference::OwnerReference,
        pod::{Metadata, Pod},
    },
    reason::Reason,
    request::{Request, WorkloadOperation},
    verdict::Verdict,
    wall_clock::WallClock,
};
use etcd_guard_kubernetes::{Existence, LookupError};

/// Users that delete the dependents of deleted objects. The second is the user of all controllers if the controller
/// manager runs without `--use-service-account-credentials`.
const GARBAGE_COLLECTORS: [&str; 2] =
    ["system:serviceaccount:kube-system:generic-garbage-collector", "system:kube-controller-manager"];

/// Returns whether this user deletes the dependents of deleted objects.
pub(super) fn is_garbage_collector(user: &str) -> bool {
    GARBAGE_COLLECTORS.contains(&user)
}

/// Whether a deletion follows from another deletion.
pub(super) enum Cascade {
    /// The deletion of the parent was accepted. Contains the approval.
    Proven(Box<Verdict>),
    /// The garbage collector requests the deletion, and no record shows that the missing owners ever existed.
    Unproven(MissingOwners),
    /// The request has another cause.
    No,
}

/// Owners of an object that do not exist or cannot be read.
pub(super) struct MissingOwners {
    /// Kind of the dependent, as in `kubectl patch`.
    kind: String,
    /// The ownerReferences, each with its index, and with the reason if the owner could not be read.
    references: Vec<(usize, OwnerReference, Option<LookupError>)>,
}

// === impl Cascade ===

impl Cascade {
    /// Adds the cause to the denial of a garbage collector's request that no record proves to be a cascade.
    pub(super) fn explain(&self, on: &Evaluation<'_>, verdict: &mut Verdict) {
        if let Self::Unproven(missing) = self
            && !verdict.reason.allows()
        {
            missing.explain(on.request, &on.services.policies.wall_clock, verdict);
        }
    }
}

/// Whether a request may follow from another deletion, according to its user and to the watch of namespaces.
pub(super) fn may_be_cascade(on: &Evaluation<'_>) -> bool {
    let annotations = &on.services.observer.annotations;
    is_garbage_collector(&on.request.user) || annotations.is_namespace_terminating(&on.request.namespace)
}

/// Returns whether the deletion of a live pod follows from another deletion.
pub(super) async fn of_pod(on: &Evaluation<'_>, pod: &Pod) -> Cascade {
    let request = on.request;
    let (name, namespace) = (&request.name, &request.namespace);
    if is_namespace_terminating(on, namespace).await {
        return Cascade::Proven(Box::new(namespace_terminating(namespace, name)));
    }
    if !is_garbage_collector(&request.user) {
        return Cascade::No;
    }
    of_dependent(on, String::from("pod"), &pod.metadata).await
}

/// Returns whether a workload operation follows from another deletion. For a scale-down the user proves nothing,
/// because the controllers that scale StatefulSets can have the user of the garbage collector.
pub(super) async fn of_operation(on: &Evaluation<'_>, operation: WorkloadOperation) -> Cascade {
    let &Evaluation { services, request, deadline } = on;
    let (name, namespace) = (&request.name, &request.namespace);
    if is_namespace_terminating(on, namespace).await {
        return Cascade::Proven(Box::new(namespace_terminating(namespace, name)));
    }
    if !is_garbage_collector(&request.user) {
        return Cascade::No;
    }
    let (kind, read) = match operation {
        WorkloadOperation::DeleteStatefulSet => {
            let read = services.observer.pods.stateful_set_metadata(namespace, name);
            (
                String::from("statefulset"),
                deadline.within("reading the StatefulSet from the API server", read).await,
            )
        }
        WorkloadOperation::DeleteClaim => {
            let read = async { Ok(services.observer.claims.read(namespace, name).await?.metadata) };
            (
                String::from("persistentvolumeclaim"),
                deadline.within("reading the claim from the API server", read).await,
            )
        }
        WorkloadOperation::DeleteOwner => {
            let Some(kind) = services.owners.kind_of(request) else { return Cascade::No };
            match services.owners.object(request, &kind, deadline).await {
                Ok(Some(metadata)) => (kind.resource_name(), Ok(Ok(metadata))),
                Ok(None) | Err(_) => return Cascade::No,
            }
        }
        _ => return Cascade::No,
    };
    match read {
        Ok(Ok(metadata)) => of_dependent(on, kind, &metadata).await,
        // Evaluated like any other deletion.
        Ok(Err(_)) | Err(_) => Cascade::No,
    }
}

/// Returns whether the owner of an object, which the garbage collector deletes, existed together with the object and
/// was deleted.
async fn of_dependent(on: &Evaluation<'_>, kind: String, dependent: &Metadata) -> Cascade {
    let &Evaluation { services, request, deadline } = on;
    let namespace = &request.namespace;
    let record = read_record(on, namespace).await;
    let mut missing = MissingOwners { kind, references: Vec::new() };
    let mut deleted: Option<&OwnerReference> = None;
    for (index, owner) in dependent.owner_references.iter().enumerate().take(MAX_OWNERS) {
        let read = services.observer.pods.owner(namespace, owner);
        match deadline.within("reading the owner from the API server", read).await {
            Err(_) => return Cascade::No,
            Ok(Ok(read)) => match read.state {
                // The garbage collector deletes no object with a living owner.
                Existence::Alive => return Cascade::No,
                // Both exist at this moment, so that the reference is not dangling.
                Existence::Terminating => deleted = Some(owner),
                Existence::Gone => {
                    if record.proves_owner(&dependent.uid, owner)
                        || Mistake::BelieveGarbageCollector.is_active()
                    {
                        deleted = Some(owner);
                    }
                    missing.references.push((index, owner.clone(), None));
                }
            },
            Ok(Err(error)) => missing.references.push((index, owner.clone(), Some(error))),
        }
    }
    match deleted {
        Some(owner) => {
            let (kind, owner) = (printable(&owner.kind), printable(&owner.name));
            let text = format!(
                "{kind} {owner} was deleted, and its {} {} is deleted with it",
                missing.kind, request.name
            );
            Cascade::Proven(Box::new(Verdict::new(Reason::OwnerDeleted, text)))
        }
        None if missing.references.is_empty() => Cascade::No,
        None => Cascade::Unproven(missing),
    }
}

/// Returns the record of owners. Without the record, nothing is proven.
async fn read_record(on: &Evaluation<'_>, namespace: &str) -> OwnershipRecord {
    let read = on.services.ownership.read(namespace);
    match on.deadline.within("reading the record of owners from the API server", read).await {
        Ok(Ok(stored)) => stored.record,
        Ok(Err(error)) => {
            tracing::warn!(namespace, %error, "could not read the record of owners");
            OwnershipRecord::default()
        }
        Err(_) => OwnershipRecord::default(),
    }
}

/// Returns whether the deletion of a namespace was accepted. Only if the watch shows the deletion, a live read
/// confirms it.
async fn is_namespace_terminating(on: &Evaluation<'_>, name: &str) -> bool {
    let observer = &on.services.observer;
    if !observer.annotations.is_namespace_terminating(name) {
        return false;
    }
    let read = observer.pods.is_namespace_terminating(name);
    let read = on.deadline.within("reading the namespace from the API server", read).await;
    matches!(read, Ok(Ok(true)))
}

fn namespace_terminating(namespace: &str, name: &str) -> Verdict {
    let text = format!("namespace {namespace} is terminating, and {name} is deleted with it");
    Verdict::new(Reason::NamespaceTerminating, text)
}

// === impl MissingOwners ===

impl MissingOwners {
    /// Adds the cause of the request and its remedies to a denial.
    fn explain(&self, request: &Request, clock: &WallClock, denial: &mut Verdict) {
        let Some((_, owner, error)) = self.references.first() else { return };
        let (owner, prefix) = (display(owner), "the garbage collector requests this deletion because");
        let cause = match error {
            None => format!("{prefix} {owner} does not exist, and no record shows that it ever existed"),
            Some(error) => format!("{prefix} {owner} is absent, and the guard cannot confirm this: {error}"),
        };
        let (kind, name, namespace) = (&self.kind, &request.name, &request.namespace);
        let advice = break_glass_advice(&format!("-n {namespace} {kind} {name}"), clock);
        let overrule = capitalized(&advice);
        match self.removal(request) {
            Some(command) => {
                let remove =
                    format!("If the ownerReference is dangling, remove it to keep the object: {command}");
                denial.explain_cause(&cause, &remove);
                denial.add_advice(&overrule);
            }
            None => denial.explain_cause(&cause, &overrule),
        }
    }

    /// Returns the command that removes the dangling references. Each removal first tests the uid.
    fn removal(&self, request: &Request) -> Option<String> {
        let is_plain = |owner: &OwnerReference| printable(&owner.uid) == owner.uid;
        if !self.references.iter().all(|(_, owner, _)| is_plain(owner)) {
            return None;
        }
        // From the last to the first: a removal changes the indexes of later references.
        let operations = self.references.iter().rev().map(|(index, owner, _)| {
            let path = format!("/metadata/ownerReferences/{index}");
            format!(
                r#"{{"op":"test","path":"{path}/uid","value":"{}"}},{{"op":"remove","path":"{path}"}}"#,
                owner.uid
            )
        });
        let operations = operations.collect::<Vec<_>>().join(",");
        let Request { name, namespace, .. } = request;
        Some(format!("kubectl -n {namespace} patch {} {name} --type=json -p '[{operations}]'", self.kind))
    }
}

fn display(owner: &OwnerReference) -> String {
    let OwnerReference { kind, name, uid, .. } = owner;
    format!("its owner {} {} (uid {})", printable(kind), printable(name), printable(uid))
}

/// Returns a text of an ownerReference, which the API server does not validate, for messages and commands.
fn printable(text: &str) -> String {
    const MAX_LENGTH: usize = 63;
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.' | '_' | ':');
    text.chars().take(MAX_LENGTH).map(|letter| if is_plain(letter) { letter } else { '?' }).collect()
}

#[cfg(test)]
mod tests;
