//! The replicas of the guard: their number, their releases, and their disruption budget.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::Pod, policy::v1::PodDisruptionBudget},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::core::{Selector, SelectorExt};
use serde_json::Value;

use super::{
    reader::{elements, text},
    report::{Finding, Line, State},
};
use crate::guard_client::replica::serves;
use etcd_guard_core::escape::{MAX_ERROR_CHARS, to_bounded_line};

/// The number of replicas that survives the drain of a node.
const MIN_REPLICAS: usize = 2;

/// The states of a container with an image that cannot be pulled.
const PULL_FAILURES: [&str; 3] = ["ErrImagePull", "ImagePullBackOff", "InvalidImageName"];

/// The pods of the guard, and the Deployment that they belong to.
pub(super) struct Replicas {
    pub(super) pods: Vec<Pod>,
    pub(super) deployment: Option<Deployment>,
}

// === impl Replicas ===

impl Replicas {
    /// Selects the Deployment of these pods, or the one with the shipped name.
    pub(super) fn new(pods: Vec<Value>, deployments: Vec<Value>) -> Self {
        let pods: Vec<Pod> = parse(pods);
        let deployments: Vec<Deployment> = parse(deployments);
        let owns = |deployment: &Deployment| {
            let spec = deployment.spec.as_ref();
            spec.is_some_and(|spec| pods.iter().any(|pod| selects(&spec.selector, labels(pod))))
        };
        let is_shipped = |deployment: &Deployment| deployment.metadata.name.as_deref() == Some("etcd-guard");
        let index = deployments.iter().position(owns).or_else(|| deployments.iter().position(is_shipped));
        let deployment = index.and_then(|index| deployments.into_iter().nth(index));
        Self { pods, deployment }
    }

    /// Returns the name of the service account of the pods.
    pub(super) fn account(&self) -> Option<&str> {
        let of_pods = self.pods.iter().find_map(|pod| pod.spec.as_ref()?.service_account_name.as_deref());
        let template = || self.deployment.as_ref()?.spec.as_ref()?.template.spec.as_ref();
        of_pods.or_else(|| template()?.service_account_name.as_deref())
    }

    /// Returns the pods that serve.
    pub(super) fn ready(&self) -> impl Iterator<Item = &Pod> {
        self.pods.iter().filter(|pod| serves(pod))
    }

    /// Returns the name of the Deployment.
    pub(super) fn deployment_name(&self) -> Option<&str> {
        self.deployment.as_ref()?.metadata.name.as_deref()
    }

    /// Compares the number of ready replicas with the desired one. `inspect` lists the pods, `scale` adds a replica.
    /// `has_one_node` is true if the cluster cannot distribute them.
    pub(super) fn count_line(&self, has_one_node: bool, inspect: &str, scale: &str) -> Line {
        let ready = self.ready().count();
        let nodes: BTreeSet<&str> =
            self.ready().filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref()).collect();
        let desired = self.deployment.as_ref().and_then(|deployment| deployment.spec.as_ref()?.replicas);
        let desired = desired.and_then(|number| usize::try_from(number).ok());
        let wanted = desired.unwrap_or(MIN_REPLICAS);
        match (ready, wanted) {
            (0, _) => Line::failure(
                "replicas",
                "no replica is ready: the API server rejects deletions in guarded namespaces",
                inspect,
            ),
            (ready, wanted) if ready < wanted => {
                Line::warning("replicas", format!("{ready} of {wanted} replicas are ready"), inspect)
            }
            (ready, _) if ready < MIN_REPLICAS => Line::warning(
                "replicas",
                "one replica only: deletions in guarded namespaces fail while it restarts",
                scale,
            ),
            _ if nodes.len() == 1 && !has_one_node => Line::warning(
                "replicas",
                format!(
                    "all {ready} ready replicas run on one node: deletions in guarded namespaces fail while it is down"
                ),
                inspect,
            ),
            (ready, wanted) => {
                Line::ok("replicas", format!("ready replicas: {ready} of {wanted}, nodes: {}", nodes.len()))
            }
        }
    }

    /// Checks that a `PodDisruptionBudget` selects the pods and permits the drain of a node.
    pub(super) fn budget_line(&self, budgets: Vec<Value>, inspect: &str, apply: &str) -> Line {
        let budgets: Vec<PodDisruptionBudget> = parse(budgets);
        let budget = budgets.iter().find(|budget| {
            let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            selector.is_some_and(|selector| self.pods.iter().any(|pod| selects(selector, labels(pod))))
        });
        let Some(budget) = budget else {
            let text = "no PodDisruptionBudget selects the replicas: a drain can evict all of them";
            return Line::warning("disruption-budget", text, apply);
        };
        let name = budget.metadata.name.as_deref().unwrap_or_default();
        let allowed = budget.status.as_ref().map(|status| status.disruptions_allowed);
        if allowed == Some(0) && self.ready().count() >= MIN_REPLICAS {
            let text = format!("PodDisruptionBudget {name} permits no eviction of a replica: drains wait");
            return Line::warning("disruption-budget", text, inspect);
        }
        Line::ok("disruption-budget", format!("PodDisruptionBudget {name} limits evictions of replicas"))
    }
}

/// Returns the line about pods whose image cannot be pulled; `None` if there are none. Without the pod that keeps the
/// certificates, the replicas wait for their first Secret. `set_image` is the command that sets the image.
pub(super) fn image_line(pods: &[Value], set_image: &str) -> Option<Line> {
    let waiting = pods.iter().flat_map(|pod| {
        let name = text(pod, "/metadata/name").unwrap_or_default();
        elements(pod, "/status/containerStatuses").filter_map(move |status| {
            let reason =
                text(status, "/state/waiting/reason").filter(|reason| PULL_FAILURES.contains(reason))?;
            let image = text(status, "/image").unwrap_or_default();
            let finding = format!("pod {name} cannot pull its image {image} ({reason})");
            Some((State::Failure, to_bounded_line(&finding, MAX_ERROR_CHARS)))
        })
    });
    let findings: Vec<Finding> = waiting.collect();
    let remedy = format!("push the image, or load it into the nodes, and set its name: {set_image}");
    (!findings.is_empty()).then(|| Line::from_findings("replicas", "", "", &findings, remedy))
}

/// Parses objects of a list. Objects that cannot be parsed are left out.
pub(super) fn parse<T: serde::de::DeserializeOwned>(objects: Vec<Value>) -> Vec<T> {
    objects.into_iter().filter_map(|object| serde_json::from_value(object).ok()).collect()
}

/// Whether a selector selects an object with these labels.
pub(super) fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    Selector::try_from(selector.clone()).is_ok_and(|selector| selector.matches(labels))
}

fn labels(pod: &Pod) -> &BTreeMap<String, String> {
    static NONE: BTreeMap<String, String> = BTreeMap::new();
    pod.metadata.labels.as_ref().unwrap_or(&NONE)
}

/// Compares the releases of the replicas with each other and with this program. `unread` are the causes why the release of a
/// replica is unknown. `inspect` shows the images, `rollout` the progress of an update.
pub(super) fn releases(
    found: &BTreeMap<String, String>,
    unread: &[String],
    own: &str,
    inspect: &str,
    rollout: &str,
) -> Line {
    let distinct: BTreeSet<&String> = found.values().collect();
    let mut findings: Vec<Finding> =
        unread.iter().map(|cause| (State::Warning, format!("unknown: {cause}"))).collect();
    let mut remedy = inspect;
    if distinct.len() > 1 {
        let texts: Vec<String> =
            found.iter().map(|(subject, release)| format!("{subject}: {release}")).collect();
        findings
            .push((State::Warning, format!("the replicas run different releases ({})", texts.join(", "))));
        remedy = rollout;
    } else if let Some(release) = distinct.first().filter(|release| **release != own) {
        findings.push((State::Warning, format!("the replicas run {release}, and this program is {own}")));
    }
    let message = format!("{own}, as this program (replicas: {})", found.len());
    Line::from_findings("versions", "", &message, &findings, remedy)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, ready: &str) -> Value {
        json!({
            "metadata": {"name": name, "labels": {"app": "guard"}},
            "spec": {"nodeName": name, "serviceAccountName": "guard", "containers": []},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        })
    }

    fn deployment(name: &str, label: &str, replicas: u32) -> Value {
        json!({"metadata": {"name": name}, "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": label}},
            "template": {"spec": {"serviceAccountName": "guard", "containers": []}},
        }})
    }

    fn budget(label: &str, allowed: u32) -> Value {
        json!({"metadata": {"name": "guard"}, "spec": {"selector": {"matchLabels": {"app": label}}},
               "status": {"disruptionsAllowed": allowed, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}})
    }

    #[test]
    fn counts_ready_replicas_of_their_deployment() {
        let state = |pods: &[Value], desired: u32| {
            let deployments =
                vec![deployment("certificates", "other", 9), deployment("web", "guard", desired)];
            Replicas::new(pods.to_vec(), deployments).count_line(false, "get", "scale").state
        };
        let (a, b, late) = (pod("a", "True"), pod("b", "True"), pod("c", "False"));
        assert_eq!(state(&[a.clone(), b.clone()], 2), State::Ok);
        assert_eq!(state(&[a.clone(), late.clone()], 2), State::Warning);
        assert_eq!(state(std::slice::from_ref(&a), 1), State::Warning);
        assert_eq!(state(&[late], 2), State::Failure);
        assert_eq!(state(&[], 2), State::Failure);
        let without_deployment = Replicas::new(vec![a, b], Vec::new());
        assert_eq!(without_deployment.count_line(false, "get", "scale").state, State::Ok);
        assert_eq!(without_deployment.account(), Some("guard"));
    }

    #[test]
    fn names_images_that_cannot_be_pulled() {
        let waiting = |reason: &str| {
            json!({
                "metadata": {"name": "etcd-guard-7"},
                "status": {"containerStatuses": [
                    {"image": "etcd-guard:0.1.0", "state": {"waiting": {"reason": reason}}},
                ]},
            })
        };
        for reason in ["ErrImagePull", "ImagePullBackOff", "InvalidImageName"] {
            let line = image_line(&[pod("a", "True"), waiting(reason)], "kubectl set image").unwrap();
            assert_eq!(line.state, State::Failure);
            assert!(
                line.message.contains("etcd-guard-7 cannot pull its image etcd-guard:0.1.0"),
                "{}",
                line.message
            );
            assert!(line.remedy.unwrap().ends_with("set its name: kubectl set image"));
        }
        assert!(image_line(&[waiting("ContainerCreating"), pod("a", "True")], "").is_none());
    }

    #[test]
    fn budget_must_select_replicas_and_permit_an_eviction() {
        let replicas = Replicas::new(vec![pod("a", "True"), pod("b", "True")], Vec::new());
        let state = |budgets: Vec<Value>| replicas.budget_line(budgets, "get", "apply").state;
        assert_eq!(state(vec![budget("other", 1), budget("guard", 1)]), State::Ok);
        assert_eq!(state(vec![budget("guard", 0)]), State::Warning);
        assert_eq!(state(vec![budget("other", 1)]), State::Warning);
        assert_eq!(state(Vec::new()), State::Warning);
    }

    #[test]
    fn reports_releases_that_differ() {
        let line = |found: &[(&str, &str)]| {
            let found = found.iter().map(|(name, release)| ((*name).to_owned(), (*release).to_owned()));
            releases(&found.collect(), &[], "0.1.0", "get", "rollout")
        };
        assert_eq!(line(&[("a", "0.1.0"), ("b", "0.1.0")]).state, State::Ok);
        assert_eq!(line(&[("a", "0.2.0"), ("b", "0.2.0")]).remedy.as_deref(), Some("get"));
        let found = BTreeMap::from([(String::from("a"), String::from("0.1.0"))]);
        let unread = releases(&found, &[String::from("replica b: refused")], "0.1.0", "get", "rollout");
        assert_eq!((unread.state, unread.message.as_str()), (State::Warning, "unknown: replica b: refused"));
        let skewed = line(&[("a", "0.1.0"), ("b", "0.2.0")]);
        assert_eq!((skewed.state, skewed.remedy.as_deref()), (State::Warning, Some("rollout")));
    }
}
