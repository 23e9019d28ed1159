//! The parts of a `PersistentVolumeClaim` (`v1`) that say whether it outlives a pod.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::pod::{Metadata, OwnerReference};

/// A claim, in part.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Claim {
    /// Name, owners, whether it is being deleted.
    #[serde(default)]
    pub metadata: Metadata,
}

// === impl Claim ===

impl Claim {
    /// From the metadata that a watch brings.
    pub(super) fn of(metadata: &ObjectMeta) -> Self {
        let owners = metadata.owner_references.iter().flatten().map(|owner| OwnerReference {
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

    /// Whether its deletion was accepted: a finalizer keeps it only as long as a pod mounts it.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether the garbage collector deletes it together with this pod. A StatefulSet with
    /// `persistentVolumeClaimRetentionPolicy.whenScaled: Delete` makes a pod own its claims right before it deletes the
    /// pod to scale down; with `whenDeleted: Delete` the StatefulSet owns them, and a deleted pod keeps them.
    /// Source: Kubernetes `pkg/controller/statefulset/stateful_set_utils.go`.
    #[must_use]
    pub fn goes_with(&self, pod_uid: &str) -> bool {
        self.metadata.owner_references.iter().any(|owner| owner.kind == "Pod" && owner.uid == pod_uid)
    }
}
