//! Reads the sources of policies: the configuration, and the annotations of namespaces, StatefulSets, pods and claims.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use crate::{
    config::LiveConfig,
    guard::policy::effective::{PolicySource, ResolvedPolicy, resolve},
    k8s::{AnnotationCache, Claim, pod::Pod},
};

/// Resolves effective policies from the current configuration and the watched annotations.
pub(in crate::guard) struct PolicyResolver {
    annotations: AnnotationCache,
    config: LiveConfig,
}

// === impl PolicyResolver ===

impl PolicyResolver {
    pub(in crate::guard) fn new(annotations: AnnotationCache, config: LiveConfig) -> Self {
        Self { annotations, config }
    }

    /// Returns the effective policy for a namespace, or for a StatefulSet in it.
    pub(in crate::guard) fn resolve_for_owner(
        &self,
        namespace: &str,
        stateful_set: Option<&str>,
    ) -> ResolvedPolicy {
        self.resolve(namespace, stateful_set, None)
    }

    /// Returns the effective policy for a pod of the namespace.
    pub(in crate::guard) fn resolve_for_pod(&self, namespace: &str, pod: &Pod) -> ResolvedPolicy {
        let object = format!("pod {}", pod.metadata.name);
        let source = PolicySource { object, annotations: &pod.metadata.annotations };
        self.resolve(namespace, pod.stateful_set(), Some(source))
    }

    /// Returns the effective policy for a claim of the namespace.
    pub(in crate::guard) fn resolve_for_claim(&self, namespace: &str, claim: &Claim) -> ResolvedPolicy {
        let object = format!("PersistentVolumeClaim {}", claim.metadata.name);
        let source = PolicySource { object, annotations: &claim.metadata.annotations };
        self.resolve(namespace, None, Some(source))
    }

    fn resolve(
        &self,
        namespace: &str,
        stateful_set: Option<&str>,
        nearest: Option<PolicySource<'_>>,
    ) -> ResolvedPolicy {
        let of_namespace = self.annotations.namespace_annotations(namespace);
        let of_stateful_set =
            stateful_set.map(|name| (name, self.annotations.stateful_set_annotations(namespace, name)));
        let mut sources =
            vec![PolicySource { object: format!("namespace {namespace}"), annotations: &of_namespace }];
        if let Some((name, annotations)) = &of_stateful_set {
            sources.push(PolicySource { object: format!("StatefulSet {name}"), annotations });
        }
        sources.extend(nearest);
        let config = Arc::clone(&self.config.borrow());
        resolve(&config.guard.defaults, &config.guard.floor, &sources, Timestamp::now())
    }
}
