//! Deletions of nodes, and the guarded members on a node.

use std::collections::{BTreeMap, BTreeSet};

use crate::guard::{
    assess::node_deletion::evaluate_node_deletion,
    decide::{
        context::EvaluationError,
        workload_operations::{
            WorkloadEvaluator,
            data::runs_member,
            verdicts::{OperationVerdict, break_glass_advice, first_enforced, harmless, owner_arguments},
        },
    },
    model::{cluster_key::ClusterKey, deadline::Deadline, request::Request},
    policy::effective::ResolvedPolicy,
};
use crate::k8s::pod::Pod;

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

// === impl WorkloadEvaluator ===

impl WorkloadEvaluator {
    /// Evaluates the deletion of a node. If the evaluation fails, the deletion is approved with a warning: only an answer
    /// of a member on the node proves that the node still runs.
    pub(super) async fn evaluate_node(&self, request: &Request, deadline: Deadline) -> OperationVerdict {
        match self.try_evaluate_node(request, deadline).await {
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
    /// unless the policy of this member overrules the denial.
    async fn try_evaluate_node(
        &self,
        request: &Request,
        deadline: Deadline,
    ) -> Result<OperationVerdict, EvaluationError> {
        let node = &request.name;
        if is_lifecycle_controller(&request.user) {
            let text = format!("the machine of node {node} no longer exists, according to {}", request.user);
            return Ok(harmless(text).into());
        }
        let list = self.observer.pods.list_pods_of_node(node);
        let on_node = deadline.within("listing the pods of the node from the API server", list).await?;
        let on_node = on_node.map_err(EvaluationError::Lookup)?;
        let guarded = self.observer.annotations.guarded_namespaces().borrow().clone();
        let reserved = deadline
            .within("reading the reservations from the API server", self.reservations.read_active())
            .await?
            .map_err(|error| EvaluationError::unreadable_record(&error))?;
        let mut denials: Vec<(OperationVerdict, ResolvedPolicy)> = Vec::new();
        for (namespace, uids) in uids_by_namespace(&on_node, &guarded) {
            let pods = self.observer.list_pods(namespace, deadline).await?;
            for (cluster_key, member) in clusters(namespace, &pods, &uids) {
                let snapshot =
                    self.observer.observe_with_storage(&cluster_key, &pods, &reserved, deadline).await;
                let verdict = evaluate_node_deletion(&snapshot, node, &uids);
                if verdict.reason.allows() {
                    continue;
                }
                let advice = break_glass_advice(&owner_arguments(namespace, member));
                let drain = format!("kubectl drain {node} --ignore-daemonsets --delete-emptydir-data");
                let verdict = verdict.with_remedy(&format!("Drain the node first: {drain}; to {advice}"));
                let policy = self.policies.resolve_for_pod(namespace, member);
                denials.push((OperationVerdict::with_member(verdict, namespace, member), policy));
            }
        }
        Ok(match first_enforced(denials) {
            Some((verdict, policy)) => verdict.with_policy(policy),
            None => harmless(format!("no guarded etcd cluster needs a member on node {node}")).into(),
        })
    }
}

/// Whether this user deletes Nodes after their machines no longer exist.
fn is_lifecycle_controller(user: &str) -> bool {
    LIFECYCLE_CONTROLLERS.contains(&user)
}

/// Returns the uids of pods by namespace, for guarded namespaces.
fn uids_by_namespace<'a>(
    pods: &'a [Pod],
    guarded: &BTreeSet<String>,
) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let mut uids: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| guarded.contains(&pod.metadata.namespace)) {
        uids.entry(&pod.metadata.namespace).or_default().insert(&pod.metadata.uid);
    }
    uids
}

/// Returns the clusters of which a member runs in a pod with one of these uids, each with the first such pod. The mirrors
/// of static pods are not included: their processes continue to run.
fn clusters<'a>(namespace: &str, pods: &'a [Pod], uids: &BTreeSet<&str>) -> Vec<(ClusterKey, &'a Pod)> {
    let mut clusters: Vec<(ClusterKey, &Pod)> = Vec::new();
    let is_affected =
        |pod: &&Pod| uids.contains(pod.metadata.uid.as_str()) && !pod.is_mirror() && runs_member(pod);
    for pod in pods.iter().filter(is_affected) {
        let key = ClusterKey::from_pod(namespace, pod);
        if !clusters.iter().any(|(known, _)| *known == key) {
            clusters.push((key, pod));
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

    #[test]
    fn finds_running_members_on_node_once_per_cluster() {
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
        let pods: Vec<Pod> = vec![
            pod("a-0", "a", etcd, json!({})),
            pod("a-1", "a", etcd, json!({})),
            pod("a-2", "a", etcd, json!({})),
            pod("b-0", "b", etcd, json!({"kubernetes.io/config.mirror": "x"})),
            pod("web-0", "web", "nginx", json!({})),
        ];
        let guarded = BTreeSet::from([String::from("prod")]);
        let on_node: Vec<Pod> = pods.iter().filter(|pod| pod.metadata.name != "a-0").cloned().collect();
        let uids = uids_by_namespace(&on_node, &guarded);
        assert_eq!(uids.keys().collect::<Vec<_>>(), [&"prod"]);
        let found = clusters("prod", &pods, &uids["prod"]);
        let names: Vec<_> = found.iter().map(|(_, pod)| pod.metadata.name.as_str()).collect();
        assert_eq!(names, ["a-1"]);
        assert!(uids_by_namespace(&on_node, &BTreeSet::new()).is_empty());
    }
}
