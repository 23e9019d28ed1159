//! The effective policy of a request, with the source of each setting, for previews of a deletion.

use crate::guard::{
    discovery::{etcd_pod, settled::settled_verdict},
    model::{
        annotations::{ALLOW_UNTIL, MODE},
        deadline::Deadline,
        request::{Operation, Request, WorkloadOperation},
    },
    observe::observer::ClusterObserver,
    policy::{
        effective::{PolicySetting, ResolvedPolicy},
        resolver::PolicyResolver,
    },
};
use crate::k8s::pod::Pod;

/// Returns the effective policy settings for a request, with the source of each setting. The list is empty for pods
/// that run no etcd, because no setting applies to them, and for pods that cannot be read.
pub(in crate::guard) async fn effective_policy(
    observer: &ClusterObserver,
    policies: &PolicyResolver,
    request: &Request,
    deadline: Deadline,
) -> Vec<PolicySetting> {
    let namespace = &request.namespace;
    if let Operation::Workload(operation) = request.operation {
        // The policy on a node's deletion is that of the pods on the node.
        if operation.is_harmless() || operation.is_on_node() {
            return Vec::new();
        }
        let mut settings = operation_policy(observer, policies, request, operation, deadline).await.settings;
        // The settings for leaders and data apply only to pods.
        settings.retain(|setting| [MODE, ALLOW_UNTIL].contains(&setting.name.as_str()));
        return settings;
    }
    match observer.live_pod(request, deadline).await {
        Ok(pod) if settled_verdict(&pod).is_none() && runs_etcd(&pod) => {
            policies.resolve_for_pod(namespace, &pod, deadline).await.settings
        }
        Ok(_) | Err(_) => Vec::new(),
    }
}

/// Returns the effective policy for a workload operation. The annotations of a claim are read from the API server. If the
/// claim cannot be read, the policy of its namespace applies.
pub(super) async fn operation_policy(
    observer: &ClusterObserver,
    policies: &PolicyResolver,
    request: &Request,
    operation: WorkloadOperation,
    deadline: Deadline,
) -> ResolvedPolicy {
    let (namespace, name) = (&request.namespace, &request.name);
    // Without the annotations, the evaluation exceeds its deadline as well, and the policy has no effect. A node is in no namespace.
    if !operation.is_on_node() {
        let _ = observer.wait_for_annotations(namespace, deadline).await;
    }
    if operation == WorkloadOperation::DeleteClaim {
        let read = observer.claims.read(namespace, name);
        if let Ok(Ok(claim)) = deadline.within("reading the claim from the API server", read).await {
            return policies.resolve_for_claim(namespace, &claim);
        }
    }
    if operation.is_on_owner() {
        return policies.resolve_for_owner(request, deadline).await;
    }
    match operation.stateful_set(name) {
        Some(set) => policies.resolve_for_stateful_set(namespace, set, deadline).await,
        None => policies.resolve_for_namespace(namespace),
    }
}

fn runs_etcd(pod: &Pod) -> bool {
    etcd_pod::read(pod, &pod.metadata.annotations).is_some()
}
