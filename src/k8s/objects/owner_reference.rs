//! References of objects to their owners.
//!
//! Source: `k8s.io/apimachinery/pkg/apis/meta/v1/types.go`.

use serde::Deserialize;

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
    #[must_use]
    pub fn key(&self) -> String {
        format!("{}/{}/{}", self.kind, self.name, self.uid)
    }

    /// Returns the owner that manages an object with these references.
    #[must_use]
    pub fn controller_of(references: &[Self]) -> Option<&Self> {
        references.iter().find(|owner| owner.controller == Some(true))
    }

    /// The API group; empty for the core group.
    #[must_use]
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// Whether the owner is a StatefulSet of Kubernetes.
    #[must_use]
    pub fn is_stateful_set(&self) -> bool {
        self.kind == "StatefulSet" && matches!(self.group(), "apps" | "")
    }
}
