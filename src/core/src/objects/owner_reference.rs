//! References of objects to their owners.
//!
//! Source: `k8s.io/apimachinery/pkg/apis/meta/v1/types.go`.

use serde::Deserialize;

use super::pod::{Metadata, Pod};

/// Maximum number of owners above each other that are read for an object: a StatefulSet or a member resource, its cluster
/// resource, and one more, or a `ReplicaSet` and its Deployment.
pub const MAX_OWNER_LEVELS: usize = 3;

/// A walk along the controllers above an object, the nearest first: at most [`MAX_OWNER_LEVELS`]. The caller reads each of
/// them.
#[derive(Debug)]
pub struct ControllerWalk {
    dependent: String,
    next: Option<OwnerReference>,
    level: usize,
}

/// An owner of an object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerReference {
    /// For instance `apps/v1`.
    #[serde(default)]
    pub api_version: String,
    /// For instance `StatefulSet`.
    #[serde(default)]
    pub kind: String,
    /// The owner's name.
    #[serde(default)]
    pub name: String,
    /// The owner's uid.
    #[serde(default)]
    pub uid: String,
    /// Whether this owner manages the object.
    #[serde(default)]
    pub controller: Option<bool>,
}

// === impl OwnerReference ===

impl OwnerReference {
    /// Identifies the owner in a record. A reference with the right uid but a wrong kind or name is dangling.
    pub fn key(&self) -> String {
        format!("{}/{}/{}", self.kind, self.name, self.uid)
    }

    /// Returns the owner that manages an object with these references.
    pub fn controller_of(references: &[Self]) -> Option<&Self> {
        references.iter().find(|owner| owner.controller == Some(true))
    }

    /// The API group; empty for the core group.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// Whether the owner is a StatefulSet of Kubernetes.
    pub fn is_stateful_set(&self) -> bool {
        self.kind == "StatefulSet" && matches!(self.group(), "apps" | "")
    }
}

// === impl ControllerWalk ===

impl ControllerWalk {
    /// Starts at the object with this uid and this controller.
    pub fn new(uid: &str, controller: Option<&OwnerReference>) -> Self {
        Self { dependent: uid.to_owned(), next: controller.cloned(), level: 0 }
    }

    /// Starts at a pod.
    pub fn of_pod(pod: &Pod) -> Self {
        Self::new(&pod.metadata.uid, pod.controller())
    }

    /// Returns the next controller, and the uid of the object that refers to it. The walk ends unless
    /// [`Self::continue_above`] is called for it.
    pub fn step(&mut self) -> Option<(String, OwnerReference)> {
        let reference = self.next.take().filter(|_| self.level < MAX_OWNER_LEVELS)?;
        self.level += 1;
        Some((std::mem::replace(&mut self.dependent, reference.uid.clone()), reference))
    }

    /// Continues with the controller of the object with this metadata, which [`Self::step`] has returned.
    pub fn continue_above(&mut self, owner: &Metadata) {
        self.next = OwnerReference::controller_of(&owner.owner_references).cloned();
    }
}
