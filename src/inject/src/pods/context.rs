//! Inputs and errors of an injection.

use super::reason::Reason;
use crate::{
    config::{Config, pod::security_level::PodSecurityLevel},
    patch::PatchError,
};
use etcd_guard_core::config::selector::Labels;

/// The namespace's label with the enforced Pod Security level.
const ENFORCED_LEVEL: &str = "pod-security.kubernetes.io/enforce";

/// The environment of a new pod.
#[derive(Clone, Copy, Debug)]
pub struct InjectionContext<'a> {
    /// The namespace of the request. The metadata of a new pod may contain no namespace.
    pub namespace: &'a str,
    /// The namespace's labels, or the reason why they are unknown.
    pub namespace_labels: Result<&'a Labels, &'a str>,
    /// Whether the API server and all kubelets support native sidecars.
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

// === impl InjectionContext ===

impl InjectionContext<'static> {
    /// A namespace without labels, for selectors that do not depend on them.
    pub(super) fn unlabelled() -> Self {
        static NO_LABELS: Labels = Labels::new();
        Self { namespace: "", namespace_labels: Ok(&NO_LABELS), native_sidecars: false }
    }
}

impl InjectionContext<'_> {
    /// The Pod Security level that the namespace enforces. The strictest one if the labels are not known, because no
    /// injection may turn an admissible pod into a rejected one.
    pub(super) fn enforced_level(&self, config: &Config) -> PodSecurityLevel {
        match self.namespace_labels {
            Ok(labels) => labels
                .get(ENFORCED_LEVEL)
                .map_or(config.pod_security_default, |level| PodSecurityLevel::from_label(level)),
            Err(_) => PodSecurityLevel::Restricted,
        }
    }
}

// === impl InjectionError ===

impl From<PatchError> for InjectionError {
    fn from(error: PatchError) -> Self {
        Self::Failed(error)
    }
}
