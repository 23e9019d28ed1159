//! Budgets (`PodDisruptionBudget`, `policy/v1`), and when the API server refuses an eviction because of them.
//!
//! Source: `pkg/registry/core/pod/storage/eviction.go`, whose rules are the same in Kubernetes 1.35, 1.36 and 1.37.

use serde::Deserialize;

use super::pod::Pod;
use crate::config::selector::Selector;

/// A budget, in part.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct DisruptionBudget {
    #[serde(default)]
    metadata: BudgetMetadata,
    #[serde(default)]
    spec: BudgetSpec,
    #[serde(default)]
    status: BudgetStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct BudgetMetadata {
    #[serde(default)]
    name: String,
    /// Increases with each change of the specification.
    #[serde(default)]
    generation: i64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct BudgetSpec {
    /// Absent: selects no pod.
    #[serde(default)]
    selector: Option<Selector>,
    #[serde(default)]
    unhealthy_pod_eviction_policy: Option<String>,
}

/// What the disruption controller has counted.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct BudgetStatus {
    /// The generation of the specification that the numbers belong to.
    #[serde(default)]
    observed_generation: i64,
    #[serde(default)]
    disruptions_allowed: i64,
    #[serde(default)]
    current_healthy: i64,
    #[serde(default)]
    desired_healthy: i64,
}

/// Why the API server refuses the eviction of a pod.
#[derive(Debug, PartialEq, Eq)]
pub enum BudgetRefusal<'a> {
    /// The budget of this name allows no disruption now.
    Exhausted {
        /// The name of the budget.
        budget: &'a str,
        /// Ready pods.
        healthy: i64,
        /// Pods that must be ready.
        required: i64,
    },
    /// The disruption controller has not counted the pods of this budget since it was changed.
    Outdated {
        /// The name of the budget.
        budget: &'a str,
    },
    /// More than one budget selects the pod.
    Several {
        /// The names of the budgets.
        budgets: Vec<&'a str>,
    },
}

/// Returns why the API server refuses the eviction of this pod, given all budgets of its namespace. The limit of 2000
/// evictions that the controller has not seen yet is left out.
pub fn budget_refusal<'a>(budgets: &'a [DisruptionBudget], pod: &Pod) -> Option<BudgetRefusal<'a>> {
    let is_exempt = matches!(pod.status.phase.as_str(), "Pending" | "Succeeded" | "Failed");
    if is_exempt || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let selecting: Vec<&DisruptionBudget> = budgets.iter().filter(|budget| budget.selects(pod)).collect();
    match selecting.as_slice() {
        [] => None,
        [budget] => budget.refusal(pod.is_ready()),
        [..] => Some(BudgetRefusal::Several {
            budgets: selecting.iter().map(|budget| budget.metadata.name.as_str()).collect(),
        }),
    }
}

// === impl DisruptionBudget ===

impl DisruptionBudget {
    fn selects(&self, pod: &Pod) -> bool {
        self.spec.selector.as_ref().is_some_and(|selector| selector.selects(&pod.metadata.labels))
    }

    fn refusal(&self, is_ready: bool) -> Option<BudgetRefusal<'_>> {
        let Self { metadata, spec, status } = self;
        let always = spec.unhealthy_pod_eviction_policy.as_deref() == Some("AlwaysAllow");
        let is_budget_met = status.current_healthy >= status.desired_healthy && status.desired_healthy > 0;
        if !is_ready && (always || is_budget_met) {
            return None;
        }
        let budget = metadata.name.as_str();
        if status.observed_generation < metadata.generation {
            return Some(BudgetRefusal::Outdated { budget });
        }
        (status.disruptions_allowed <= 0).then_some(BudgetRefusal::Exhausted {
            budget,
            healthy: status.current_healthy,
            required: status.desired_healthy,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A budget that selects the pods of etcd.
    fn budget(name: &str, spec: Value, status: Value) -> DisruptionBudget {
        let mut budget = json!({
            "metadata": {"name": name, "generation": 2},
            "spec": {"selector": {"matchLabels": {"app": "etcd"}}},
            "status": {"observedGeneration": 2, "disruptionsAllowed": 0, "currentHealthy": 2, "desiredHealthy": 2},
        });
        for (part, changes) in [("spec", spec), ("status", status)] {
            budget[part].as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        }
        serde_json::from_value(budget).unwrap()
    }

    fn pod(phase: &str, ready: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "etcd-1", "labels": {"app": "etcd"}},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    fn exhausted(healthy: i64) -> BudgetRefusal<'static> {
        BudgetRefusal::Exhausted { budget: "etcd", healthy, required: 2 }
    }

    #[test]
    fn exhausted_budget_refuses_a_ready_pod() {
        let refusal = |spec, status, pod: &Pod| {
            let budgets = [budget("etcd", spec, status)];
            budget_refusal(&budgets, pod).map(|refusal| format!("{refusal:?}"))
        };
        let text = |refusal: Option<BudgetRefusal<'_>>| refusal.map(|refusal| format!("{refusal:?}"));
        let ready = pod("Running", "True");
        assert_eq!(refusal(json!({}), json!({}), &ready), text(Some(exhausted(2))));
        assert_eq!(refusal(json!({}), json!({"disruptionsAllowed": -1}), &ready), text(Some(exhausted(2))));
        assert_eq!(refusal(json!({}), json!({"disruptionsAllowed": 1}), &ready), None);
        assert_eq!(
            refusal(json!({"unhealthyPodEvictionPolicy": "AlwaysAllow"}), json!({}), &ready),
            text(Some(exhausted(2)))
        );

        let outdated = json!({"observedGeneration": 1, "disruptionsAllowed": 1});
        let is_outdated = text(Some(BudgetRefusal::Outdated { budget: "etcd" }));
        assert_eq!(refusal(json!({}), outdated, &ready), is_outdated);
    }

    #[test]
    fn pod_that_is_not_ready_passes_an_exhausted_budget_that_is_met() {
        let budgets = |spec, healthy| [budget("etcd", spec, json!({"currentHealthy": healthy}))];
        let always = json!({"unhealthyPodEvictionPolicy": "AlwaysAllow"});
        let unready = pod("Running", "False");
        assert_eq!(budget_refusal(&budgets(json!({}), 2), &unready), None);
        assert_eq!(budget_refusal(&budgets(always, 1), &unready), None);
        assert_eq!(budget_refusal(&budgets(json!({}), 1), &unready), Some(exhausted(1)));
        let without_desired = [budget("etcd", json!({}), json!({"currentHealthy": 0, "desiredHealthy": 0}))];
        assert!(budget_refusal(&without_desired, &unready).is_some());
    }

    #[test]
    fn no_budget_concerns_a_pod_that_has_not_started_or_has_ended() {
        let budgets = [budget("etcd", json!({}), json!({})), budget("other", json!({}), json!({}))];
        for phase in ["Pending", "Succeeded", "Failed"] {
            assert_eq!(budget_refusal(&budgets, &pod(phase, "True")), None, "{phase}");
        }
        let mut terminating = pod("Running", "True");
        terminating.metadata.deletion_timestamp = Some(String::from("2026-01-01T00:00:00Z"));
        assert_eq!(budget_refusal(&budgets, &terminating), None);
        assert!(budget_refusal(&budgets, &pod("Running", "True")).is_some());
    }

    #[test]
    fn several_budgets_refuse_every_running_pod() {
        let allowing = || json!({"disruptionsAllowed": 1});
        let budgets =
            [budget("etcd", json!({}), allowing()), budget("other", json!({"selector": {}}), allowing())];
        let several = Some(BudgetRefusal::Several { budgets: vec!["etcd", "other"] });
        assert_eq!(budget_refusal(&budgets, &pod("Running", "False")), several);
        let unselecting = [
            budget("absent", json!({"selector": null}), json!({})),
            budget("another", json!({"selector": {"matchLabels": {"app": "web"}}}), json!({})),
        ];
        assert_eq!(budget_refusal(&unselecting, &pod("Running", "True")), None);
    }
}
