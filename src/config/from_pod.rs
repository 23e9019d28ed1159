//! What the containers of a template take over from the pod that they come to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Check;

/// Variables of the pod's own containers that the template's containers get as well.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct TransferEnv {
    /// The container that they are taken from. Empty: the first of the pod's own that has the variable.
    pub container: String,
    /// The names of the variables. Required.
    pub names: Vec<String>,
    /// The template's containers of these names only. Empty: all.
    pub into: Vec<String>,
}

/// What a pod may say otherwise of the template's containers, by annotations `CONTAINER.inject.etcd-guard.io/...`.
///
/// Nothing by default: whoever makes a pod could otherwise put an image of their own beside a secret of the template's.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Overrides {
    /// `.../image`: the image.
    pub image: bool,
    /// `.../cpu-request`, `.../cpu-limit`, `.../memory-request` and `.../memory-limit`.
    pub resources: bool,
    /// `.../env.NAME`: the variables of these names.
    pub env: Vec<String>,
}

// === impl TransferEnv ===

impl TransferEnv {
    pub(super) fn check<'a>(&self, containers: impl Iterator<Item = &'a str>, check: &mut Check<'_>) {
        if self.names.is_empty() {
            check.at("names").say("is empty");
        }
        let containers: Vec<&str> = containers.collect();
        for (index, name) in self.into.iter().enumerate() {
            if !containers.contains(&name.as_str()) {
                check.at("into").at(index).say(format!("the template has no container {name:?}"));
            }
        }
    }
}
