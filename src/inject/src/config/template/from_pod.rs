//! Settings of a template's containers that come from the pod.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use etcd_guard_core::config::diagnostic::Validator;

/// Environment variables to copy from the pod to the template's containers.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct TransferEnv {
    /// The pod's container to copy from. Empty: the first that has the variable.
    pub container: String,
    /// The names of the variables. Required.
    pub names: Vec<String>,
    /// The template's containers to copy to. Empty: all.
    pub into: Vec<String>,
}

/// What a pod may override by annotations `CONTAINER.inject.etcd-guard.io/...`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Overrides {
    /// Allow `.../image`. Whoever creates a pod can then run any image with the secrets of the template.
    pub image: bool,
    /// Allow `.../cpu-request`, `.../cpu-limit`, `.../memory-request` and `.../memory-limit`.
    pub resources: bool,
    /// Allow `.../env.NAME` for variables of these names.
    pub env: Vec<String>,
}

// === impl TransferEnv ===

impl TransferEnv {
    pub(crate) fn validate<'a>(
        &self,
        containers: impl Iterator<Item = &'a str>,
        validator: &mut Validator<'_>,
    ) {
        if self.names.is_empty() {
            validator.at("names").report("is empty");
        }
        let containers: Vec<&str> = containers.collect();
        for (index, name) in self.into.iter().enumerate() {
            if !containers.contains(&name.as_str()) {
                validator.at("into").at(index).report(format!("the template has no container {name:?}"));
            }
        }
    }
}
