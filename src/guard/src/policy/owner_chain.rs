//! The owners of a member pod: its controller, the controller of this object, and so on, for instance a `ReplicaSet` and its
//! Deployment. StatefulSets come from their watch. Other owners are read live, by name, and only if the configuration
//! lists their kind.

use std::{collections::BTreeMap, sync::Arc};

use crate::{LiveConfig, deadline::Deadline};
use etcd_guard_core::{
    config::owner_kinds::OwnerKind,
    escape::{MAX_NAME_CHARS, to_bounded_line},
    objects::{
        owner_reference::{ControllerWalk, OwnerReference},
        pod::{Metadata, Pod},
    },
    request::Request,
};
use etcd_guard_kubernetes::{AnnotationCache, ApiReader, Existence, LookupError, Owner, OwnerResource};

/// Maximum number of owners that one evaluation reads. It exceeds the owners of 64 members with two owners each.
const MAX_READS: usize = 128;

/// The reason for the strictest policy of an owner that no call has read.
const NOT_READ: &str = "the pod could not be read, and therefore not its owners";

/// Reads the owners of pods.
#[derive(Clone)]
pub(crate) struct OwnerReader {
    annotations: AnnotationCache,
    reader: ApiReader,
    config: LiveConfig,
}

/// One owner of a chain.
#[derive(Debug)]
pub(crate) struct OwnerLink {
    /// The reference to the owner.
    pub(crate) reference: OwnerReference,
    /// The uid of the object with this reference.
    pub(crate) dependent: String,
    /// The owner, or the reason why it could not be read.
    pub(crate) owner: Result<Owner, LookupError>,
}

/// The kinds of owners that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kinds {
    /// Those of the configuration. A chain ends before an owner of another kind.
    Configured,
    /// All. The resources of other kinds are found by discovery.
    All,
}

/// The reads of one evaluation. Each owner is read at most once.
pub(crate) struct OwnerReads<'a> {
    source: &'a OwnerReader,
    namespace: &'a str,
    kinds: Kinds,
    deadline: Deadline,
    known: BTreeMap<String, Result<Owner, LookupError>>,
}

// === impl OwnerReader ===

impl OwnerReader {
    /// Creates a reader of the kinds in the configuration.
    pub(crate) fn new(annotations: AnnotationCache, reader: ApiReader, config: LiveConfig) -> Self {
        Self { annotations, reader, config }
    }

    /// Starts the reads of one evaluation.
    pub(crate) fn reads<'a>(
        &'a self,
        namespace: &'a str,
        kinds: Kinds,
        deadline: Deadline,
    ) -> OwnerReads<'a> {
        OwnerReads { source: self, namespace, kinds, deadline, known: BTreeMap::new() }
    }

    /// Returns the listed kind of a request's object; `None` if the configuration does not list it.
    pub(crate) fn kind_of(&self, request: &Request) -> Option<OwnerKind> {
        let owner = request.owner.as_ref()?;
        self.config.borrow().owner_kind_of_resource(&owner.group, &owner.resource).cloned()
    }

    /// Returns the metadata of a request's object, which is of this kind, or `None` if the object does not exist.
    pub(crate) async fn object(
        &self,
        request: &Request,
        kind: &OwnerKind,
        deadline: Deadline,
    ) -> Result<Option<Metadata>, LookupError> {
        let Request { namespace, name, .. } = request;
        let read = self.reader.object_metadata(namespace, name, &kind.kind, resource(kind));
        match deadline.within("reading the owner from the API server", read).await {
            Ok(read) => read,
            Err(late) => Err(failed(&kind.kind, namespace, name, late.to_string())),
        }
    }

    /// Returns the owners of a pod that are known without a read. The first owner that would have to be read is an error.
    pub(super) fn without_reads(&self, namespace: &str, pod: &Pod) -> Vec<OwnerLink> {
        let mut links: Vec<OwnerLink> = Vec::new();
        let mut walk = ControllerWalk::of_pod(pod);
        while let Some((dependent, reference)) = walk.step() {
            let owner = if reference.is_stateful_set() && links.is_empty() {
                let Some(set) = self.stateful_set(namespace, &reference) else { break };
                walk.continue_above(&set.metadata);
                Ok(set)
            } else if self.is_configured(&reference) {
                Err(failed(&reference.kind, namespace, &reference.name, String::from(NOT_READ)))
            } else {
                break;
            };
            links.push(OwnerLink { reference, dependent, owner });
        }
        links
    }

    /// Returns the reference to a StatefulSet of this name. The uid is empty if the watch does not show the StatefulSet.
    pub(super) fn stateful_set_reference(&self, namespace: &str, name: &str) -> OwnerReference {
        let set = self.annotations.stateful_set(namespace, name);
        OwnerReference {
            api_version: String::from("apps/v1"),
            kind: String::from("StatefulSet"),
            name: name.to_owned(),
            uid: set.map(|set| set.uid).unwrap_or_default(),
            controller: Some(true),
        }
    }

    fn is_configured(&self, reference: &OwnerReference) -> bool {
        self.config.borrow().owner_kind(reference.group(), &reference.kind).is_some()
    }

    /// Returns a StatefulSet from the watch. Its annotations count for every pod that names it; the owner of a StatefulSet
    /// with another uid does not.
    fn stateful_set(&self, namespace: &str, reference: &OwnerReference) -> Option<Owner> {
        let mut metadata = self.annotations.stateful_set(namespace, &reference.name)?;
        if metadata.uid != reference.uid {
            metadata.owner_references.clear();
        }
        let is_terminating = metadata.deletion_timestamp.is_some();
        let state = if is_terminating { Existence::Terminating } else { Existence::Alive };
        Some(Owner { state, metadata })
    }
}

// === impl OwnerLink ===

impl OwnerLink {
    /// Kind and name of the owner, escaped and cut: the API server does not validate references.
    pub(crate) fn object(&self) -> String {
        let OwnerReference { kind, name, .. } = &self.reference;
        format!("{} {}", to_bounded_line(kind, MAX_NAME_CHARS), to_bounded_line(name, MAX_NAME_CHARS))
    }
}

// === impl OwnerReads ===

impl OwnerReads<'_> {
    /// Returns the chain of owners of a pod, the nearest first.
    pub(crate) async fn chain_of_pod(&mut self, pod: &Pod) -> Vec<OwnerLink> {
        self.chain(&pod.metadata.uid, pod.controller().cloned()).await
    }

    /// Returns the chain of owners from this one, the nearest first. `dependent` is the uid of the object with the
    /// reference.
    pub(super) async fn chain(
        &mut self,
        dependent: &str,
        controller: Option<OwnerReference>,
    ) -> Vec<OwnerLink> {
        let mut links: Vec<OwnerLink> = Vec::new();
        let mut walk = ControllerWalk::new(dependent, controller.as_ref());
        while let Some((dependent, reference)) = walk.step() {
            let Some(owner) = self.owner(&reference).await else { break };
            if let Ok(owner) = &owner {
                walk.continue_above(&owner.metadata);
            }
            links.push(OwnerLink { reference, dependent, owner });
        }
        links
    }

    /// Returns the uids of the owners of a pod up to the object with this uid and kind; `None` if the object does not own
    /// the pod.
    ///
    /// # Errors
    ///
    /// Fails if an owner between them cannot be read, so that the relation is not known.
    pub(crate) async fn owners_up_to(
        &mut self,
        pod: &Pod,
        uid: &str,
        kind: &OwnerKind,
    ) -> Result<Option<Vec<String>>, LookupError> {
        // The garbage collector follows every reference of the pod, not only that of its controller.
        if pod.metadata.owner_references.iter().any(|owner| owner.uid == uid) {
            return Ok(Some(vec![uid.to_owned()]));
        }
        let mut uids = Vec::new();
        let mut walk = ControllerWalk::of_pod(pod);
        while let Some((_, reference)) = walk.step() {
            uids.push(reference.uid.clone());
            if reference.uid == uid {
                return Ok(Some(uids));
            }
            // The owners of a ReplicaSet are the only objects of which a Deployment is the owner.
            let is_replica_set = reference.group() == "apps" && reference.kind == "ReplicaSet";
            if kind.is_built_in() && (kind.kind == "ReplicaSet" || !is_replica_set) {
                break;
            }
            let Some(owner) = self.owner(&reference).await else { break };
            walk.continue_above(&owner?.metadata);
        }
        Ok(None)
    }

    /// Stores an owner that the caller has read.
    pub(super) fn insert(&mut self, reference: &OwnerReference, metadata: Metadata) {
        self.known.insert(reference.key(), Ok(Owner { state: Existence::Alive, metadata }));
    }

    /// Returns an owner; `None` if its kind is not read, or if the watch does not show the StatefulSet.
    async fn owner(&mut self, reference: &OwnerReference) -> Option<Result<Owner, LookupError>> {
        let &mut Self { source, namespace, kinds, deadline, .. } = self;
        if reference.is_stateful_set() {
            return source.stateful_set(namespace, reference).map(Ok);
        }
        let config = Arc::clone(&source.config.borrow());
        let kind = config.owner_kind(reference.group(), &reference.kind);
        if kind.is_none() && kinds == Kinds::Configured {
            return None;
        }
        let key = reference.key();
        if let Some(known) = self.known.get(&key) {
            return Some(known.clone());
        }
        let failed = |cause| failed(&reference.kind, namespace, &reference.name, cause);
        let read = async {
            match kind {
                Some(kind) => source.reader.owner_of_resource(namespace, reference, resource(kind)).await,
                None => source.reader.owner(namespace, reference).await,
            }
        };
        let owner = if self.known.len() >= MAX_READS {
            Err(failed(format!("the members in this namespace have more than {MAX_READS} owners")))
        } else {
            let read = deadline.within("reading the owners from the API server", read).await;
            read.unwrap_or_else(|late| Err(failed(late.to_string())))
        };
        self.known.insert(key, owner.clone());
        Some(owner)
    }
}

fn resource(kind: &OwnerKind) -> OwnerResource<'_> {
    OwnerResource { group: &kind.group, version: &kind.version, resource: &kind.resource }
}

fn failed(kind: &str, namespace: &str, name: &str, cause: String) -> LookupError {
    let (kind, name) = (to_bounded_line(kind, MAX_NAME_CHARS), to_bounded_line(name, MAX_NAME_CHARS));
    LookupError::Failed { subject: format!("{kind} {namespace}/{name}"), cause }
}

#[cfg(test)]
pub(crate) mod tests;
