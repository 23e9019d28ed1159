//! The objects that member pods need to start or to find each other: Services, Secrets, `ConfigMaps` and service
//! accounts. Package managers delete some of them before the workload, and continue after an error.

use std::collections::BTreeMap;

use crate::{
    evaluation::{
        Evaluation,
        workload_operations::{
            break_glass_advice,
            data::runs_member,
            verdicts::{OperationVerdict, first_enforced, harmless, owner_arguments, protected},
        },
    },
    observe::error::EvaluationError,
    ownership::record::OwnershipRecord,
    policy::owner_chain::{Kinds, OwnerLink},
};
use etcd_guard_core::{
    discovery::advertised_hosts::advertised_hosts,
    objects::{pod::Pod, pod_references::PodReferences},
    request::{Request, ResourceKind},
};
use etcd_guard_kubernetes::Existence;

/// Evaluates the deletion of an object that pods need. It is denied while a member runs that needs the object, unless
/// the policies of all these members overrule the denial.
pub(super) async fn evaluate(
    on: &Evaluation<'_>,
    kind: ResourceKind,
) -> Result<OperationVerdict, EvaluationError> {
    let &Evaluation { services, request, deadline } = on;
    let (name, namespace) = (&request.name, &request.namespace);
    let pods = services.observer.list_pods_with_references(namespace, deadline).await?;
    let mut users = pods_that_use(request, kind, &pods);
    let mut sets: BTreeMap<&str, Existence> = BTreeMap::new();
    for owner in users.iter().filter_map(|pod| pod.controller()) {
        if owner.kind != "StatefulSet" || sets.contains_key(owner.uid.as_str()) {
            continue;
        }
        let read = services.observer.pods.owner(namespace, owner);
        let read = deadline.within("reading the StatefulSet from the API server", read).await?;
        sets.insert(&owner.uid, read.map_err(EvaluationError::Lookup)?.state);
    }
    let mut reads = services.owners.reads(namespace, Kinds::Configured, deadline);
    let mut chains: BTreeMap<&str, Vec<OwnerLink>> = BTreeMap::new();
    for pod in &users {
        chains.insert(&pod.metadata.uid, reads.chain_of_pod(pod).await);
    }
    let states = chains.values().flatten().filter_map(|link| Some(link.owner.as_ref().ok()?.state));
    let record = if sets.values().copied().chain(states).any(|state| state == Existence::Gone) {
        let read = services.ownership.read(namespace);
        let read = deadline.within("reading the record of owners from the API server", read).await?;
        read.map_err(EvaluationError::Lookup)?.record
    } else {
        OwnershipRecord::default()
    };
    let chain = |pod: &Pod| chains.get(pod.metadata.uid.as_str()).map(Vec::as_slice).unwrap_or_default();
    users.retain(|pod| {
        !is_deleted_with_set(pod, &sets, &record) && !is_deleted_with_owner(chain(pod), &record)
    });
    let policies = users.iter().map(|pod| services.policies.resolve_for_chain(namespace, pod, chain(pod)));
    let Some((pod, policy)) = first_enforced(users.iter().copied().zip(policies)) else {
        let text = format!("no running etcd member uses {} {name}", kind.as_str());
        return Ok(harmless(text).into());
    };
    let advice = break_glass_advice(on, &owner_arguments(namespace, pod));
    let first =
        format!("Delete the members first. They are among these: kubectl -n {namespace} get pods -o wide");
    let verdict = protected(describe(request, kind, &users), &[&first, &advice]);
    Ok(OperationVerdict::with_member(verdict, namespace, pod).with_policy(policy))
}

/// Whether the StatefulSet of a pod was deleted, so that the pod is leaving. An ownerReference to a StatefulSet that does
/// not exist is no proof: it may be dangling.
fn is_deleted_with_set(pod: &Pod, sets: &BTreeMap<&str, Existence>, record: &OwnershipRecord) -> bool {
    let Some(owner) = pod.controller() else { return false };
    let state = sets.get(owner.uid.as_str());
    state.is_some_and(|state| record.shows_deletion(&pod.metadata.uid, owner, *state))
}

/// Whether another owner in the chain of a pod was deleted, so that the pod is leaving. The watch of StatefulSets is no
/// proof.
fn is_deleted_with_owner(chain: &[OwnerLink], record: &OwnershipRecord) -> bool {
    let mut others = chain.iter().filter(|link| !link.reference.is_stateful_set());
    others.any(|link| {
        let owner = link.owner.as_ref();
        owner.is_ok_and(|owner| record.shows_deletion(&link.dependent, &link.reference, owner.state))
    })
}

/// Returns the pods with a running member that use the object of a request.
fn pods_that_use<'a>(
    request: &Request,
    kind: ResourceKind,
    pods: &'a [(Pod, PodReferences)],
) -> Vec<&'a Pod> {
    let name = request.name.as_str();
    let uses = |pod: &Pod, references: &PodReferences| match kind {
        ResourceKind::Service => is_selected(request, pod) || is_named(request, pod, pods),
        ResourceKind::Secret => references.uses_secret(name),
        ResourceKind::ConfigMap => references.uses_config_map(name),
        ResourceKind::ServiceAccount => references.uses_service_account(name),
    };
    let running = pods.iter().filter(|(pod, _)| runs_member(pod));
    running.filter(|(pod, references)| uses(pod, references)).map(|(pod, _)| pod).collect()
}

/// Returns the text of a denial.
fn describe(request: &Request, kind: ResourceKind, users: &[&Pod]) -> String {
    let (kind_name, name, count) = (kind.as_str(), &request.name, users.len());
    let first = users.first().map(|pod| pod.metadata.name.as_str()).unwrap_or_default();
    let effect = match kind {
        ResourceKind::Service => "without the Service, members and clients cannot find each other",
        _ => "without it, these pods cannot start again",
    };
    format!(
        "{kind_name} {name} is used by a running etcd cluster ({count} pods, including {first}): {effect}"
    )
}

/// Whether the Service of a request selects this pod.
fn is_selected(request: &Request, pod: &Pod) -> bool {
    let selector = &request.selector;
    !selector.is_empty() && selector.iter().all(|(name, value)| pod.metadata.labels.get(name) == Some(value))
}

/// Whether the Service of a request gives this pod its DNS name, or is part of a host in the settings of its member.
fn is_named(request: &Request, pod: &Pod, pods: &[(Pod, PodReferences)]) -> bool {
    let (service, namespace) = (request.name.as_str(), request.namespace.as_str());
    let is_pod = |name: &str| pods.iter().any(|(pod, _)| pod.metadata.name == name);
    pod.spec.subdomain == service
        || advertised_hosts(pod).iter().any(|host| {
            let mut labels = host.split('.');
            match (labels.next(), labels.next()) {
                // SERVICE, or SERVICE.NAMESPACE.
                (Some(first), second) if first == service => second.is_none_or(|second| second == namespace),
                // POD.SERVICE.
                (Some(first), Some(second)) => second == service && is_pod(first),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use etcd_guard_core::objects::admission::AdmissionRequest;
    use etcd_guard_kubernetes::Owner;

    /// The pods of a cluster with one StatefulSet per member, and a pod without etcd.
    fn pods() -> Vec<(Pod, PodReferences)> {
        let member = |name: &str, running: bool| {
            let state = if running { json!({"running": {}}) } else { json!({"waiting": {}}) };
            json!({
                "metadata": {"name": format!("{name}-0"), "namespace": "prod", "labels": {"app": "etcd", "member": name}},
                "spec": {
                    "subdomain": format!("{name}-pods"),
                    "serviceAccountName": "etcd",
                    "containers": [{
                        "name": "etcd",
                        "image": "quay.io/coreos/etcd:v3.6.16",
                        "args": ["--initial-cluster=ea=http://ea:2380,eb=http://eb.prod.svc:2380,ec=http://ec-0.by-pod:2380"],
                    }],
                    "volumes": [{"name": "tls", "secret": {"secretName": "etcd-tls"}}],
                },
                "status": {"phase": "Running", "containerStatuses": [{"name": "etcd", "state": state}]},
            })
        };
        let other = json!({
            "metadata": {"name": "web-0", "namespace": "prod", "labels": {"app": "web"}},
            "spec": {
                "subdomain": "web",
                "containers": [{"name": "web", "image": "nginx"}],
                "volumes": [{"name": "config", "secret": {"secretName": "web"}}],
            },
            "status": {"phase": "Running", "containerStatuses": [{"name": "web", "state": {"running": {}}}]},
        });
        let parse =
            |pod: Value| (serde_json::from_value(pod.clone()).unwrap(), serde_json::from_value(pod).unwrap());
        [member("ea", true), member("ec", false), other].map(parse).into()
    }

    /// Returns the names of the pods that use an object.
    fn users(resource: &str, name: &str, selector: &Value) -> Vec<String> {
        let review = json!({
            "uid": "1", "operation": "DELETE", "name": "", "namespace": "prod",
            "resource": {"group": "", "version": "v1", "resource": resource},
            "oldObject": {"metadata": {"name": name, "namespace": "prod"}, "spec": {"selector": selector}},
        })
        .to_string();
        let review: AdmissionRequest<'_> = serde_json::from_str(&review).unwrap();
        let request = Request::from_admission(&review).unwrap();
        let etcd_guard_core::request::Operation::Workload(operation) = request.operation else { panic!() };
        let etcd_guard_core::request::WorkloadOperation::DeleteResource(kind) = operation else { panic!() };
        let pods = pods();
        let users = pods_that_use(&request, kind, &pods);
        users.into_iter().map(|pod| pod.metadata.name.clone()).collect()
    }

    #[test]
    fn absent_owner_without_a_record_proves_no_deletion() {
        let pod = json!({
            "metadata": {
                "name": "ea-0",
                "uid": "pod",
                "ownerReferences": [
                    {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "ea", "uid": "set", "controller": true},
                ],
            },
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let owner = pod.controller().unwrap();
        let is_deleted = |state, record: &OwnershipRecord| {
            is_deleted_with_set(&pod, &BTreeMap::from([("set", state)]), record)
        };
        let mut record = OwnershipRecord::default();
        assert!(!is_deleted(Existence::Gone, &record), "the ownerReference may be dangling");
        assert!(is_deleted(Existence::Terminating, &record));
        record.insert("pod", &owner.key());
        assert!(is_deleted(Existence::Gone, &record));
        assert!(!is_deleted(Existence::Alive, &record));
        let mut accepted = OwnershipRecord::default();
        accepted.accept(&owner.key());
        assert!(is_deleted(Existence::Gone, &accepted));
    }

    #[test]
    fn deletion_above_the_controller_makes_a_pod_leave() {
        let link = |kind: &str, dependent: &str, state: Existence| {
            let reference = json!({"apiVersion": "apps/v1", "kind": kind, "name": "ea", "uid": kind});
            OwnerLink {
                reference: serde_json::from_value(reference).unwrap(),
                dependent: dependent.to_owned(),
                owner: Ok(Owner { state, ..Owner::default() }),
            }
        };
        let chain =
            |state| [link("ReplicaSet", "pod", Existence::Alive), link("Deployment", "ReplicaSet", state)];
        let mut record = OwnershipRecord::default();
        assert!(!is_deleted_with_owner(&chain(Existence::Alive), &record));
        assert!(is_deleted_with_owner(&chain(Existence::Terminating), &record));
        assert!(!is_deleted_with_owner(&chain(Existence::Gone), &record), "the reference may be dangling");
        record.accept("Deployment/ea/Deployment");
        assert!(is_deleted_with_owner(&chain(Existence::Gone), &record));
        let set = [link("StatefulSet", "pod", Existence::Terminating)];
        assert!(!is_deleted_with_owner(&set, &record), "StatefulSets are read live");
    }

    #[test]
    fn finds_services_that_select_or_name_members() {
        for (name, selector) in [
            ("clients", json!({"app": "etcd"})),
            ("ea-pods", Value::Null),
            ("ea", Value::Null),
            ("eb", json!({})),
            ("by-pod", Value::Null),
        ] {
            assert_eq!(users("services", name, &selector), ["ea-0"], "{name}");
        }
        for (name, selector) in [
            ("web", json!({"app": "web"})),
            ("clients", json!({"app": "etcd", "tier": "db"})),
            // The pod of this selector does not run its member.
            ("of-ec", json!({"member": "ec"})),
            ("prod", Value::Null),
            ("svc", Value::Null),
            ("ea-0", Value::Null),
        ] {
            assert_eq!(users("services", name, &selector), [""; 0], "{name}");
        }
    }

    #[test]
    fn finds_objects_that_running_members_mount() {
        assert_eq!(users("secrets", "etcd-tls", &Value::Null), ["ea-0"]);
        assert_eq!(users("serviceaccounts", "etcd", &Value::Null), ["ea-0"]);
        for (resource, name) in [("secrets", "web"), ("configmaps", "etcd-tls"), ("serviceaccounts", "web")] {
            assert_eq!(users(resource, name, &Value::Null), [""; 0], "{resource} {name}");
        }
    }
}
