//! The containers that an injection adds, by the list that they belong to.

use serde_json::Value;

/// The containers of a template that the pod lacks.
#[derive(Default)]
pub(super) struct MissingContainers {
    pub(super) containers: Vec<Value>,
    pub(super) native: Vec<Value>,
    pub(super) init: Vec<Value>,
    /// Whether `containers` has one that would be a native sidecar if the cluster had them.
    pub(super) has_fallback: bool,
}

// === impl MissingContainers ===

impl MissingContainers {
    /// Changes each container.
    pub(super) fn map(self, change: impl Fn(Value) -> Value) -> Self {
        let map_list = |list: Vec<Value>| list.into_iter().map(&change).collect();
        Self {
            containers: map_list(self.containers),
            native: map_list(self.native),
            init: map_list(self.init),
            has_fallback: self.has_fallback,
        }
    }
}
