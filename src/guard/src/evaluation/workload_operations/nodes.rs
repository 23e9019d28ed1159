//! Deletions of nodes, and the guarded members on a node.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;

use crate::{
    evaluation::{
        Evaluation, ledger,
        ledger::{Written, member_reservation},
        several_members,
        workload_operations::{
            break_glass_advice,
            data::{may_run_member, runs_member},
            verdicts::{OperationVerdict, first_enforced, harmless, owner_arguments},
        },
    },
    observe::error::EvaluationError,
    reserve::store::{Facts, LedgerName, Ledgers},
};
use etcd_guard_core::{
    assess::node_deletion::evaluate_node_deletion, cluster_key::ClusterKey, objects::pod::Pod,
    policy::ResolvedPolicy, reservation::Reservation,
};
use etcd_guard_kubernetes::{LookupError, PodsOfNode};

/// Users that delete a Node after its machine no longer exists. The first is the cloud node lifecycle controller, which
/// has this user in the controller manager and in cloud controller managers with `--use-service-account-credentials`;
/// the others are the users of all their controllers without it. The cluster autoscaler is not listed: it deletes
/// machines and leaves Nodes to this controller (kubernetes/autoscaler issue 2640). Karpenter is not listed either: its
/// nodes have a finalizer.
const LIFECYCLE_CONTROLLERS: [&str; 4] = [
    "system:serviceaccount:kube-system:node-controller",
    "system:serviceaccount:kube-system:cloud-controller-manager",
    "system:cloud-controller-manager",
    "system:kube-controller-manager",
];

/// The result of one evaluation attempt.
#[derive(Default)]
struct Attempt {
    denials: Vec<(OperationVerdict, ResolvedPolicy)>,
    /// The doubts about clusters that do not need the node.
    warnings: Vec<String>,
    /// The reservations that precede an approval.
    new: Vec<NewReservations>,
    /// Whether a cluster needs a ledger that was not read.
    lacks_ledgers: bool,
    /// The first error. Clusters that it does not concern are evaluated and reserved nevertheless.
    failure: Option<EvaluationError>,
}

/// The members on the node of those clusters of one namespace that need the same ledgers.
struct NewReservations {
    clusters: Vec<ClusterKey>,
    names: BTreeSet<LedgerName>,
    /// These ledgers, read before the probes; `None` if they cannot be read.
    ledgers: Option<Ledgers>,
    reservations: Vec<Reservation>,
}

/// Evaluates the deletion of a node. If the evaluation fails, the deletion is approved with a warning: only an answer
/// of a member on the node proves that the node still runs.
pub(super) async fn evaluate(on: &Evaluation<'_>) -> OperationVerdict {
    let request = on.request;
    match try_evaluate(on).await {
        Ok(verdict) => verdict,
        Err(error) => {
            let failed = error.into_verdict(request);
            let mut verdict = harmless(format!("node {} could not be evaluated", request.name));
            verdict.warn(&failed.text());
            verdict.into()
        }
    }
}

/// Evaluates the deletion of a node: it is denied while the quorum of a guarded cluster needs a member on the node,
/// unless the policy of this member overrules the denial. Before the deletion is approved, the members on the node are
/// reserved: pod garbage collection deletes their pods about a minute later, and until then they look healthy.
async fn try_evaluate(on: &Evaluation<'_>) -> Result<OperationVerdict, EvaluationError> {
    let request = on.request;
    let node = &request.name;
    if is_lifecycle_controller(&request.user) {
        let text = format!("the machine of node {node} no longer exists, according to {}", request.user);
        return Ok(harmless(text).into());
    }
    let mut stored: BTreeSet<String> = BTreeSet::new();
    loop {
        let Attempt { denials, warnings, new, lacks_ledgers, mut failure } = attempt(on).await?;
        let denial = first_enforced(denials);
        let is_denied = denial.as_ref().is_some_and(|(_, policy)| policy.policy.enforces_denials());
        if !request.dry_run && !is_denied {
            let mut starts_again = lacks_ledgers;
            for new in new {
                match reserve_members(on, new, &mut stored).await {
                    Ok(Written::Stored) => {}
                    Ok(Written::Conflict) => starts_again = true,
                    // The reservations of other clusters do not depend on these ledgers.
                    Err(error) => {
                        failure.get_or_insert(error);
                    }
                }
            }
            if starts_again {
                continue;
            }
        }
        if let Some(error) = failure.filter(|_| !is_denied) {
            return Err(error);
        }
        return Ok(match denial {
            Some((verdict, policy)) => verdict.with_policy(policy),
            None => {
                let mut verdict = harmless(format!("no guarded etcd cluster needs a member on node {node}"));
                for warning in warnings {
                    verdict.warn(&warning);
                }
                verdict.into()
            }
        });
    }
}

/// Makes one evaluation attempt.
async fn attempt(on: &Evaluation<'_>) -> Result<Attempt, EvaluationError> {
    let &Evaluation { services, request, deadline } = on;
    let node = &request.name;
    // Before the first list of namespaces, the guard knows no guarded namespace, and would find no member on the node.
    services.observer.wait_for_annotations(&request.namespace, deadline).await?;
    let guarded = services.observer.annotations.guarded_namespaces().borrow().clone();
    let list = services.observer.pods.identify_pods_of_node(node, &guarded);
    let on_node = deadline.within("listing the pods of the node from the API server", list).await?;
    let PodsOfNode { pods: on_node, incomplete } = on_node.map_err(EvaluationError::Lookup)?;
    let uids = uids_by_namespace(&on_node);
    // Each namespace in parallel and with its own ledgers: a tenant whose API objects or members are slow, or whose ledger is
    // invalid or full, must not affect the others.
    let namespaces = uids.iter().map(async |(namespace, uids)| {
        let mut attempt = Attempt::default();
        let evaluated = evaluate_namespace(on, namespace, &on_node, uids, &mut attempt).await;
        attempt.failure = attempt.failure.or(evaluated.err());
        attempt
    });
    let mut all = Attempt { failure: incomplete.first().map(too_many), ..Attempt::default() };
    for attempt in join_all(namespaces).await {
        all.denials.extend(attempt.denials);
        all.warnings.extend(attempt.warnings);
        all.new.extend(attempt.new);
        all.lacks_ledgers |= attempt.lacks_ledgers;
        all.failure = all.failure.or(attempt.failure);
    }
    Ok(all)
}

/// Evaluates the clusters of one namespace. Their reservations are read before the probes, so that an approval of another
/// replica causes a write conflict.
async fn evaluate_namespace(
    on: &Evaluation<'_>,
    namespace: &str,
    on_node: &[Pod],
    uids: &BTreeSet<&str>,
    attempt: &mut Attempt,
) -> Result<(), EvaluationError> {
    let &Evaluation { services, request, deadline } = on;
    let node = &request.name;
    for pod in on_node.iter().filter(|pod| pod.metadata.namespace == namespace) {
        let key = ClusterKey::from_pod(namespace, pod);
        let names = ledger::names(on, [&key]);
        if let Some(new) = attempt.new.iter_mut().find(|new| new.names == names) {
            new.clusters.push(key);
            continue;
        }
        let ledgers = match ledger::read(on, services.reservations.read(names.clone())).await {
            Ok(ledgers) => Some(ledgers),
            Err(error) => {
                attempt.failure.get_or_insert(error);
                None
            }
        };
        attempt.new.push(NewReservations { clusters: vec![key], names, ledgers, reservations: Vec::new() });
    }
    let pods = services.observer.list_pods(namespace, deadline).await?;
    for (cluster_key, members) in clusters(namespace, &pods, uids) {
        let new = attempt.new.iter_mut().find(|new| new.clusters.contains(&cluster_key));
        let ledgers = new.as_ref().and_then(|new| new.ledgers.as_ref());
        let reserved = ledgers.map(Ledgers::active).unwrap_or_default();
        let snapshot = services.observer.observe_with_storage(&cluster_key, &pods, &reserved, deadline).await;
        match new {
            Some(NewReservations { ledgers: Some(ledgers), reservations, .. })
                if ledger::has_read_all(on, ledgers, &cluster_key, &snapshot) =>
            {
                reservations.extend(members.iter().map(|pod| member_reservation(request, pod, &snapshot)));
            }
            // Nothing can be reserved.
            Some(NewReservations { ledgers: None, .. }) => {}
            Some(_) | None => attempt.lacks_ledgers = true,
        }
        let ambiguous = members.iter().find_map(|pod| {
            let denial = several_members(on, pod, &owner_arguments(namespace, pod))?;
            Some((denial, *pod))
        });
        let (verdict, member) = if let Some(ambiguous) = ambiguous {
            ambiguous
        } else {
            let verdict = evaluate_node_deletion(&snapshot, node, uids);
            // A denial names a pod whose member runs according to the kubelet, if there is one.
            let member = members.iter().find(|pod| runs_member(pod)).or(members.first());
            let Some(member) = member.filter(|_| !verdict.reason.allows()) else {
                attempt.warnings.extend(verdict.warnings);
                continue;
            };
            let advice = break_glass_advice(on, &owner_arguments(namespace, member));
            let drain = format!("kubectl drain {node} --ignore-daemonsets --delete-emptydir-data");
            let mut verdict = verdict.with_remedy(&format!("Drain the node first: {drain}"));
            verdict.add_advice(&advice);
            (verdict, *member)
        };
        let policy = services.policies.resolve_for_pod(namespace, member, deadline).await;
        attempt.denials.push((OperationVerdict::with_member(verdict, namespace, member), policy));
    }
    Ok(())
}

/// Reserves members on the node in their ledgers, except those whose reservations an earlier attempt has stored.
async fn reserve_members(
    on: &Evaluation<'_>,
    new: NewReservations,
    stored: &mut BTreeSet<String>,
) -> Result<Written, EvaluationError> {
    let NewReservations { ledgers, mut reservations, .. } = new;
    reservations.retain(|new| !stored.contains(&new.uid));
    let Some(mut ledgers) = ledgers.filter(|_| !reservations.is_empty()) else { return Ok(Written::Stored) };
    let facts = Facts::default();
    let reserve = on.services.reservations.reserve(&mut ledgers, &reservations, &facts);
    let result = on.deadline.within("writing the reservations to the API server", reserve).await?;
    let written = ledger::written(result)?;
    if let Written::Stored = written {
        stored.extend(reservations.into_iter().map(|new| new.uid));
    }
    Ok(written)
}

/// The error of a namespace of which not all pods on the node are known.
fn too_many(namespace: &String) -> EvaluationError {
    let subject = format!("the pods of namespace {namespace} on the node");
    EvaluationError::Lookup(LookupError::TooLarge { subject, cause: String::from("they are too many") })
}

/// Whether this user deletes Nodes after their machines no longer exist.
fn is_lifecycle_controller(user: &str) -> bool {
    LIFECYCLE_CONTROLLERS.contains(&user)
}

/// Returns the uids of pods by namespace.
fn uids_by_namespace(pods: &[Pod]) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut uids: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for pod in pods {
        uids.entry(&pod.metadata.namespace).or_default().insert(&pod.metadata.uid);
    }
    uids
}

/// Groups the pods with these uids in which a member runs or may start by cluster. Mirror pods are excluded: the processes of
/// static pods continue to run.
fn clusters<'a>(namespace: &str, pods: &'a [Pod], uids: &BTreeSet<&str>) -> Vec<(ClusterKey, Vec<&'a Pod>)> {
    let mut clusters: Vec<(ClusterKey, Vec<&Pod>)> = Vec::new();
    let is_affected =
        |pod: &&Pod| uids.contains(pod.metadata.uid.as_str()) && !pod.is_mirror() && may_run_member(pod);
    for pod in pods.iter().filter(is_affected) {
        let key = ClusterKey::from_pod(namespace, pod);
        match clusters.iter_mut().find(|(known, _)| *known == key) {
            Some((_, members)) => members.push(pod),
            None => clusters.push((key, vec![pod])),
        }
    }
    clusters
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        deadline::Deadline,
        evaluation::fixture::{FakeServer, request},
        services::Services,
    };
    use etcd_guard_core::{
        reason::Reason,
        request::{Operation, WorkloadOperation},
    };

    async fn delete_node(services: &Services) -> OperationVerdict {
        let operation = WorkloadOperation::DeleteNode { has_finalizers: false };
        let request = request(Operation::Workload(operation), "", "worker");
        evaluate(&Evaluation::new(services, &request, Deadline::from_timeout(None))).await
    }

    /// A tenant with a ledger that cannot be read or is full must not prevent the reservations of the others.
    #[tokio::test]
    async fn ledger_of_one_namespace_does_not_affect_the_others() {
        let entry = |n: usize| json!({"uid": format!("{n:0200}"), "pod": "p", "namespace": "z", "at": ""});
        let full = json!((0..900).map(entry).collect::<Vec<_>>()).to_string();
        for (namespace, content) in [("a", "no JSON"), ("z", "no JSON"), ("a", &full), ("z", &full)] {
            let server = FakeServer::default();
            server.store(namespace, content);
            let services = Services::of_client(&server.client());
            let OperationVerdict { verdict, .. } = delete_node(&services).await;
            assert_eq!(verdict.reason, Reason::IntentHarmless);
            let is_unavailable = |warning: &String| warning.starts_with("LedgerUnavailable");
            assert!(verdict.warnings.iter().any(is_unavailable), "{:?}", verdict.warnings);
            let other = if namespace == "a" { "z" } else { "a" };
            let reservations = server.reservations(other);
            assert_eq!(reservations.len(), 1);
            assert_eq!((&*reservations[0].uid, reservations[0].of_node), (other, true));
            // The size of a list depends on all tenants. The server refuses it here.
            let is_list = |path: &String| path.ends_with("/leases");
            assert!(!server.reads().iter().any(is_list), "{:?}", server.reads());
        }
    }

    /// The pods of a tenant that take too much memory must not prevent the reservations of the others.
    // Virtual time: a busy machine takes seconds for so many arguments.
    #[tokio::test(start_paused = true)]
    async fn pods_of_one_namespace_do_not_affect_the_others() {
        let server = FakeServer::default();
        for n in 0..6 {
            // 300,000 empty arguments have less than a megabyte of JSON.
            let container = json!({"name": "etcd", "image": "etcd", "args": vec![""; 300_000]});
            server.add_pod(json!({
                "metadata": {"name": format!("large-{n}"), "namespace": "a", "uid": format!("large-{n}")},
                "spec": {"nodeName": "worker", "containers": [container]},
            }));
        }
        let services = Services::of_client(&server.client());
        let OperationVerdict { verdict, .. } = delete_node(&services).await;
        assert!(verdict.text().contains("could not be evaluated"), "{}", verdict.text());
        let is_about_tenant = |warning: &String| warning.contains("pods of namespace a");
        assert!(verdict.warnings.iter().any(is_about_tenant), "{:?}", verdict.warnings);
        assert_eq!(server.reservations("z").len(), 1);
    }

    #[test]
    fn recognizes_node_lifecycle_controllers() {
        assert!(is_lifecycle_controller("system:serviceaccount:kube-system:node-controller"));
        for user in [
            "kubernetes-admin",
            "system:node:worker",
            "system:serviceaccount:kube-system:cluster-autoscaler",
            "system:serviceaccount:prod:node-controller",
        ] {
            assert!(!is_lifecycle_controller(user), "{user}");
        }
    }

    #[test]
    fn finds_members_on_node_by_cluster() {
        let pod = |name: &str, owner: &str, image: &str, annotations: serde_json::Value| {
            serde_json::from_value(json!({
                "metadata": {
                    "name": name, "namespace": "prod", "uid": name, "annotations": annotations,
                    "ownerReferences": [{"kind": "StatefulSet", "name": owner, "uid": owner, "controller": true}],
                },
                "spec": {"containers": [{"name": "main", "image": image}]},
                "status": {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]},
            }))
            .unwrap()
        };
        let etcd = "quay.io/coreos/etcd:v3.6.16";
        // The kubelet can still start this pod after the Node object is deleted.
        let mut starting: Pod = pod("a-3", "a", etcd, json!({}));
        starting.status = etcd_guard_core::objects::pod::PodStatus::default();
        let pods: Vec<Pod> = vec![
            pod("a-0", "a", etcd, json!({})),
            pod("a-1", "a", etcd, json!({})),
            pod("a-2", "a", etcd, json!({})),
            pod("b-0", "b", etcd, json!({"kubernetes.io/config.mirror": "x"})),
            pod("web-0", "web", "nginx", json!({})),
            starting,
        ];
        let on_node: Vec<Pod> = pods.iter().filter(|pod| pod.metadata.name != "a-0").cloned().collect();
        let uids = uids_by_namespace(&on_node);
        assert_eq!(uids.keys().collect::<Vec<_>>(), [&"prod"]);
        let found = clusters("prod", &pods, &uids["prod"]);
        let names = found.iter().map(|(_, pods)| pods.iter().map(|pod| pod.metadata.name.as_str()).collect());
        assert_eq!(names.collect::<Vec<Vec<&str>>>(), [["a-1", "a-2", "a-3"]]);
    }
}
