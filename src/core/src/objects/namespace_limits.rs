//! Limits of a namespace for the resources of its pods: resource quotas and limit ranges.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{nullable::null_as_default, pod::Metadata};

/// Amounts by the name of the resource, as Kubernetes writes them.
pub type AmountTexts = BTreeMap<String, String>;

/// The limits of a namespace.
#[derive(Clone, Debug, Default)]
pub struct NamespaceLimits {
    /// All resource quotas.
    pub quotas: Vec<ResourceQuota>,
    /// All limit ranges.
    pub ranges: Vec<LimitRange>,
}

/// A `ResourceQuota`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceQuota {
    /// The metadata.
    pub metadata: Metadata,
    /// The limits and the pods to which they apply.
    #[serde(deserialize_with = "null_as_default")]
    pub spec: QuotaSpec,
}

/// The limits of a quota and the pods to which they apply.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QuotaSpec {
    /// The maximum of each resource, such as `limits.memory`.
    #[serde(deserialize_with = "null_as_default")]
    pub hard: AmountTexts,
    /// Scopes that a pod must have, such as `NotTerminating`.
    #[serde(deserialize_with = "null_as_default")]
    pub scopes: Vec<String>,
    /// A further selection of pods.
    pub scope_selector: Option<serde::de::IgnoredAny>,
}

/// A `LimitRange`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LimitRange {
    /// The metadata.
    pub metadata: Metadata,
    /// The limits.
    #[serde(deserialize_with = "null_as_default")]
    pub spec: LimitRangeSpec,
}

/// The limits of a `LimitRange`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LimitRangeSpec {
    /// The limits, each for one kind of object.
    #[serde(deserialize_with = "null_as_default")]
    pub limits: Vec<LimitRangeItem>,
}

/// The limits for one kind of object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LimitRangeItem {
    /// `Container`, `Pod` or `PersistentVolumeClaim`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Minimum amounts.
    #[serde(deserialize_with = "null_as_default")]
    pub min: AmountTexts,
    /// Maximum amounts.
    #[serde(deserialize_with = "null_as_default")]
    pub max: AmountTexts,
    /// Limits of containers without own ones.
    #[serde(deserialize_with = "null_as_default")]
    pub default: AmountTexts,
    /// Requests of containers without own ones.
    #[serde(deserialize_with = "null_as_default")]
    pub default_request: AmountTexts,
}

// === impl NamespaceLimits ===

impl NamespaceLimits {
    /// Whether the namespace has neither quotas nor limit ranges.
    pub fn is_empty(&self) -> bool {
        self.quotas.is_empty() && self.ranges.is_empty()
    }
}
