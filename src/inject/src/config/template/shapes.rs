//! Schema types of the parts of a pod that a template stores as JSON.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde_json::Value;

/// A container with the fields of Kubernetes.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "used only to generate the schema")]
pub(super) struct Container {
    name: String,
    image: String,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

/// A named part of a pod with the fields of Kubernetes.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "used only to generate the schema")]
pub(super) struct Named {
    name: String,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

/// A volume mount with the fields of Kubernetes.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "used only to generate the schema")]
pub(super) struct VolumeMount {
    name: String,
    mount_path: String,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

/// A part of a pod with the fields of Kubernetes.
pub(super) type Anything = BTreeMap<String, Value>;
