//! The effective policy of a request, with the source of each setting, for previews of a deletion.

use crate::{deadline::Deadline, services::Services};
use etcd_guard_core::{
    annotations::{ALLOW_UNTIL, MODE},
    discovery::{etcd_pod, stopped_pod::verdict_of_stopped_pod},
    policy::{PolicySetting, ResolvedPolicy},
    request::{Operation, Request, WorkloadOperation},
};

/// Returns the effective policy settings for a request, with the source of each setting. The list is empty for pods
/// that run no etcd, because no setting applies to them, and for pods that cannot be read.
pub(crate) async fn effective_policy(
    services: &Services,
    request: &Request,
    deadline: Deadline,
) -> Vec<PolicySetting> {
    let namespace = &request.namespace;
    if let Operation::Workload(operation) = request.operation {
        // The policy on a node's deletion is that of the pods on the node.
        if operation.is_harmless() || operation.is_on_node() {
            return Vec::new();
        }
        let mut settings = operation_policy(services, request, operation, deadline).await.settings;
        // The settings for leaders and data apply only to pods.
        settings.retain(|setting| [MODE, ALLOW_UNTIL].contains(&setting.name.as_str()));
        return settings;
    }
    let Ok(Some(mut pod)) = services.observer.live_pod(request, deadline).await else { return Vec::new() };
    if verdict_of_stopped_pod(&pod).is_some() {
        return Vec::new();
    }
    let inherited =
        services.observer.add_inherited(namespace, std::slice::from_mut(&mut pod), deadline).await;
    if inherited.is_err() || !etcd_pod::runs_member(&pod, &pod.metadata.annotations) {
        return Vec::new();
    }
    services.policies.resolve_for_pod(namespace, &pod, deadline).await.settings
}

/// Returns the effective policy for a workload operation. The annotations of a claim are read from the API server. If the
/// claim cannot be read, the policy of its namespace applies.
pub(super) async fn operation_policy(
    services: &Services,
    request: &Request,
    operation: WorkloadOperation,
    deadline: Deadline,
) -> ResolvedPolicy {
    let Services { observer, policies, .. } = services;
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
