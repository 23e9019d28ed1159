//! Nodes that offer more CPU or memory than they have.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de::Error};

use super::{Check, Labels, Selector, syntax::check_key};

/// Which nodes offer more than they have, and how much more.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct OverCommit {
    /// The node's label whose value, if it is a number, is the factor of its CPU and goes before the list below. The
    /// kubelet cannot set labels of this prefix (admission plugin `NodeRestriction`), which an annotation would not be safe from.
    /// The shipped webhook sees only nodes that have it: whoever names another one names it in its matchConditions too.
    pub label: String,
    /// The largest factor that counts; a larger one is cut down to it.
    pub most: Factor,
    /// Factors by the nodes' labels; the first entry that selects a node is its own.
    pub nodes: Vec<NodeFactors>,
}

/// Factors of the nodes that a selector selects.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct NodeFactors {
    /// Selects nodes by their labels, among those that the webhook sees; `{}` selects all.
    pub selector: Selector,
    /// What their CPU is multiplied by.
    pub cpu: Factor,
    /// What their memory is multiplied by. Memory that is not there cannot be taken away again: pods get killed.
    pub memory: Factor,
}

/// A factor of at least one, with at most three digits after the point: kept in thousandths, so that it is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Factor(u32);

const ONE: u32 = 1000;

// === impl OverCommit ===

impl Default for OverCommit {
    fn default() -> Self {
        Self {
            label: String::from("node-restriction.kubernetes.io/over-commit"),
            most: Factor(10 * ONE),
            nodes: Vec::new(),
        }
    }
}

impl OverCommit {
    /// The first entry that selects a node with these labels.
    #[must_use]
    pub fn entry(&self, labels: &Labels) -> Option<&NodeFactors> {
        self.nodes.iter().find(|it| it.selector.selects(labels))
    }

    pub(super) fn check(&self, check: &mut Check<'_>) {
        check_key(&self.label, &mut check.at("label"));
        for (index, entry) in self.nodes.iter().enumerate() {
            let (mut check, most) = (check.at("nodes"), self.most);
            let mut check = check.at(index);
            entry.selector.check(&mut check.at("selector"));
            for (key, factor) in [("cpu", entry.cpu), ("memory", entry.memory)] {
                if factor > most {
                    check.at(key).say(format!("{factor} is more than overCommit.most, {most}"));
                }
            }
        }
    }
}

// === impl Factor ===

impl Factor {
    /// What changes nothing.
    pub const NONE: Self = Self(ONE);

    /// Reads `2` or `1.25`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |it: &str| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(part) || part.len() > 3 {
            return None;
        }
        let thousandths = format!("{whole}{part:0<3}").parse().ok()?;
        (thousandths >= ONE).then_some(Self(thousandths))
    }

    /// `floor(self * amount)`.
    #[must_use]
    pub fn times(self, amount: i128) -> i128 {
        amount.saturating_mul(i128::from(self.0)) / i128::from(ONE)
    }
}

impl Default for Factor {
    fn default() -> Self {
        Self::NONE
    }
}

impl std::fmt::Display for Factor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{}.{:03}", self.0 / ONE, self.0 % ONE);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl<'de> Deserialize<'de> for Factor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A number as it is written: 1.1 stays 1.1, not the nearest binary fraction.
        let text = match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        };
        let text = text.strip_suffix(".0").unwrap_or(&text);
        Self::parse(text).ok_or_else(|| {
            D::Error::custom(format!(
                "{text} is no factor: a number of at least 1 with at most three digits after the point is expected"
            ))
        })
    }
}

impl JsonSchema for Factor {
    fn schema_name() -> Cow<'static, str> {
        "Factor".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A factor of at least one, with at most three digits after the point.",
            "type": ["number", "string"],
            "minimum": 1,
        })
    }
}

impl serde::Serialize for Factor {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
