//! Deletions of nodes, and the guarded members on a node.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    evaluation::{
        Evaluation, ledger,
        ledger::{Written, member_reservation},
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
struct NodeAttempt {
    verdict: OperationVerdict,
    /// Whether the verdict is a denial that no policy overrules.
    is_denied: bool,
    /// The ledgers of all clusters on the node, read before the probes.
    ledgers: Ledgers,
    /// The reservations that precede an approval.
    new: Vec<NewReservations>,
    /// Whether a cluster needs a ledger that was not read.
    lacks_ledgers: bool,
}

/// The reservations of the members of one cluster.
struct NewReservations {
    /// The ledgers that the cluster needs.
    ledgers: BTreeSet<LedgerName>,
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
    loop {
        let mut attempt = attempt(on).await?;
        if request.dry_run || attempt.is_denied {
            return Ok(attempt.verdict);
        }
        if attempt.lacks_ledgers {
            continue;
        }
        match reserve_members(on, &mut attempt).await? {
            Written::Stored => return Ok(attempt.verdict),
            Written::Conflict => {}
        }
    }
}

/// Makes one evaluation attempt. The reservations are read before the probes, so that an approval of another replica
/// causes a write conflict.
async fn attempt(on: &Evaluation<'_>) -> Result<NodeAttempt, EvaluationError> {
    let &Evaluation { services, request, deadline } = on;
    let node = &request.name;
    // Before the first list of namespaces, the guard knows no guarded namespace, and would find no member on the node.
    services.observer.wait_for_annotations(&request.namespace, deadline).await?;
    let guarded = services.observer.annotations.guarded_namespaces().borrow().clone();
    let list = services.observer.pods.list_pods_of_node(node, &guarded);
    let on_node = deadline.within("listing the pods of the node from the API server", list).await?;
    let on_node = on_node.map_err(EvaluationError::Lookup)?;
    let keys: Vec<ClusterKey> =
        on_node.iter().map(|pod| ClusterKey::from_pod(&pod.metadata.namespace, pod)).collect();
    let ledgers = ledger::read(on, services.reservations.read(ledger::names(on, &keys))).await?;
    let reserved = ledgers.active();
    let mut denials: Vec<(OperationVerdict, ResolvedPolicy)> = Vec::new();
    let (mut new, mut lacks_ledgers) = (Vec::new(), false);
    let mut failure: Option<EvaluationError> = None;
    for (namespace, uids) in uids_by_namespace(&on_node) {
        let pods = match services.observer.list_pods(namespace, deadline).await {
            Ok(pods) => pods,
            // The clusters of other namespaces can still need their members.
            Err(error) => {
                failure.get_or_insert(error);
                continue;
            }
        };
        for (cluster_key, members) in clusters(namespace, &pods, &uids) {
            let snapshot =
                services.observer.observe_with_storage(&cluster_key, &pods, &reserved, deadline).await;
            let reservations =
                members.iter().map(|pod| member_reservation(request, pod, &snapshot)).collect();
            lacks_ledgers |= !ledger::has_read_all(on, &ledgers, &cluster_key, &snapshot);
            new.push(NewReservations { ledgers: ledger::names(on, [&cluster_key]), reservations });
            let verdict = evaluate_node_deletion(&snapshot, node, &uids);
            // A denial names a pod whose member runs according to the kubelet, if there is one.
            let member = members.iter().find(|pod| runs_member(pod)).or(members.first());
            let Some(member) = member.filter(|_| !verdict.reason.allows()) else { continue };
            let advice = break_glass_advice(on, &owner_arguments(namespace, member));
            let drain = format!("kubectl drain {node} --ignore-daemonsets --delete-emptydir-data");
            let verdict = verdict.with_remedy(&format!("Drain the node first: {drain}; to {advice}"));
            let policy = services.policies.resolve_for_pod(namespace, member, deadline).await;
            denials.push((OperationVerdict::with_member(verdict, namespace, member), policy));
        }
    }
    let (verdict, is_denied) = match (first_enforced(denials), failure) {
        (Some((verdict, policy)), failure) => {
            let is_denied = policy.policy.enforces_denials();
            if let Some(error) = failure.filter(|_| !is_denied) {
                return Err(error);
            }
            (verdict.with_policy(policy), is_denied)
        }
        (None, Some(error)) => return Err(error),
        (None, None) => {
            let text = format!("no guarded etcd cluster needs a member on node {node}");
            (harmless(text).into(), false)
        }
    };
    Ok(NodeAttempt { verdict, is_denied, ledgers, new, lacks_ledgers })
}

/// Reserves the members on a node, each of them in the ledgers that its cluster needs.
async fn reserve_members(on: &Evaluation<'_>, attempt: &mut NodeAttempt) -> Result<Written, EvaluationError> {
    let NodeAttempt { ledgers, new, .. } = attempt;
    let reservations: Vec<Reservation> =
        new.iter().flat_map(|new| new.reservations.iter().cloned()).collect();
    let belongs = |name: &LedgerName, reservation: &Reservation| {
        let is_of =
            |new: &&NewReservations| new.reservations.iter().any(|known| known.uid == reservation.uid);
        new.iter().filter(is_of).any(|new| new.ledgers.contains(name))
    };
    let (store, facts) = (&on.services.reservations, Facts::default());
    let reserve = store.reserve_each(ledgers, &reservations, &facts, belongs);
    ledger::written(on.deadline.within("writing the reservations to the API server", reserve).await?)
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

    /// Edge case 182.
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
