//! The nodes that show a signal, as the watch of nodes reported them last.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
};

use etcd_guard_core::handover::Signal;

/// The signals of nodes by the name of the node. Clones share the content. Without the watch, no node shows a signal.
#[derive(Clone, Default)]
pub(super) struct DoomedNodes(Arc<RwLock<BTreeMap<String, Vec<Signal>>>>);

// === impl DoomedNodes ===

impl DoomedNodes {
    /// Returns a signal of this node.
    pub(super) fn signal(&self, node: &str) -> Option<Signal> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(node)?.first().cloned()
    }

    /// Returns the signals of this node.
    pub(super) fn signals(&self, node: &str) -> Vec<Signal> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(node).cloned().unwrap_or_default()
    }

    /// Returns the names of all nodes with a signal.
    pub(super) fn names(&self) -> Vec<String> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Replaces the signals of a node, and returns the former ones.
    pub(super) fn set(&self, node: &str, signals: Vec<Signal>) -> Vec<Signal> {
        let mut nodes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let former =
            if signals.is_empty() { nodes.remove(node) } else { nodes.insert(node.to_owned(), signals) };
        former.unwrap_or_default()
    }
}
