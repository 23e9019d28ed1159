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
}
