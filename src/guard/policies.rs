//! Where policies come from: the server, then annotations of the namespace, the StatefulSet and the pod.

use k8s_openapi::jiff::Timestamp;

use super::{
    family::Family,
    policy::{Policy, Resolved, resolve},
};
use crate::k8s::{Annotations, pod::Pod};

/// The sources of policies.
pub(super) struct Policies {
    annotations: Annotations,
    server: Policy,
    floor: Policy,
}

// === impl Policies ===

impl Policies {
    /// Everything is denied that can be, and everything may be chosen otherwise by annotations.
    pub(super) fn new(annotations: Annotations) -> Self {
        Self { annotations, server: Policy::default(), floor: Policy::no_floor() }
    }

    /// Whether the namespace's deletion was accepted.
    pub(super) fn is_namespace_terminating(&self, name: &str) -> bool {
        self.annotations.is_namespace_terminating(name)
    }

    /// The policy in force for a namespace, or for a StatefulSet in it.
    pub(super) fn of_owner(&self, namespace: &str, stateful_set: Option<&str>) -> Resolved {
        let of_namespace = self.annotations.of_namespace(namespace);
        let of_stateful_set =
            stateful_set.map(|name| self.annotations.of_stateful_set(namespace, name)).unwrap_or_default();
        resolve(&self.server, &self.floor, &[&of_namespace, &of_stateful_set], Timestamp::now())
    }

    /// The policy in force for this pod.
    pub(super) fn of(&self, family: &Family, pod: &Pod) -> Resolved {
        let namespace = self.annotations.of_namespace(family.namespace());
        let owner = pod.controller().filter(|owner| owner.kind == "StatefulSet");
        let stateful_set = owner
            .map(|owner| self.annotations.of_stateful_set(family.namespace(), &owner.name))
            .unwrap_or_default();
        let sources = [&namespace, &stateful_set, &pod.metadata.annotations];
        resolve(&self.server, &self.floor, &sources, Timestamp::now())
    }
}
