//! Label selectors with the semantics of Kubernetes (`meta/v1` `LabelSelector`), and selectors of pods.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::diagnostic::Validator;

/// The labels or the annotations of an object.
pub type Labels = BTreeMap<String, String>;

/// A label selector, as in Kubernetes. All conditions must match. `{}` selects everything.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Selector {
    /// Labels that the object must have, with their values.
    pub match_labels: Labels,
    /// Further conditions on labels.
    pub match_expressions: Vec<Expression>,
}

/// A condition on one label.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Expression {
    /// The label's key. Required.
    pub key: String,
    /// `Exists` and `DoesNotExist` look at the key only; `In` and `NotIn` compare the value.
    pub operator: Operator,
    /// The values for `In` and `NotIn`.
    pub values: Vec<String>,
}

/// The operator of a condition on a label.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub enum Operator {
    /// The label exists and has one of the values.
    In,
    /// The label does not exist or has another value.
    NotIn,
    /// The label exists.
    #[default]
    Exists,
    /// The label does not exist.
    DoesNotExist,
}

/// A selector of pods. Set at least one condition. All that you set must match.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Match {
    /// The labels of the namespace. Not set: any namespace.
    #[schemars(extend("default" = null))]
    pub namespace_selector: Option<Selector>,
    /// The labels of the pod. Not set: any pod.
    #[schemars(extend("default" = null))]
    pub pod_selector: Option<Selector>,
    /// Annotations that the pod must have, with their values. Empty: any pod.
    pub annotations: Labels,
    /// Kinds of the pod's controller, such as `Job`. Empty: any pod, also without a controller.
    pub owner_kinds: Vec<String>,
}

/// The properties of a pod that a [`Match`] evaluates.
#[derive(Clone, Copy, Debug)]
pub struct PodAttributes<'a> {
    /// The pod's labels.
    pub labels: &'a Labels,
    /// The pod's annotations.
    pub annotations: &'a Labels,
    /// The kind of the pod's controller.
    pub owner_kind: Option<&'a str>,
    /// The labels of the namespace; `None` if they are unknown.
    pub namespace: Option<&'a Labels>,
}

// === impl Selector ===

impl Selector {
    /// Whether the selector selects an object with these labels.
    pub fn selects(&self, labels: &Labels) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|expression| expression.matches(labels))
    }

    /// Reports the errors that the types cannot detect.
    pub fn validate(&self, validator: &mut Validator<'_>) {
        for (index, expression) in self.match_expressions.iter().enumerate() {
            let (mut validator, values) = (validator.at("matchExpressions"), expression.values.is_empty());
            let mut validator = validator.at(index);
            if expression.key.is_empty() {
                validator.report("has no key");
            }
            match expression.operator {
                Operator::In | Operator::NotIn if values => validator.report("In and NotIn require values"),
                Operator::Exists | Operator::DoesNotExist if !values => {
                    validator.at("values").report("Exists and DoesNotExist take no values");
                }
                _ => {}
            }
        }
    }
}

// === impl Expression ===

impl Expression {
    fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            Operator::In => value.is_some_and(|value| self.values.contains(value)),
            Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

// === impl Match ===

impl Match {
    /// Whether all conditions match a pod. `None` if the result depends on the labels of a namespace that are unknown.
    pub fn matches(&self, pod: PodAttributes<'_>) -> Option<bool> {
        let is_of_kind =
            || pod.owner_kind.is_some_and(|kind| self.owner_kinds.iter().any(|owner| owner == kind));
        let matches = self.pod_selector.as_ref().is_none_or(|selector| selector.selects(pod.labels))
            && self.annotations.iter().all(|(key, value)| pod.annotations.get(key) == Some(value))
            && (self.owner_kinds.is_empty() || is_of_kind());
        match &self.namespace_selector {
            Some(selector) if matches => pod.namespace.map(|labels| selector.selects(labels)),
            _ => Some(matches),
        }
    }

    /// Reports the errors that the types cannot detect.
    pub fn validate(&self, validator: &mut Validator<'_>) {
        let has_selector = self.namespace_selector.is_some() || self.pod_selector.is_some();
        if !has_selector && self.annotations.is_empty() && self.owner_kinds.is_empty() {
            validator.report(
                "requires a namespaceSelector, a podSelector, annotations or ownerKinds; the selector {} selects everything",
            );
        }
        if let Some(selector) = &self.namespace_selector {
            selector.validate(&mut validator.at("namespaceSelector"));
        }
        if let Some(selector) = &self.pod_selector {
            selector.validate(&mut validator.at("podSelector"));
        }
    }
}
