//! Warnings about resource quotas and limit ranges that reject a pod because of an injected container.
//!
//! The API server applies the defaults of limit ranges before the webhooks, and again after a webhook changed the pod. It
//! evaluates quotas and limits after all webhooks. Sources: `plugin/pkg/admission/limitranger` and
//! `pkg/quota/v1/evaluator/core/pods.go` of Kubernetes 1.34.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    Injection,
    pod::{ContainerView, PodView},
    reason::{Note, Reason},
};
use etcd_guard_core::objects::{
    namespace_limits::{AmountTexts, LimitRangeItem, NamespaceLimits, QuotaSpec, ResourceQuota},
    quantity::Quantity,
};

/// The resources that a quota requires in each container; `cpu` and `memory` in a quota are requests.
const REQUIRED_BY_QUOTAS: [(&str, List, &str); 6] = [
    ("cpu", List::Requests, "cpu"),
    ("memory", List::Requests, "memory"),
    ("requests.cpu", List::Requests, "cpu"),
    ("requests.memory", List::Requests, "memory"),
    ("limits.cpu", List::Limits, "cpu"),
    ("limits.memory", List::Limits, "memory"),
];

/// The resources that a pod as a whole can have.
const POD_LEVEL: [&str; 2] = ["cpu", "memory"];

/// Amounts in billionths, by the name of the resource.
type Amounts = BTreeMap<String, i128>;

/// A list of a container's resources.
#[derive(Clone, Copy, PartialEq, Eq)]
enum List {
    Limits,
    Requests,
}

/// The resources of a container after all defaults.
struct ContainerAmounts<'a> {
    name: &'a str,
    is_init: bool,
    is_sidecar: bool,
    limits: Amounts,
    requests: Amounts,
}

// === impl Injection ===

impl Injection<'_> {
    /// Returns a warning for each quota and limit range that rejects the pod because of an added container. The injection
    /// stays: the limits may have changed since they were read, and the API server decides.
    pub fn limit_warnings(&self, limits: &NamespaceLimits) -> Vec<Note> {
        match &self.pod {
            Some(pod) if !self.added_containers.is_empty() && !limits.is_empty() => {
                let is_added = |name: &str| self.added_containers.contains(&name);
                warnings(PodView::new(pod), &is_added, limits)
            }
            _ => Vec::new(),
        }
    }
}

fn warnings(pod: PodView<'_>, is_added: &dyn Fn(&str) -> bool, limits: &NamespaceLimits) -> Vec<Note> {
    let containers: Vec<_> = ["initContainers", "containers"]
        .into_iter()
        .flat_map(|list| pod.containers(list))
        .map(|container| ContainerAmounts::new(container, limits))
        .collect();
    let added = || containers.iter().filter(|container| is_added(container.name));
    let mut warnings = Vec::new();
    for quota in &limits.quotas {
        if pod_level(pod).next().is_none() && applies(&quota.spec, pod, &containers) {
            warnings.extend(added().flat_map(|container| container.missing_amounts(quota)));
        }
    }
    for (list, resource, amount) in pod_level(pod) {
        let is_own = |container: &ContainerAmounts<'_>| !is_added(container.name);
        let exceeds = |is_counted: &dyn Fn(&ContainerAmounts<'_>) -> bool| match list {
            List::Requests => total_of_containers(&containers, list, resource, is_counted) > Some(amount),
            List::Limits => {
                let mut counted = containers.iter().filter(|container| is_counted(container));
                counted.any(|container| container.limits.get(resource).is_some_and(|limit| *limit > amount))
            }
        };
        if exceeds(&|_| true) && !exceeds(&is_own) {
            let text = format!(
                "the defaults of a LimitRange for injected containers exceed {}.{resource} of the pod's spec.resources",
                list.as_str()
            );
            warnings.push(Note::skipped(Reason::LimitRange, text));
        }
    }
    for range in &limits.ranges {
        let range_name = &range.metadata.name;
        for item in &range.spec.limits {
            match item.kind.as_str() {
                "Container" => {
                    for (container, violation) in added()
                        .flat_map(|container| container.violations(item).map(|text| (container.name, text)))
                    {
                        let text = format!(
                            "LimitRange {range_name} rejects the injected container {container}: {violation}"
                        );
                        warnings.push(Note::skipped(Reason::LimitRange, text));
                    }
                }
                "Pod" => {
                    let is_own = |container: &ContainerAmounts<'_>| !is_added(container.name);
                    for (resource, max) in &item.max {
                        if exceeds(pod, &containers, resource, max, &|_| true)
                            && !exceeds(pod, &containers, resource, max, &is_own)
                        {
                            let text = format!(
                                "LimitRange {range_name} permits {resource} {max} per pod: injected containers exceed it"
                            );
                            warnings.push(Note::skipped(Reason::LimitRange, text));
                        }
                    }
                }
                _ => {}
            }
        }
    }
    warnings
}

/// Whether a pod with the counted containers has more than `max` of a resource, as a limit or as a request.
fn exceeds(
    pod: PodView<'_>,
    containers: &[ContainerAmounts<'_>],
    resource: &str,
    max: &str,
    is_counted: &dyn Fn(&ContainerAmounts<'_>) -> bool,
) -> bool {
    let total = |list| total(pod, containers, list, resource, is_counted);
    nano(max).is_some_and(|max| {
        [List::Limits, List::Requests].into_iter().filter_map(total).any(|total| total > max)
    })
}

/// Whether a quota applies to the pod. Quotas with a selector, or with scopes that depend on more than the pod's own
/// resources and deadline, count as not applicable: they cause no warning.
fn applies(quota: &QuotaSpec, pod: PodView<'_>, containers: &[ContainerAmounts<'_>]) -> bool {
    let is_terminating = pod.spec("activeDeadlineSeconds").is_some();
    let has_resources = containers.iter().any(|container| {
        let mut names = container.limits.keys().chain(container.requests.keys());
        names.any(|name| POD_LEVEL.contains(&name.as_str()))
    });
    quota.scope_selector.is_none()
        && quota.scopes.iter().all(|scope| match scope.as_str() {
            "Terminating" => is_terminating,
            "NotTerminating" => !is_terminating,
            "BestEffort" => !has_resources,
            "NotBestEffort" => has_resources,
            _ => false,
        })
}

/// The lists and resources that the pod has as a whole.
fn pod_level(pod: PodView<'_>) -> impl Iterator<Item = (List, &'static str, i128)> {
    [List::Limits, List::Requests].into_iter().flat_map(move |list| {
        let resources = pod.spec("resources");
        POD_LEVEL.into_iter().filter_map(move |name| {
            let amount = resources?.get(list.as_str())?.get(name)?;
            Some((list, name, nano(amount.as_str()?)?))
        })
    })
}

/// The pod's amount of a resource: that of the pod as a whole, or that of its containers.
fn total(
    pod: PodView<'_>,
    containers: &[ContainerAmounts<'_>],
    list: List,
    resource: &str,
    is_counted: &dyn Fn(&ContainerAmounts<'_>) -> bool,
) -> Option<i128> {
    let of_pod = pod_level(pod).find(|(present, name, _)| *present == list && *name == resource);
    match of_pod {
        Some((.., amount)) => Some(amount),
        None => total_of_containers(containers, list, resource, is_counted),
    }
}

/// The amount of the counted containers, of which init containers run one after the other, and native sidecars beside
/// all containers that start after them. `None` if no container has one.
fn total_of_containers(
    containers: &[ContainerAmounts<'_>],
    list: List,
    resource: &str,
    is_counted: &dyn Fn(&ContainerAmounts<'_>) -> bool,
) -> Option<i128> {
    let (mut sidecars, mut starting, mut running, mut has_any) = (0_i128, 0_i128, 0_i128, false);
    for container in containers.iter().filter(|container| is_counted(container)) {
        let Some(amount) = container.amounts(list).get(resource).copied() else { continue };
        has_any = true;
        if container.is_sidecar {
            sidecars = sidecars.saturating_add(amount);
        } else if container.is_init {
            starting = starting.max(sidecars.saturating_add(amount));
        } else {
            running = running.saturating_add(amount);
        }
    }
    has_any.then(|| starting.max(sidecars.saturating_add(running)))
}

fn nano(text: &str) -> Option<i128> {
    Quantity::parse(text).map(Quantity::nano)
}

// === impl List ===

impl List {
    fn as_str(self) -> &'static str {
        match self {
            Self::Limits => "limits",
            Self::Requests => "requests",
        }
    }
}

// === impl ContainerAmounts ===

impl<'a> ContainerAmounts<'a> {
    /// The amounts of a container, with the defaults that the API server sets: a request equals the limit, and
    /// limit ranges apply in order.
    fn new(container: ContainerView<'a>, limits: &NamespaceLimits) -> Self {
        let own = |list: List| {
            let amounts = container.value.get("resources").and_then(|resources| resources.get(list.as_str()));
            let amounts = amounts.and_then(Value::as_object).into_iter().flatten();
            amounts
                .filter_map(|(name, amount)| Some((name.clone(), nano(amount.as_str()?)?)))
                .collect::<Amounts>()
        };
        let (mut limits_of_container, mut requests) = (own(List::Limits), own(List::Requests));
        for (name, limit) in &limits_of_container {
            requests.entry(name.clone()).or_insert(*limit);
        }
        let items = limits.ranges.iter().flat_map(|range| &range.spec.limits);
        for item in items.filter(|item| item.kind == "Container") {
            add_defaults(&mut limits_of_container, &item.default);
            add_defaults(&mut requests, &item.default_request);
        }
        Self {
            name: container.name(),
            is_init: container.list == "initContainers",
            is_sidecar: container.is_native_sidecar(),
            limits: limits_of_container,
            requests,
        }
    }

    fn amounts(&self, list: List) -> &Amounts {
        match list {
            List::Limits => &self.limits,
            List::Requests => &self.requests,
        }
    }

    /// Returns a warning for each amount that a quota requires and the container lacks.
    fn missing_amounts(&self, quota: &ResourceQuota) -> impl Iterator<Item = Note> {
        let required = REQUIRED_BY_QUOTAS.iter().filter(|(key, ..)| quota.spec.hard.contains_key(*key));
        required.filter(|(_, list, resource)| !self.amounts(*list).contains_key(*resource)).map(
            |(_, list, resource)| {
                let (quota, list, container) = (&quota.metadata.name, list.as_str(), self.name);
                let text = format!(
                    "ResourceQuota {quota} requires {list}.{resource}: the injected container {container} has none"
                );
                Note::skipped(Reason::ResourceQuota, text)
            },
        )
    }

    /// Returns a text for each violated minimum and maximum.
    fn violations(&self, item: &LimitRangeItem) -> impl Iterator<Item = String> {
        let bounds = item.min.iter().map(|bound| ("minimum", List::Requests, bound));
        let bounds = bounds.chain(item.max.iter().map(|bound| ("maximum", List::Limits, bound)));
        bounds.filter_map(|(kind, required, (name, text))| {
            let bound = nano(text)?;
            let is_outside =
                |amount: &i128| if kind == "minimum" { *amount < bound } else { *amount > bound };
            let amounts = [self.limits.get(name), self.requests.get(name)];
            let is_violated =
                !self.amounts(required).contains_key(name) || amounts.into_iter().flatten().any(is_outside);
            is_violated.then(|| format!("the {kind} of {name} is {text}"))
        })
    }
}

fn add_defaults(amounts: &mut Amounts, defaults: &AmountTexts) {
    for (name, text) in defaults {
        if let Some(amount) = nano(text) {
            amounts.entry(name.clone()).or_insert(amount);
        }
    }
}
