//! Deletions that follow from an accepted deletion of the namespace or of an owner. A denial would preserve no data,
//! and would leave the parent and its dependents half deleted. The guard therefore evaluates only the deletion of the
//! parent object.
//!
//! A request of the garbage collector proves no cascade by itself: the garbage collector also deletes objects whose
//! ownerReference is dangling. The [`ownership`](crate::guard::ownership) record distinguishes the two.

pub(super) mod acceptance;

use std::sync::Arc;

use crate::guard::{
    explain::break_glass_advice,
    model::{
        deadline::Deadline,
        reason::Reason,
        request::{Request, WorkloadOperation},
        verdict::Verdict,
        wall_clock::WallClock,
    },
    ownership::{record::OwnershipRecord, recorder::MAX_OWNERS, store::OwnershipStore},
    policy::owner_chain::OwnerReader,
};
use crate::k8s::{
    AnnotationCache, ApiReader, ClaimReader, LookupError, OwnerState,
    pod::{Metadata, OwnerReference, Pod},
};
use crate::mistakes::Mistake;

/// Users that delete the dependents of deleted objects. The second is the user of all controllers if the controller
/// manager runs without `--use-service-account-credentials`.
const GARBAGE_COLLECTORS: [&str; 2] =
    ["system:serviceaccount:kube-system:generic-garbage-collector", "system:kube-controller-manager"];

/// Returns whether this user deletes the dependents of deleted objects.
pub(super) fn is_garbage_collector(user: &str) -> bool {
    GARBAGE_COLLECTORS.contains(&user)
}

/// Detects deletions that follow from another deletion.
pub(super) struct CascadeDetector {
    pub(super) annotations: AnnotationCache,
    pub(super) pods: ApiReader,
    pub(super) claims: ClaimReader,
    pub(super) ownership: Arc<OwnershipStore>,
    pub(super) owners: OwnerReader,
}

/// Whether a deletion follows from another deletion.
pub(super) enum Cascade {
    /// The deletion of the parent was accepted. Contains the approval.
    Proven(Verdict),
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

// === impl CascadeDetector ===

impl CascadeDetector {
    /// Whether a request may follow from another deletion, according to its user and to the watch of namespaces.
    pub(super) fn may_be_cascade(&self, request: &Request) -> bool {
        is_garbage_collector(&request.user) || self.annotations.is_namespace_terminating(&request.namespace)
    }

    /// Returns whether the deletion of a live pod follows from another deletion.
    pub(super) async fn pod_cascade(&self, request: &Request, pod: &Pod, deadline: Deadline) -> Cascade {
        let (name, namespace) = (&request.name, &request.namespace);
        if self.is_namespace_terminating(namespace, deadline).await {
            return Cascade::Proven(namespace_terminating(namespace, name));
        }
        if !is_garbage_collector(&request.user) {
            return Cascade::No;
        }
        self.dependent_cascade(request, String::from("pod"), &pod.metadata, deadline).await
    }

    /// Returns whether a workload operation follows from another deletion. For a scale-down the user proves nothing,
    /// because the controllers that scale StatefulSets can have the user of the garbage collector.
    pub(super) async fn operation_cascade(
        &self,
        request: &Request,
        operation: WorkloadOperation,
        deadline: Deadline,
    ) -> Cascade {
        let (name, namespace) = (&request.name, &request.namespace);
        if self.is_namespace_terminating(namespace, deadline).await {
            return Cascade::Proven(namespace_terminating(namespace, name));
        }
        if !is_garbage_collector(&request.user) {
            return Cascade::No;
        }
        let (kind, read) = match operation {
            WorkloadOperation::DeleteStatefulSet => {
                let read = self.pods.stateful_set_metadata(namespace, name);
                (
                    String::from("statefulset"),
                    deadline.within("reading the StatefulSet from the API server", read).await,
                )
            }
            WorkloadOperation::DeleteClaim => {
                let read = async { Ok(self.claims.read(namespace, name).await?.metadata) };
                (
                    String::from("persistentvolumeclaim"),
                    deadline.within("reading the claim from the API server", read).await,
                )
            }
            WorkloadOperation::DeleteOwner => {
                let Some(kind) = self.owners.kind_of(request) else { return Cascade::No };
                match self.owners.object(request, &kind, deadline).await {
                    Ok(Some(metadata)) => (kind.resource_name(), Ok(Ok(metadata))),
                    Ok(None) | Err(_) => return Cascade::No,
                }
            }
            _ => return Cascade::No,
        };
        match read {
            Ok(Ok(metadata)) => self.dependent_cascade(request, kind, &metadata, deadline).await,
            // Evaluated like any other deletion.
            Ok(Err(_)) | Err(_) => Cascade::No,
        }
    }

    /// Returns whether the owner of an object, which the garbage collector deletes, existed together with the object and
    /// was deleted.
    async fn dependent_cascade(
        &self,
        request: &Request,
        kind: String,
        dependent: &Metadata,
        deadline: Deadline,
    ) -> Cascade {
        let namespace = &request.namespace;
        let record = self.read_record(namespace, deadline).await;
        let mut missing = MissingOwners { kind, references: Vec::new() };
        let mut deleted: Option<&OwnerReference> = None;
        for (index, owner) in dependent.owner_references.iter().enumerate().take(MAX_OWNERS) {
            let read = self.pods.owner(namespace, owner);
            match deadline.within("reading the owner from the API server", read).await {
                Err(_) => return Cascade::No,
                Ok(Ok(read)) => match read.state {
                    // The garbage collector deletes no object with a living owner.
                    OwnerState::Alive => return Cascade::No,
                    // Both exist at this moment, so that the reference is not dangling.
                    OwnerState::Terminating => deleted = Some(owner),
                    OwnerState::Gone => {
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
                Cascade::Proven(Verdict::new(Reason::OwnerDeleted, text))
            }
            None if missing.references.is_empty() => Cascade::No,
            None => Cascade::Unproven(missing),
        }
    }

    /// Returns the record of owners. Without the record, nothing is proven.
    async fn read_record(&self, namespace: &str, deadline: Deadline) -> OwnershipRecord {
        let read = self.ownership.read(namespace);
        match deadline.within("reading the record of owners from the API server", read).await {
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
    async fn is_namespace_terminating(&self, name: &str, deadline: Deadline) -> bool {
        if !self.annotations.is_namespace_terminating(name) {
            return false;
        }
        let read = self.pods.is_namespace_terminating(name);
        let read = deadline.within("reading the namespace from the API server", read).await;
        matches!(read, Ok(Ok(true)))
    }
}

fn namespace_terminating(namespace: &str, name: &str) -> Verdict {
    let text = format!("namespace {namespace} is terminating, and {name} is deleted with it");
    Verdict::new(Reason::NamespaceTerminating, text)
}

// === impl MissingOwners ===

impl MissingOwners {
    /// Adds the cause of the request and its remedies to a denial.
    pub(super) fn explain(&self, request: &Request, clock: &WallClock, denial: &mut Verdict) {
        let Some((_, owner, error)) = self.references.first() else { return };
        let (owner, prefix) = (display(owner), "the garbage collector requests this deletion because");
        let cause = match error {
            None => format!("{prefix} {owner} does not exist, and no record shows that it ever existed"),
            Some(error) => format!("{prefix} {owner} is absent, and the guard cannot confirm this: {error}"),
        };
        let (kind, name, namespace) = (&self.kind, &request.name, &request.namespace);
        let advice = break_glass_advice(&format!("-n {namespace} {kind} {name}"), clock);
        let remedy = match self.removal(request) {
            Some(command) => {
                format!(
                    "If the ownerReference is dangling, remove it to keep the object: {command}. To {advice}"
                )
            }
            None => format!("To {advice}"),
        };
        denial.explain_cause(&cause, &remedy);
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
