//! The parts of a `PersistentVolumeClaim` (`v1`) that determine whether the claim outlives a pod.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::pod::{Metadata, OwnerReference};

/// A claim, in part.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Claim {
    /// Name, owners, deletion timestamp.
    #[serde(default)]
    pub metadata: Metadata,
}

// === impl Claim ===

impl From<&ObjectMeta> for Claim {
    /// Converts the metadata that a watch delivers.
    fn from(metadata: &ObjectMeta) -> Self {
        let owners = metadata.owner_references.iter().flatten().map(|owner| OwnerReference {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
            controller: owner.controller,
        });
        let metadata = Metadata {
            name: metadata.name.clone().unwrap_or_default(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            owner_references: owners.collect(),
            deletion_timestamp: metadata.deletion_timestamp.as_ref().map(|time| time.0.to_string()),
            ..Metadata::default()
        };
        Self { metadata }
    }
}

impl Claim {
    /// Whether the claim's deletion was accepted. A finalizer preserves the claim only while a pod mounts it.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether the garbage collector deletes the claim together with this pod. With
    /// `persistentVolumeClaimRetentionPolicy.whenScaled: Delete`, the StatefulSet controller makes a pod the owner of
    /// its claims right before it deletes the pod to scale down. With `whenDeleted: Delete`, the StatefulSet owns the
    /// claims, and the claims outlive a deleted pod. Source: Kubernetes
    /// `pkg/controller/statefulset/stateful_set_utils.go`.
    #[must_use]
    pub fn is_owned_by_pod(&self, pod_uid: &str) -> bool {
        self.metadata.owner_references.iter().any(|owner| owner.kind == "Pod" && owner.uid == pod_uid)
    }
}
