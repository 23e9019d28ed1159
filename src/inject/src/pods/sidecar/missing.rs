//! The containers that an injection adds, by the list that they belong to.

use serde_json::Value;

use crate::pods::pod::ContainerView;

/// The containers of a template, in the order in which the pod starts them.
#[derive(Default)]
pub(super) struct MissingContainers {
    /// The containers that the pod lacks.
    pub(super) containers: Vec<Value>,
    /// The init containers: those that the pod lacks, and those that it has.
    pub(super) init: Vec<InitContainer>,
    /// Whether `containers` has one that would be a native sidecar if the cluster had them.
    pub(super) has_fallback: bool,
}

/// An init container of a template, or one of its native sidecars.
pub(super) enum InitContainer {
    /// The pod lacks it.
    Missing(Value),
    /// The pod has it, from an earlier pass.
    Present(String),
}

// === impl MissingContainers ===

impl MissingContainers {
    /// Changes each container.
    pub(super) fn map(self, change: impl Fn(Value) -> Value) -> Self {
        let init = self.init.into_iter().map(|container| match container {
            InitContainer::Missing(container) => InitContainer::Missing(change(container)),
            present @ InitContainer::Present(_) => present,
        });
        Self {
            init: init.collect(),
            containers: self.containers.into_iter().map(&change).collect(),
            has_fallback: self.has_fallback,
        }
    }

    /// The init containers that the pod lacks, without native sidecars or only these.
    pub(super) fn missing_init(&self, native: bool) -> impl Iterator<Item = &Value> {
        let missing = self.init.iter().filter_map(|container| match container {
            InitContainer::Missing(container) => Some(container),
            InitContainer::Present(_) => None,
        });
        missing.filter(move |container| is_native(container) == native)
    }

    /// The number of init containers that start before those of the pod: up to the last native sidecar, because an earlier
    /// container of the template may prepare what the sidecar waits for.
    pub(super) fn leading_init(&self) -> usize {
        let is_native = |container: &InitContainer| match container {
            InitContainer::Missing(container) => is_native(container),
            InitContainer::Present(_) => false,
        };
        self.init.iter().rposition(is_native).map_or(0, |last| last + 1)
    }
}

/// Whether a container in the list of init containers is a native sidecar.
fn is_native(container: &Value) -> bool {
    ContainerView { list: "initContainers", index: 0, value: container }.is_native_sidecar()
}
