//! The `lifespan` section: tolerations for nodes with a limited remaining lifespan, chosen by a label of the pod.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use etcd_guard_core::config::{diagnostic::Validator, syntax::check_key};

/// Tolerations for nodes with a limited lifespan. A pod that requests N tolerates the taint with the values N to `most`, so
/// it runs only where at least N is left.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Lifespan {
    /// The label of the pod. Its value is the requested lifespan.
    pub label: String,
    /// The key of the node's taint. Its value is the remaining lifespan.
    pub taint: String,
    /// The effect of the node's taint.
    pub effect: Effect,
    /// The shortest lifespan that a pod may request.
    pub least: u32,
    /// The longest lifespan that a pod may request, and the highest value that it tolerates.
    pub most: u32,
}

/// The effect of a taint.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub enum Effect {
    /// Pods without a toleration are not scheduled on the node.
    #[default]
    NoSchedule,
    /// Pods without a toleration are scheduled on the node only if no other node fits.
    PreferNoSchedule,
    /// Pods without a toleration are not scheduled on the node, and running ones are evicted.
    NoExecute,
}

/// Maximum number of tolerations that a pod can get.
const MAX_TOLERATIONS: u32 = 100;

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
    pub(crate) fn validate(&self, validator: &mut Validator<'_>) {
        for (key, value) in [("label", &self.label), ("taint", &self.taint)] {
            check_key(value, &mut validator.at(key));
        }
        if self.most < self.least {
            validator.at("most").report(format!("is less than lifespan.least, {}", self.least));
        } else if self.most - self.least >= MAX_TOLERATIONS {
            validator.at("most").report(format!("results in more than {MAX_TOLERATIONS} tolerations"));
        }
    }
}

// === impl Effect ===

impl Effect {
    /// The name of the effect in Kubernetes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}
