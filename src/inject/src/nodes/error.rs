//! Errors that leave a node's status unchanged.

use crate::patch::PatchError;

/// Why a status is not changed.
pub(super) enum NodeError {
    /// The record, the label or the status is unreadable.
    Malformed(String),
    /// The patch failed.
    Failed(PatchError),
}

// === impl NodeError ===

impl From<PatchError> for NodeError {
    fn from(error: PatchError) -> Self {
        Self::Failed(error)
    }
}
