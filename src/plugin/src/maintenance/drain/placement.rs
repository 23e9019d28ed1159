//! Estimates from hard constraints whether the successor of a pod can be scheduled to another node. Resources, spread
//! constraints and the affinity of other pods are left to the scheduler.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, Pod, PodAffinityTerm, Taint, Toleration,
};
use kube::core::{Selector, SelectorExt};

/// A volume of a pod.
#[derive(Clone, Debug)]
pub(crate) struct BoundVolume {
    /// The claim.
    pub(crate) claim: String,
    /// The nodes that can mount the volume; `None` for every node.
    pub(crate) nodes: Option<NodeSelector>,
}

/// Returns the constraint by which no other node can run the successor of `pod`, or `None` if a node can.
pub(crate) fn obstacle(
    pod: &Pod,
    drained: &str,
    nodes: &[Node],
    volumes: &[BoundVolume],
    others: &[Pod],
) -> Option<String> {
    let mut candidates: Vec<&Node> =
        nodes.iter().filter(|node| name(node) != drained && is_available(node)).collect();
    if candidates.is_empty() {
        return Some(String::from("no other node is ready and schedulable"));
    }
    let spec = pod.spec.clone().unwrap_or_default();
    for volume in volumes {
        let Some(selector) = &volume.nodes else { continue };
        candidates.retain(|node| matches(selector, node));
        if candidates.is_empty() {
            return Some(format!("the volume of claim {} is bound to node {drained}", volume.claim));
        }
    }
    let tolerations = spec.tolerations.unwrap_or_default();
    let labels = spec.node_selector.unwrap_or_default();
    let affinity = spec.affinity.unwrap_or_default();
    let required = affinity
        .node_affinity
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution);
    candidates.retain(|node| {
        let node_labels = node_labels(node);
        labels.iter().all(|(name, value)| node_labels.get(name) == Some(value))
            && required.as_ref().is_none_or(|selector| matches(selector, node))
            && taints(node).all(|taint| tolerations.iter().any(|toleration| tolerates(toleration, taint)))
    });
    if candidates.is_empty() {
        return Some(String::from(
            "no other node matches the node selector, affinity and tolerations of the pod",
        ));
    }
    let terms = affinity
        .pod_anti_affinity
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution)
        .unwrap_or_default();
    let mut excluding = Vec::new();
    candidates.retain(|node| match excluding_pod(pod, node, &terms, nodes, others) {
        Some(other) => {
            excluding.push(other);
            false
        }
        None => true,
    });
    candidates.is_empty().then(|| {
        excluding.sort_unstable();
        excluding.dedup();
        format!("the anti-affinity of the pod excludes the nodes of {}", excluding.join(", "))
    })
}

/// Returns a pod because of which an anti-affinity term excludes the node.
fn excluding_pod<'a>(
    pod: &Pod,
    node: &Node,
    terms: &[PodAffinityTerm],
    nodes: &[Node],
    others: &'a [Pod],
) -> Option<&'a str> {
    let own_namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    terms.iter().find_map(|term| {
        let topology = node_labels(node).get(&term.topology_key)?;
        let selector = Selector::try_from(term.label_selector.clone()?).ok()?;
        let mut others = others.iter().filter(|other| {
            let namespace = other.metadata.namespace.as_deref().unwrap_or_default();
            let is_in_namespace = match &term.namespaces {
                Some(namespaces) if !namespaces.is_empty() => {
                    namespaces.iter().any(|entry| entry == namespace)
                }
                _ => namespace == own_namespace,
            };
            let labels = other.metadata.labels.clone().unwrap_or_default();
            other.metadata.name != pod.metadata.name && is_in_namespace && selector.matches(&labels)
        });
        let is_in_topology = |other: &&Pod| {
            let node = other.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            let node = node.and_then(|name| nodes.iter().find(|node| self::name(node) == name));
            node.is_some_and(|node| node_labels(node).get(&term.topology_key) == Some(topology))
        };
        others.find(is_in_topology).and_then(|other| other.metadata.name.as_deref())
    })
}

fn name(node: &Node) -> &str {
    node.metadata.name.as_deref().unwrap_or_default()
}

fn node_labels(node: &Node) -> &BTreeMap<String, String> {
    static NONE: BTreeMap<String, String> = BTreeMap::new();
    node.metadata.labels.as_ref().unwrap_or(&NONE)
}

/// Whether a node is ready and not cordoned.
fn is_available(node: &Node) -> bool {
    let is_cordoned = node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    !is_cordoned && conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The taints that prevent scheduling.
fn taints(node: &Node) -> impl Iterator<Item = &Taint> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.filter(|taint| taint.effect != "PreferNoSchedule")
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let has = |wanted: &Option<String>, value: &str| {
        wanted.as_deref().filter(|wanted| !wanted.is_empty()).is_none_or(|wanted| wanted == value)
    };
    let is_existence = toleration.operator.as_deref() == Some("Exists");
    has(&toleration.effect, &taint.effect)
        && has(&toleration.key, &taint.key)
        && (is_existence
            || toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default())
}

/// Whether a node matches one of the terms.
fn matches(selector: &NodeSelector, node: &Node) -> bool {
    selector.node_selector_terms.iter().any(|term| {
        let expressions = term.match_expressions.as_deref().unwrap_or_default();
        let fields = term.match_fields.as_deref().unwrap_or_default();
        let is_field = |field: &NodeSelectorRequirement| {
            let value = (field.key == "metadata.name").then(|| name(node));
            satisfies(field, value)
        };
        // A term without requirements matches no node.
        (!expressions.is_empty() || !fields.is_empty())
            && expressions
                .iter()
                .all(|entry| satisfies(entry, node_labels(node).get(&entry.key).map(String::as_str)))
            && fields.iter().all(is_field)
    })
}

fn satisfies(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_listed = || value.is_some_and(|value| values.iter().any(|entry| entry == value));
    let compare = |is_satisfied: fn(i64, i64) -> bool| {
        let bound = values.first().and_then(|bound| bound.parse().ok());
        let value = value.and_then(|value| value.parse().ok());
        bound.zip(value).is_some_and(|(bound, value)| is_satisfied(value, bound))
    };
    match requirement.operator.as_str() {
        "In" => is_listed(),
        "NotIn" => !is_listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(|value, bound| value > bound),
        "Lt" => compare(|value, bound| value < bound),
        // An operator of a later release: the scheduler decides.
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(name: &str, change: impl Fn(&mut Value)) -> Node {
        let mut node = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        change(&mut node);
        serde_json::from_value(node).unwrap()
    }

    fn nodes() -> Vec<Node> {
        ["n0", "n1", "n2"].map(|name| node(name, |_| {})).into()
    }

    fn pod(name: &str, node: &str, spec: &Value) -> Pod {
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "prod", "labels": {"app": "etcd"}},
            "spec": {"containers": [], "nodeName": node},
        });
        for (field, value) in spec.as_object().unwrap() {
            pod["spec"][field] = value.clone();
        }
        serde_json::from_value(pod).unwrap()
    }

    fn volume(operator: &str, values: &[&str]) -> BoundVolume {
        let requirement = json!({"key": "kubernetes.io/hostname", "operator": operator, "values": values});
        let selector = json!({"nodeSelectorTerms": [{"matchExpressions": [requirement]}]});
        BoundVolume { claim: String::from("data-etcd-0"), nodes: serde_json::from_value(selector).unwrap() }
    }

    #[test]
    fn pod_without_constraints_can_move() {
        assert_eq!(obstacle(&pod("etcd-0", "n0", &json!({})), "n0", &nodes(), &[], &[]), None);
    }

    #[test]
    fn cordoned_and_unready_nodes_are_excluded() {
        let nodes = [
            node("n0", |_| {}),
            node("n1", |node| node["spec"]["unschedulable"] = json!(true)),
            node("n2", |node| node["status"]["conditions"][0]["status"] = json!("Unknown")),
        ];
        let found = obstacle(&pod("etcd-0", "n0", &json!({})), "n0", &nodes, &[], &[]);
        assert_eq!(found.as_deref(), Some("no other node is ready and schedulable"));
    }

    #[test]
    fn volume_of_the_node_prevents_a_move() {
        let pod = pod("etcd-0", "n0", &json!({}));
        let found = obstacle(&pod, "n0", &nodes(), &[volume("In", &["n0"])], &[]);
        assert_eq!(found.as_deref(), Some("the volume of claim data-etcd-0 is bound to node n0"));
        assert_eq!(obstacle(&pod, "n0", &nodes(), &[volume("In", &["n0", "n2"])], &[]), None);
        assert_eq!(obstacle(&pod, "n0", &nodes(), &[volume("NotIn", &["n1"])], &[]), None);
    }

    #[test]
    fn taints_and_selectors_are_evaluated() {
        let tainted = |node: &mut Value| {
            node["spec"]["taints"] = json!([{"key": "gpu", "value": "a", "effect": "NoSchedule"}]);
        };
        let nodes = [node("n0", |_| {}), node("n1", tainted)];
        let found = |spec: &Value| obstacle(&pod("etcd-0", "n0", spec), "n0", &nodes, &[], &[]);
        assert!(found(&json!({})).unwrap().contains("tolerations"));
        assert!(found(&json!({"tolerations": [{"key": "gpu", "value": "b"}]})).is_some());
        assert_eq!(found(&json!({"tolerations": [{"key": "gpu", "value": "a"}]})), None);
        let tolerated = json!({"tolerations": [{"operator": "Exists"}], "nodeSelector": {"zone": "a"}});
        assert!(found(&tolerated).is_some());
    }

    #[test]
    fn required_anti_affinity_excludes_nodes_of_siblings() {
        let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "etcd"}}});
        let spec = json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}});
        let target = pod("etcd-0", "n0", &spec);
        let others = [pod("etcd-1", "n1", &spec), pod("etcd-2", "n2", &spec)];
        let found = obstacle(&target, "n0", &nodes(), &[], &others);
        assert_eq!(
            found.as_deref(),
            Some("the anti-affinity of the pod excludes the nodes of etcd-1, etcd-2")
        );
        assert_eq!(obstacle(&target, "n0", &nodes(), &[], &others[..1]), None);
    }
}
