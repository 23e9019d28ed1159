//! Reads the sources of policies: the configuration, and the annotations of namespaces, owners, pods and claims.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    LiveConfig,
    deadline::Deadline,
    policy::owner_chain::{Kinds, OwnerLink, OwnerReader},
};
use etcd_guard_core::{
    annotations::{EPHEMERAL_DATA, LEADER, MODE, SINGLE_MEMBER},
    objects::{claim::Claim, owner_reference::OwnerReference, pod::Pod},
    policy::{PolicySource, ResolvedPolicy, resolve},
    request::Request,
    wall_clock::WallClock,
};
use etcd_guard_kubernetes::{AnnotationCache, LookupError};

/// Resolves effective policies from the current configuration, the watched annotations and those of further owners.
pub(crate) struct PolicyResolver {
    annotations: AnnotationCache,
    config: LiveConfig,
    owners: OwnerReader,
    pub(crate) wall_clock: WallClock,
}

// === impl PolicyResolver ===

impl PolicyResolver {
    pub(crate) fn new(
        annotations: AnnotationCache,
        config: LiveConfig,
        owners: OwnerReader,
        wall_clock: WallClock,
    ) -> Self {
        Self { annotations, config, owners, wall_clock }
    }

    /// Returns the effective policy for a StatefulSet of the namespace.
    pub(crate) async fn resolve_for_stateful_set(
        &self,
        namespace: &str,
        name: &str,
        deadline: Deadline,
    ) -> ResolvedPolicy {
        let set = self.owners.stateful_set_reference(namespace, name);
        let chain = self.owners.reads(namespace, Kinds::Configured, deadline).chain("", Some(set)).await;
        self.resolve(namespace, &chain, None)
    }

    /// Returns the effective policy for the owner that is the object of a request. If the owner does not exist, or the
    /// configuration does not list its kind, this is the policy of the namespace.
    pub(crate) async fn resolve_for_owner(&self, request: &Request, deadline: Deadline) -> ResolvedPolicy {
        let namespace = &request.namespace;
        let Some(kind) = self.owners.kind_of(request) else { return self.resolve_for_namespace(namespace) };
        let reference = |uid: String| OwnerReference {
            api_version: format!("{}/{}", kind.group, kind.version),
            kind: kind.kind.to_string(),
            name: request.name.clone(),
            uid,
            controller: Some(true),
        };
        match self.owners.object(request, &kind, deadline).await {
            Ok(Some(metadata)) => {
                let mut reads = self.owners.reads(namespace, Kinds::Configured, deadline);
                let reference = reference(metadata.uid.clone());
                reads.insert(&reference, metadata);
                let chain = reads.chain("", Some(reference)).await;
                self.resolve(namespace, &chain, None)
            }
            Ok(None) => self.resolve_for_namespace(namespace),
            Err(error) => {
                let reference = reference(String::new());
                let link = OwnerLink { reference, dependent: String::new(), owner: Err(error) };
                self.resolve(namespace, &[link], None)
            }
        }
    }

    /// Returns the effective policy for a namespace.
    pub(crate) fn resolve_for_namespace(&self, namespace: &str) -> ResolvedPolicy {
        self.resolve(namespace, &[], None)
    }

    /// Returns the effective policy for a live pod of the namespace.
    pub(crate) async fn resolve_for_pod(
        &self,
        namespace: &str,
        pod: &Pod,
        deadline: Deadline,
    ) -> ResolvedPolicy {
        let chain = self.owners.reads(namespace, Kinds::Configured, deadline).chain_of_pod(pod).await;
        self.resolve_for_chain(namespace, pod, &chain)
    }

    /// Returns the effective policy for a live pod with these owners.
    pub(crate) fn resolve_for_chain(
        &self,
        namespace: &str,
        pod: &Pod,
        chain: &[OwnerLink],
    ) -> ResolvedPolicy {
        self.resolve(namespace, chain, Some(source_of_pod(pod)))
    }

    /// Returns the effective policy for the copy of a pod, without a read. Owners that would have to be read have the
    /// strictest policy.
    pub(crate) fn resolve_for_copy(&self, namespace: &str, pod: &Pod) -> ResolvedPolicy {
        self.resolve(namespace, &self.owners.without_reads(namespace, pod), Some(source_of_pod(pod)))
    }

    /// Returns the effective policy that results from the annotations of the pod alone, for a pod whose owners are not
    /// known.
    pub(crate) fn resolve_for_pod_alone(&self, pod: &Pod) -> ResolvedPolicy {
        self.resolve_sources(&[source_of_pod(pod)])
    }

    /// Returns the effective policy for a claim of the namespace.
    pub(crate) fn resolve_for_claim(&self, namespace: &str, claim: &Claim) -> ResolvedPolicy {
        let object = format!("PersistentVolumeClaim {}", claim.metadata.name);
        let source = PolicySource { object, annotations: &claim.metadata.annotations };
        self.resolve(namespace, &[], Some(source))
    }

    /// Merges the annotations of the namespace, of its owners (the nearest first) and of an object in it.
    fn resolve(
        &self,
        namespace: &str,
        chain: &[OwnerLink],
        nearest: Option<PolicySource<'_>>,
    ) -> ResolvedPolicy {
        let of_namespace = self.annotations.namespace_annotations(namespace);
        let strictest = strictest();
        let mut sources =
            vec![PolicySource { object: format!("namespace {namespace}"), annotations: &of_namespace }];
        sources.extend(chain.iter().rev().map(|link| match &link.owner {
            Ok(owner) => PolicySource { object: link.object(), annotations: &owner.metadata.annotations },
            Err(_) => {
                PolicySource { object: format!("{} (unreadable)", link.object()), annotations: &strictest }
            }
        }));
        sources.extend(nearest);
        let mut resolved = self.resolve_sources(&sources);
        let unreadable = chain.iter().filter_map(|link| Some((link, link.owner.as_ref().err()?)));
        let warnings: Vec<String> = unreadable.map(|(link, error)| unreadable_owner(link, error)).collect();
        resolved.has_unreadable_owner = !warnings.is_empty();
        resolved.warnings.extend(warnings);
        resolved
    }

    fn resolve_sources(&self, sources: &[PolicySource<'_>]) -> ResolvedPolicy {
        let config = Arc::clone(&self.config.borrow());
        resolve(&config.defaults, &config.floor, sources, self.wall_clock.now())
    }
}

fn source_of_pod(pod: &Pod) -> PolicySource<'_> {
    PolicySource { object: format!("pod {}", pod.metadata.name), annotations: &pod.metadata.annotations }
}

/// The annotations of an owner that cannot be read: it may be stricter than the namespace and the configuration. A
/// break-glass of another source stays in effect, because no annotation revokes it.
fn strictest() -> BTreeMap<String, String> {
    [(LEADER, "deny"), (SINGLE_MEMBER, "deny"), (EPHEMERAL_DATA, "deny"), (MODE, "enforce")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

fn unreadable_owner(link: &OwnerLink, error: &LookupError) -> String {
    let remedy = match error {
        LookupError::Forbidden { .. } => {
            "; grant the guard the permission get for this kind (deploy/owners-role.yaml)"
        }
        _ => "",
    };
    format!(
        "the annotations of {} are unknown, and count as the strictest policies: {error}{remedy}",
        link.object()
    )
}
