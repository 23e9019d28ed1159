//! Tolerations for nodes with little time left, by a label of the pod.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Check, syntax::check_key};

/// A pod that asks for N gets tolerations for N to `most`: it runs on nodes with at least so much time left.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Lifespan {
    /// The pod's label whose value is N.
    pub label: String,
    /// The key of the nodes' taint.
    pub taint: String,
    /// The effect of the nodes' taint.
    pub effect: Effect,
    /// The least N that may be asked for.
    pub least: u32,
    /// The most N that may be asked for, and the last one tolerated.
    pub most: u32,
}

/// What a taint does.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
pub enum Effect {
    /// Pods that do not tolerate it are not scheduled there.
    #[default]
    NoSchedule,
    /// They are scheduled there only if nowhere else.
    PreferNoSchedule,
    /// They are also evicted.
    NoExecute,
}

/// More tolerations than any pod should carry.
const MOST_TOLERATIONS: u32 = 100;

// === impl Lifespan ===

impl Default for Lifespan {
    fn default() -> Self {
        Self {
            label: String::from("acme.com/lifespan-requested"),
            taint: String::from("acme.com/lifespan-remaining"),
            effect: Effect::default(),
            least: 1,
            most: 14,
        }
    }
}

impl Lifespan {
    pub(super) fn check(&self, check: &mut Check<'_>) {
        for (key, value) in [("label", &self.label), ("taint", &self.taint)] {
            check_key(value, &mut check.at(key));
        }
        if self.most < self.least {
            check.at("most").say(format!("is less than the least, {}", self.least));
        } else if self.most - self.least >= MOST_TOLERATIONS {
            check.at("most").say(format!("allows more than {MOST_TOLERATIONS} tolerations"));
        }
    }
}

// === impl Effect ===

impl Effect {
    /// As Kubernetes writes it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}
