//! The `podNames` section: words that the names of pods must not contain.

use schemars::JsonSchema;
use serde::Deserialize;

use etcd_guard_core::config::diagnostic::Validator;

/// Rules for the names of pods.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct PodNames {
    /// Words that the names of pods must not contain, in lower case.
    pub forbidden_words: Vec<String>,
}

// === impl PodNames ===

impl PodNames {
    pub(crate) fn validate(&self, validator: &mut Validator<'_>) {
        for (index, word) in self.forbidden_words.iter().enumerate() {
            let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
            if word.is_empty() {
                validator.at("forbiddenWords").at(index).report("is empty, which would match every name");
            } else if !word.bytes().all(is_allowed) {
                let message = format!("{word:?} matches no name: names consist of a-z, 0-9, - and .");
                validator.at("forbiddenWords").at(index).report(message);
            }
        }
    }
}
