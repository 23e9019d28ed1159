//! Label selectors, as Kubernetes writes and reads them (`meta/v1` `LabelSelector`).

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Check, Labels};

/// A label selector: all of it must hold. An empty one selects everything.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Selector {
    /// Labels that must be there, with these values.
    pub match_labels: Labels,
    /// Further conditions.
    pub match_expressions: Vec<Expression>,
}

/// A condition on one label.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Expression {
    /// The label's key. Required.
    pub key: String,
    /// What is asked of it.
    pub operator: Operator,
    /// The values of `In` and `NotIn`.
    pub values: Vec<String>,
}

/// What is asked of a label.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
pub enum Operator {
    /// The label is there, with one of the values.
    In,
    /// The label is not there, or has another value.
    NotIn,
    /// The label is there.
    #[default]
    Exists,
    /// The label is not there.
    DoesNotExist,
}

/// Pods chosen by what they say of themselves, and by their namespace's labels; at least one of it must be given, and all
/// that is given must hold.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Match {
    /// Selects by the namespace's labels. Absent: any namespace.
    #[schemars(extend("default" = null))]
    pub namespace_selector: Option<Selector>,
    /// Selects by the pod's labels. Absent: any pod.
    #[schemars(extend("default" = null))]
    pub pod_selector: Option<Selector>,
    /// Annotations that the pod has, with these values. Empty: any pod.
    pub annotations: Labels,
    /// Kinds of the pod's controller, such as `Job`. Empty: any pod, also one without a controller.
    pub owner_kinds: Vec<String>,
}

/// What a [`Match`] looks at.
#[derive(Clone, Copy, Debug)]
pub struct Matched<'a> {
    /// The pod's labels.
    pub labels: &'a Labels,
    /// The pod's annotations.
    pub annotations: &'a Labels,
    /// The kind of the pod's controller.
    pub owner_kind: Option<&'a str>,
    /// The labels of the pod's namespace, if they are known.
    pub namespace: Option<&'a Labels>,
}

// === impl Selector ===

impl Selector {
    /// Whether it selects an object with these labels.
    #[must_use]
    pub fn selects(&self, labels: &Labels) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|it| it.holds(labels))
    }

    pub(super) fn check(&self, check: &mut Check<'_>) {
        for (index, expression) in self.match_expressions.iter().enumerate() {
            let (mut check, values) = (check.at("matchExpressions"), expression.values.is_empty());
            let mut check = check.at(index);
            if expression.key.is_empty() {
                check.say("names no key");
            }
            match expression.operator {
                Operator::In | Operator::NotIn if values => check.say("In and NotIn need values"),
                Operator::Exists | Operator::DoesNotExist if !values => {
                    check.at("values").say("Exists and DoesNotExist take no values");
                }
                _ => {}
            }
        }
    }
}

// === impl Expression ===

impl Expression {
    fn holds(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            Operator::In => value.is_some_and(|it| self.values.contains(it)),
            Operator::NotIn => value.is_none_or(|it| !self.values.contains(it)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

// === impl Match ===

impl Match {
    /// Whether it holds for a pod. `None` where that hangs on the labels of a namespace that are not known.
    #[must_use]
    pub fn holds(&self, pod: Matched<'_>) -> Option<bool> {
        let is_of_kind = || pod.owner_kind.is_some_and(|kind| self.owner_kinds.iter().any(|it| it == kind));
        let holds = self.pod_selector.as_ref().is_none_or(|it| it.selects(pod.labels))
            && self.annotations.iter().all(|(key, value)| pod.annotations.get(key) == Some(value))
            && (self.owner_kinds.is_empty() || is_of_kind());
        match &self.namespace_selector {
            Some(selector) if holds => pod.namespace.map(|labels| selector.selects(labels)),
            _ => Some(holds),
        }
    }

    pub(super) fn check(&self, check: &mut Check<'_>) {
        let has_selector = self.namespace_selector.is_some() || self.pod_selector.is_some();
        if !has_selector && self.annotations.is_empty() && self.owner_kinds.is_empty() {
            check.say(
                "needs a namespaceSelector, a podSelector, annotations or ownerKinds; {} as a selector selects all",
            );
        }
        if let Some(selector) = &self.namespace_selector {
            selector.check(&mut check.at("namespaceSelector"));
        }
        if let Some(selector) = &self.pod_selector {
            selector.check(&mut check.at("podSelector"));
        }
    }
}
