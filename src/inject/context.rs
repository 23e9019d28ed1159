//! Inputs and errors of an injection.

use super::reason::Reason;
use crate::{config::Labels, patch::PatchError};

/// The environment of a new pod.
#[derive(Clone, Copy, Debug)]
pub struct InjectionContext<'a> {
    /// The namespace of the request. The metadata of a new pod may contain no namespace.
    pub namespace: &'a str,
    /// The namespace's labels, or the reason why they are unknown.
    pub namespace_labels: Result<&'a Labels, &'a str>,
    /// Whether all kubelets support native sidecars.
    pub native_sidecars: bool,
}

/// The denial of a pod with an invalid request.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Denial {
    /// The reason, for metrics and audit annotations.
    pub reason: Reason,
    /// The problem and the allowed values.
    pub message: String,
}

/// The reason why there is no patch for a pod.
pub(super) enum InjectionError {
    Denied(Denial),
    Failed(PatchError),
}

// === impl InjectionError ===

impl From<PatchError> for InjectionError {
    fn from(error: PatchError) -> Self {
        Self::Failed(error)
    }
}
