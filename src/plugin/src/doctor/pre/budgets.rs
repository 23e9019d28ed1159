//! The disruption budgets of etcd, which must let a drain go on.

use k8s_openapi::{api::policy::v1::PodDisruptionBudget, apimachinery::pkg::util::intstr::IntOrString};

use super::etcd::{EtcdSet, EtcdSets};
use crate::doctor::{
    reader::{Reader, Right},
    replicas::{parse, selects},
    report::{Finding, Line, State},
};

/// Returns the line about the budgets of all StatefulSets with etcd; `None` without any.
pub(super) async fn line(reader: &Reader, etcd: &EtcdSets) -> Option<Line> {
    etcd.iter().next()?;
    let right = Right { verb: "list", resource: "poddisruptionbudgets.policy", namespace: None };
    let budgets: Vec<PodDisruptionBudget> =
        match reader.list("/apis/policy/v1/poddisruptionbudgets", right).await {
            Ok(budgets) => parse(budgets),
            Err(unread) => return Some(Line::not_checked("etcd-budgets", &unread)),
        };
    let findings: Vec<Finding> = etcd
        .iter()
        .filter_map(|set| Some((State::Warning, format!("{}: {}", set.path(), defect(set, &budgets)?))))
        .collect();
    let message = "each etcd has one PodDisruptionBudget, which allows an eviction and lets broken pods go";
    let remedy = format!("{} get poddisruptionbudgets -A", reader.kubectl());
    Some(Line::from_findings("etcd-budgets", "", message, &findings, remedy))
}

/// Returns what is wrong with the budgets of a StatefulSet.
fn defect(set: &EtcdSet, budgets: &[PodDisruptionBudget]) -> Option<String> {
    let of_set: Vec<&PodDisruptionBudget> = budgets
        .iter()
        .filter(|budget| budget.metadata.namespace.as_ref() == Some(&set.namespace))
        .filter(|budget| {
            let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            selector.is_some_and(|selector| selects(selector, &set.labels))
        })
        .collect();
    let name = |budget: &PodDisruptionBudget| budget.metadata.name.clone().unwrap_or_default();
    let budget = match of_set.as_slice() {
        [] => return Some(String::from("no PodDisruptionBudget")),
        [budget] => budget,
        several => {
            let names: Vec<String> = several.iter().map(|budget| name(budget)).collect();
            return Some(format!("Kubernetes evicts no pod with several budgets ({})", names.join(", ")));
        }
    };
    let spec = budget.spec.clone().unwrap_or_default();
    if allowed(spec.max_unavailable.as_ref(), spec.min_available.as_ref(), set.replicas) == Some(0) {
        return Some(format!("PodDisruptionBudget {} never allows an eviction", name(budget)));
    }
    let keeps_broken = spec.unhealthy_pod_eviction_policy.as_deref() != Some("AlwaysAllow");
    keeps_broken.then(|| {
        format!(
            "PodDisruptionBudget {} can keep broken pods (no unhealthyPodEvictionPolicy: AlwaysAllow)",
            name(budget)
        )
    })
}

/// Returns how many evictions a budget allows while all pods are healthy; `None` if a number is not valid. Kubernetes rounds up
/// both percentages.
fn allowed(
    max_unavailable: Option<&IntOrString>,
    min_available: Option<&IntOrString>,
    replicas: u32,
) -> Option<u32> {
    let number = |value: &IntOrString| match value {
        IntOrString::Int(number) => u32::try_from(*number).ok(),
        IntOrString::String(text) => {
            let percent: u32 = text.strip_suffix('%')?.parse().ok()?;
            Some(replicas.checked_mul(percent)?.div_ceil(100))
        }
    };
    match (max_unavailable, min_available) {
        (Some(unavailable), _) => number(unavailable),
        (None, Some(available)) => Some(replicas.saturating_sub(number(available)?)),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_evictions_as_kubernetes_does() {
        let (int, text) = (IntOrString::Int, |text: &str| IntOrString::String(text.to_owned()));
        let max = |value: IntOrString| allowed(Some(&value), None, 3);
        let min = |value: IntOrString| allowed(None, Some(&value), 3);
        assert_eq!(
            [max(int(0)), max(int(1)), max(text("0%")), max(text("30%"))],
            [Some(0), Some(1), Some(0), Some(1)]
        );
        assert_eq!(
            [min(int(2)), min(int(3)), min(text("51%")), min(text("67%"))],
            [Some(1), Some(0), Some(1), Some(0)]
        );
        assert_eq!((min(text("two")), allowed(None, None, 3)), (None, None));
    }
}
