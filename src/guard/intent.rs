//! What deletions of pods follow from: it is judged where it is still one sentence, and its consequences pass.

use super::request::{RequestError, parse};
use crate::k8s::admission::{AdmissionRequest, DeleteOptions, Scaled};

/// What is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Intent {
    /// DELETE of a StatefulSet, its pods included.
    DeleteStatefulSet,
    /// DELETE of a StatefulSet that leaves its pods alone.
    OrphanStatefulSet,
    /// DELETE of a namespace.
    DeleteNamespace,
    /// DELETE of a `PersistentVolumeClaim`.
    DeleteClaim,
    /// UPDATE of a StatefulSet or of its scale.
    ScaleDown {
        /// The first ordinal that there will be no pod of; counted from the StatefulSet's first, where a Scale does not
        /// tell which that is.
        first_to_go: u32,
        /// Whether the first ordinal is still to be added.
        relative: bool,
        /// Whether there will be fewer pods than before.
        fewer: bool,
    },
}

// === impl Intent ===

impl Intent {
    /// The StatefulSet whose own annotations say what to make of it, where it is one that is asked about.
    pub(super) fn stateful_set(self, name: &str) -> Option<&str> {
        match self {
            Self::DeleteStatefulSet | Self::ScaleDown { .. } => Some(name),
            Self::DeleteNamespace | Self::DeleteClaim | Self::OrphanStatefulSet => None,
        }
    }

    /// Whether no pod goes, so that no policy is asked for.
    pub(super) fn is_harmless(self) -> bool {
        matches!(self, Self::OrphanStatefulSet | Self::ScaleDown { fewer: false, .. })
    }

    /// Reads it from a request; `None` for requests of another kind.
    pub(super) fn read(request: &AdmissionRequest<'_>) -> Result<Option<Self>, RequestError> {
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
                // Of a StatefulSet one pod is the default, of a Scale none is written as nothing.
                let default = u32::from(sub_resource.is_empty());
                let old: Scaled = parse("oldObject", request.old_object)?.unwrap_or_default();
                let new: Scaled = parse("object", request.object)?.unwrap_or_default();
                let count = |scaled: &Scaled| scaled.spec.replicas.unwrap_or(default);
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

    /// For logs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::DeleteStatefulSet => "delete-statefulset",
            Self::OrphanStatefulSet => "orphan-statefulset",
            Self::DeleteNamespace => "delete-namespace",
            Self::DeleteClaim => "delete-claim",
            Self::ScaleDown { .. } => "scale-down",
        }
    }
}
