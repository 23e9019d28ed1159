//! Words that no pod's name may contain.

use schemars::JsonSchema;
use serde::Deserialize;

use super::Check;

/// Which names are denied.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct PodNames {
    /// Words that no pod's name may contain, in lower case as names are.
    pub forbidden_words: Vec<String>,
}

// === impl PodNames ===

impl PodNames {
    pub(super) fn check(&self, check: &mut Check<'_>) {
        for (index, word) in self.forbidden_words.iter().enumerate() {
            let can_be = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
            if word.is_empty() {
                check.at("forbiddenWords").at(index).say("is empty: every name contains it");
            } else if !word.bytes().all(can_be) {
                let text = format!("no name contains {word:?}: names are of a-z, 0-9, - and .");
                check.at("forbiddenWords").at(index).say(text);
            }
        }
    }
}
