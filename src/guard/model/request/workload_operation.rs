//! Operations on workloads, namespaces, claims and nodes that lead to deletions of pods, and deletions of objects that
//! the pods need.
//!
//! The guard evaluates the operation itself and approves the pod deletions that follow from it.

use serde::{Deserialize, de::IgnoredAny};

use crate::guard::model::request::error::{RequestError, parse};
use crate::k8s::admission::{AdmissionRequest, DeleteOptions, ScaleTarget};

/// An operation that leads to deletions of pods, or to pods that cannot start.
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
    /// DELETE of an object that pods need to start or to find each other.
    DeleteResource(ResourceKind),
    /// DELETE of a Node, whose pods are then deleted by pod garbage collection.
    DeleteNode {
        /// Whether finalizers delay the deletion: another program then drains the node first.
        has_finalizers: bool,
    },
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

/// The kind of an object that pods need to start or to find each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResourceKind {
    /// A Service.
    Service,
    /// A Secret.
    Secret,
    /// A `ConfigMap`.
    ConfigMap,
    /// A `ServiceAccount`.
    ServiceAccount,
}

/// The part of an object whose deletion is evaluated. Other parts of a Secret are not read.
#[derive(Default, Deserialize)]
struct DeletedObject {
    #[serde(default)]
    metadata: DeletedMetadata,
}

#[derive(Default, Deserialize)]
struct DeletedMetadata {
    #[serde(default)]
    finalizers: Option<Vec<IgnoredAny>>,
}

// === impl ResourceKind ===

impl ResourceKind {
    /// The kind, as in manifests.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
            Self::ServiceAccount => "ServiceAccount",
        }
    }

    /// The kind of a resource of the core group.
    fn from_resource(resource: &str) -> Option<Self> {
        match resource {
            "services" => Some(Self::Service),
            "secrets" => Some(Self::Secret),
            "configmaps" => Some(Self::ConfigMap),
            "serviceaccounts" => Some(Self::ServiceAccount),
            _ => None,
        }
    }
}

// === impl WorkloadOperation ===

impl WorkloadOperation {
    /// The StatefulSet whose annotations contribute to the policy, if the operation is on a StatefulSet.
    pub(in crate::guard) fn stateful_set(self, name: &str) -> Option<&str> {
        match self {
            Self::DeleteStatefulSet | Self::ScaleDown { .. } => Some(name),
            Self::DeleteNamespace
            | Self::DeleteClaim
            | Self::DeleteResource(_)
            | Self::DeleteNode { .. }
            | Self::OrphanStatefulSet => None,
        }
    }

    /// Whether the operation deletes no pod, so that no policy is needed.
    pub(in crate::guard) fn is_harmless(self) -> bool {
        matches!(
            self,
            Self::OrphanStatefulSet
                | Self::ScaleDown { fewer: false, .. }
                | Self::DeleteNode { has_finalizers: true }
        )
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
            ("DELETE", ("", "nodes"), "") => {
                let node: DeletedObject = parse("oldObject", request.old_object)?.unwrap_or_default();
                let has_finalizers =
                    node.metadata.finalizers.is_some_and(|finalizers| !finalizers.is_empty());
                Some(Self::DeleteNode { has_finalizers })
            }
            ("DELETE", ("", resource), "") => ResourceKind::from_resource(resource).map(Self::DeleteResource),
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
            Self::DeleteResource(ResourceKind::Service) => "delete-service",
            Self::DeleteResource(ResourceKind::Secret) => "delete-secret",
            Self::DeleteResource(ResourceKind::ConfigMap) => "delete-configmap",
            Self::DeleteResource(ResourceKind::ServiceAccount) => "delete-serviceaccount",
            Self::DeleteNode { .. } => "delete-node",
            Self::ScaleDown { .. } => "scale-down",
        }
    }
}
