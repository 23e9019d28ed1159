//! Where policies come from: the server, then annotations of the namespace, the StatefulSet and the pod.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::jiff::Timestamp;

use super::{
    family::Family,
    policy::{Resolved, resolve},
    settings::{Setting, Source, settings},
};
use crate::{
    config::Live,
    k8s::{Annotations, pod::Pod},
};

/// The sources of policies.
pub(super) struct Policies {
    annotations: Annotations,
    config: Live,
}

/// The choices in force for a pod, and what was wrong with annotations.
pub(super) struct Settings {
    pub(super) settings: Vec<Setting>,
    pub(super) mistakes: Vec<String>,
}

// === impl Policies ===

impl Policies {
    /// The configuration's policies, and those that annotations choose above its floor.
    pub(super) fn new(annotations: Annotations, config: Live) -> Self {
        Self { annotations, config }
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
        self.resolve(&[&of_namespace, &of_stateful_set])
    }

    /// The policy in force for this pod.
    pub(super) fn of(&self, family: &Family, pod: &Pod) -> Resolved {
        let namespace = self.annotations.of_namespace(family.namespace());
        let owner = pod.controller().filter(|owner| owner.kind == "StatefulSet");
        let stateful_set = owner
            .map(|owner| self.annotations.of_stateful_set(family.namespace(), &owner.name))
            .unwrap_or_default();
        self.resolve(&[&namespace, &stateful_set, &pod.metadata.annotations])
    }

    /// The same, choice by choice, with who chose it.
    pub(super) fn settings(&self, family: &Family, pod: &Pod) -> Settings {
        let settings = self.choices(family.namespace(), pod.stateful_set(), Some(pod));
        Settings { settings, mistakes: self.of(family, pod).mistakes }
    }

    /// What [`Self::of_owner`] resolves, choice by choice, with who chose it.
    pub(super) fn settings_of_owner(&self, namespace: &str, stateful_set: Option<&str>) -> Vec<Setting> {
        self.choices(namespace, stateful_set, None)
    }

    fn choices(&self, namespace: &str, stateful_set: Option<&str>, pod: Option<&Pod>) -> Vec<Setting> {
        let of_namespace = self.annotations.of_namespace(namespace);
        let of_owner = stateful_set.map(|name| (name, self.annotations.of_stateful_set(namespace, name)));
        let mut sources: Vec<Source<'_>> = vec![(format!("namespace {namespace}"), &of_namespace)];
        if let Some((name, annotations)) = &of_owner {
            sources.push((format!("StatefulSet {name}"), annotations));
        }
        if let Some(pod) = pod {
            sources.push((format!("pod {}", pod.metadata.name), &pod.metadata.annotations));
        }
        let config = Arc::clone(&self.config.borrow());
        settings(&config.guard.defaults, &config.guard.floor, &sources, Timestamp::now())
    }

    fn resolve(&self, sources: &[&BTreeMap<String, String>]) -> Resolved {
        let config = Arc::clone(&self.config.borrow());
        resolve(&config.guard.defaults, &config.guard.floor, sources, Timestamp::now())
    }
}
