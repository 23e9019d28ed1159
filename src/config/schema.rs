//! The JSON schema of the file, for editors and for checks that do not run this program.

use std::collections::BTreeMap;

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::Value;

use super::Config;

/// The schema of a configuration file.
#[must_use]
pub fn schema() -> Value {
    let schema = SchemaSettings::draft07().into_generator().into_root_schema_for::<Config>();
    schema.to_value()
}

/// A container, as in a pod.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its shape is of interest")]
pub(super) struct Container {
    name: String,
    image: String,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

/// A part of a pod that has a name.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its shape is of interest")]
pub(super) struct Named {
    name: String,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

/// A mount, as in a container.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "only its shape is of interest")]
pub(super) struct VolumeMount {
    name: String,
    mount_path: String,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

/// A part of a pod.
pub(super) type Anything = BTreeMap<String, Value>;
