//! The `overCommit` section: nodes that advertise more CPU or memory than they have.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de::Error};

use etcd_guard_core::config::{
    diagnostic::Validator,
    selector::{Labels, Selector},
    syntax::check_key,
};

/// Nodes that offer more CPU or memory than they have.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct OverCommit {
    /// The label of over-committed nodes. If its value is a number, it is the factor of the CPU, instead of the one in
    /// `nodes`. If you change the label, change the matchConditions of the webhook and of `over-commit-policy` too, and
    /// keep a prefix that kubelets cannot set.
    pub label: String,
    /// The largest factor. A larger one on a label is reduced to it.
    pub most: Factor,
    /// Factors by node. The first entry that selects a node applies.
    pub nodes: Vec<NodeFactors>,
}

/// The factors of the nodes that match a selector.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct NodeFactors {
    /// The labels of the nodes, among those with the `label`.
    pub selector: Selector,
    /// The factor of the CPU: a number of at least 1 with at most three decimal places.
    pub cpu: Factor,
    /// The factor of the memory. If the node runs out of memory, containers are killed.
    pub memory: Factor,
}

/// A factor of at least one with at most three decimal places. Stored in thousandths, so that it is exact.
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
    /// Returns the first entry that selects a node with these labels.
    pub fn entry(&self, labels: &Labels) -> Option<&NodeFactors> {
        self.nodes.iter().find(|entry| entry.selector.selects(labels))
    }

    pub(crate) fn validate(&self, validator: &mut Validator<'_>) {
        check_key(&self.label, &mut validator.at("label"));
        for (index, entry) in self.nodes.iter().enumerate() {
            let (mut validator, most) = (validator.at("nodes"), self.most);
            let mut validator = validator.at(index);
            entry.selector.validate(&mut validator.at("selector"));
            for (key, factor) in [("cpu", entry.cpu), ("memory", entry.memory)] {
                if factor > most {
                    validator.at(key).report(format!("{factor} is greater than overCommit.most, {most}"));
                }
            }
        }
    }
}

// === impl Factor ===

impl Factor {
    /// The factor 1, which changes nothing.
    pub const NONE: Self = Self(ONE);

    /// Parses a text such as `2` or `1.25`.
    pub fn parse(text: &str) -> Option<Self> {
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_digits(whole) || !is_digits(part) || part.len() > 3 {
            return None;
        }
        let thousandths = format!("{whole}{part:0<3}").parse().ok()?;
        (thousandths >= ONE).then_some(Self(thousandths))
    }

    /// Returns `floor(self * amount)`.
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
        // Parses the decimal text of the number, because a binary fraction cannot represent 1.1 exactly.
        let text = match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        };
        let text = text.strip_suffix(".0").unwrap_or(&text);
        Self::parse(text).ok_or_else(|| {
            D::Error::custom(format!(
                "{text} is not a factor: expected a number of at least 1 with at most three decimal places"
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
            "description": "A factor of at least one with at most three decimal places.",
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
