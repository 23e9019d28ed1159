//! Operations on workloads, namespaces and claims that lead to deletions of pods.
//!
//! The guard evaluates the operation itself and approves the pod deletions that follow from it.

use crate::guard::model::request::error::{RequestError, parse};
use crate::k8s::admission::{AdmissionRequest, DeleteOptions, ScaleTarget};

/// An operation that leads to deletions of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkloadOperation {
    /// DELETE of a StatefulSet and its pods.
    DeleteStatefulSet,
    /// DELETE of a StatefulSet without its pods.
    OrphanStatefulSet,
    /// DELETE of a namespace.
    DeleteNamespace,
    /// DELETE of a `PersistentVolumeClaim`.
    DeleteClaim,
    /// UPDATE of a StatefulSet or of its scale.
    ScaleDown {
        /// The lowest ordinal that will have no pod. Relative to the StatefulSet's first ordinal if the request is for a
        /// Scale, which does not contain that.
        first_to_go: u32,
        /// Whether the StatefulSet's first ordinal must be added.
        relative: bool,
        /// Whether the number of replicas decreases.
        fewer: bool,
    },
}

// === impl WorkloadOperation ===

impl WorkloadOperation {
    /// The StatefulSet whose annotations contribute to the policy, if the operation is on a StatefulSet.
    pub(in crate::guard) fn stateful_set(self, name: &str) -> Option<&str> {
        match self {
            Self::DeleteStatefulSet | Self::ScaleDown { .. } => Some(name),
            Self::DeleteNamespace | Self::DeleteClaim | Self::OrphanStatefulSet => None,
        }
    }

    /// Whether the operation deletes no pod, so that no policy is needed.
    pub(in crate::guard) fn is_harmless(self) -> bool {
        matches!(self, Self::OrphanStatefulSet | Self::ScaleDown { fewer: false, .. })
    }

    /// Reads the operation from a request. Returns `None` for requests of another kind.
    pub(in crate::guard) fn from_admission(
        request: &AdmissionRequest<'_>,
    ) -> Result<Option<Self>, RequestError> {
        let resource = (request.resource.group.as_ref(), request.resource.resource.as_ref());
        let sub_resource = request.sub_resource.as_deref().unwrap_or_default();
        Ok(match (request.operation.as_ref(), resource, sub_resource) {
            ("DELETE", ("apps", "statefulsets"), "") => {
                let options: DeleteOptions = parse("options", request.options)?.unwrap_or_default();
                let orphans = options.propagation_policy.as_deref() == Some("Orphan")
                    || options.orphan_dependents == Some(true);
                Some(if orphans { Self::OrphanStatefulSet } else { Self::DeleteStatefulSet })
            }
            ("DELETE", ("", "namespaces"), "") => Some(Self::DeleteNamespace),
            ("DELETE", ("", "persistentvolumeclaims"), "") => Some(Self::DeleteClaim),
            ("UPDATE", ("apps", "statefulsets"), "" | "scale") => {
                // Without `replicas`, a StatefulSet has one pod and a Scale has 0.
                let default = u32::from(sub_resource.is_empty());
                let old: ScaleTarget = parse("oldObject", request.old_object)?.unwrap_or_default();
                let new: ScaleTarget = parse("object", request.object)?.unwrap_or_default();
                let count = |scaled: &ScaleTarget| scaled.spec.replicas.unwrap_or(default);
                let start = new.spec.ordinals.as_ref().map_or(0, |ordinals| ordinals.start);
                let first_to_go = start.saturating_add(count(&new));
                Some(Self::ScaleDown {
                    first_to_go,
                    relative: !sub_resource.is_empty(),
                    fewer: count(&new) < count(&old),
                })
            }
            _ => None,
        })
    }

    /// Value of the log field.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DeleteStatefulSet => "delete-statefulset",
            Self::OrphanStatefulSet => "orphan-statefulset",
            Self::DeleteNamespace => "delete-namespace",
            Self::DeleteClaim => "delete-claim",
            Self::ScaleDown { .. } => "scale-down",
        }
    }
}
