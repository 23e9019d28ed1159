//! The parts of a `PersistentVolumeClaim` (`v1`) that determine whether the claim outlives a pod.

use serde::Deserialize;

use super::{heap_size::heap_size_of_fields, pod::Metadata};

/// A claim, in part.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Claim {
    /// Name, owners, deletion timestamp.
    #[serde(default)]
    pub metadata: Metadata,
}

heap_size_of_fields! {
    Claim { metadata }
}

// === impl Claim ===

impl Claim {
    /// Whether the claim's deletion was accepted. A finalizer preserves the claim only while a pod mounts it.
    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether the garbage collector deletes the claim together with this pod. With
    /// `persistentVolumeClaimRetentionPolicy.whenScaled: Delete`, the StatefulSet controller makes a pod the owner of
    /// its claims right before it deletes the pod to scale down. With `whenDeleted: Delete`, the StatefulSet owns the
    /// claims, and the claims outlive a deleted pod. Source: Kubernetes
    /// `pkg/controller/statefulset/stateful_set_utils.go`.
    pub fn is_owned_by_pod(&self, pod_uid: &str) -> bool {
        self.metadata.owner_references.iter().any(|owner| owner.kind == "Pod" && owner.uid == pod_uid)
    }
}
