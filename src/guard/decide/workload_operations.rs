//! Evaluates workload operations: deletions and scaling of the objects to which member pods belong.

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::ObjectReference,
    jiff::{SignedDuration, Timestamp},
};

use crate::guard::{
    assess::{assess, scale_down},
    decide::context::EvaluationError,
    discovery::etcd_pod,
    model::{
        annotations::{ALLOW_REASON, ALLOW_UNTIL},
        cluster_key::ClusterKey,
        deadline::Deadline,
        reason::Reason,
        request::Request,
        request::WorkloadOperation,
        verdict::Verdict,
    },
    observe::observer::ClusterObserver,
    policy::effective::Policy,
};
use crate::k8s::{EventRecord, pod::Pod};

/// The duration of the break-glass annotation in the command of a denial. The guard accepts at most 24 hours.
const BREAK_GLASS_TIME: SignedDuration = SignedDuration::from_hours(1);

/// Evaluates workload operations.
pub(super) struct WorkloadEvaluator {
    pub(super) observer: Arc<ClusterObserver>,
}

/// The verdict on a workload operation.
pub(super) struct OperationVerdict {
    pub(super) verdict: Verdict,
    /// The StatefulSet of the member that the operation would remove, if it is not the object of the operation itself.
    pub(super) stateful_set: Option<ObjectReference>,
}

/// The member pods of a namespace.
struct MemberPods<'a> {
    /// Pods in which etcd runs, without terminating pods.
    running: Vec<&'a Pod>,
    /// Pods of members, also if etcd does not run: the member's data exists while its container is stopped.
    with_data: Vec<&'a Pod>,
}

// === impl WorkloadEvaluator ===

impl WorkloadEvaluator {
    /// Returns the verdict on an operation, before the policies of its owners are applied.
    pub(super) async fn evaluate(
        &self,
        request: &Request,
        operation: WorkloadOperation,
        deadline: Deadline,
    ) -> Result<OperationVerdict, EvaluationError> {
        let (name, namespace) = (&request.name, &request.namespace);
        let pods = self.observer.list_pods(namespace, deadline).await?;
        let members = MemberPods::new(&pods);
        match operation {
            WorkloadOperation::DeleteNamespace => Ok(evaluate_namespace(namespace, &members)),
            WorkloadOperation::DeleteStatefulSet => {
                Ok(evaluate_stateful_set(namespace, name, &members).into())
            }
            WorkloadOperation::DeleteClaim => {
                let Some(pod) = members.with_data.iter().find(|pod| mounts_claim(pod, name)) else {
                    return Ok(harmless(format!("no etcd member uses claim {name}")).into());
                };
                let has_vote = !self.has_no_vote(namespace, pod, &pods, deadline).await;
                Ok(evaluate_claim(namespace, name, pod, has_vote))
            }
            WorkloadOperation::ScaleDown { first_to_go, relative, .. } => {
                let Some(member) = members.running.iter().find(|pod| is_controlled_by(pod, name)) else {
                    return Ok(harmless(format!("StatefulSet {name} runs no etcd cluster")).into());
                };
                let cluster_key = ClusterKey::from_pod(namespace, member);
                let start = if relative { self.first_ordinal(namespace, name, deadline).await? } else { 0 };
                let snapshot = self.observer.observe_listed(&cluster_key, &pods, deadline).await;
                Ok(scale_down::evaluate_scale_down(&snapshot, name, first_to_go.saturating_add(start)).into())
            }
            WorkloadOperation::OrphanStatefulSet => Ok(orphan_verdict(name).into()),
        }
    }

    /// Returns whether a probe proves that this pod's member has no vote, because it was removed or is a learner.
    async fn has_no_vote(&self, namespace: &str, pod: &Pod, pods: &[Pod], deadline: Deadline) -> bool {
        let cluster_key = ClusterKey::from_pod(namespace, pod);
        let snapshot = self.observer.observe_listed(&cluster_key, pods, deadline).await;
        let target = snapshot.pod(&pod.metadata.name);
        target.is_some_and(|target| assess(&snapshot, target, &Policy::default()).reason == Reason::NotAVoter)
    }

    async fn first_ordinal(
        &self,
        namespace: &str,
        name: &str,
        deadline: Deadline,
    ) -> Result<u32, EvaluationError> {
        let read = self.observer.pods.first_ordinal(namespace, name);
        let read = deadline.within("reading the StatefulSet from the API server", read).await?;
        read.map_err(EvaluationError::Lookup)
    }
}

/// Returns the approval of an operation that removes no pod. It requires neither pods nor policies.
pub(super) fn harmless_verdict(request: &Request, operation: WorkloadOperation) -> Option<Verdict> {
    match operation {
        WorkloadOperation::OrphanStatefulSet => Some(orphan_verdict(&request.name)),
        WorkloadOperation::ScaleDown { fewer: false, .. } => {
            Some(harmless(format!("scaling StatefulSet {} removes no pod", request.name)))
        }
        _ => None,
    }
}

fn orphan_verdict(name: &str) -> Verdict {
    harmless(format!("deleting StatefulSet {name} orphans its pods, which continue to run"))
}

fn evaluate_namespace(namespace: &str, members: &MemberPods<'_>) -> OperationVerdict {
    let Some(member) = members.with_data.first() else {
        return harmless(format!("namespace {namespace} contains no etcd cluster")).into();
    };
    let text = format!(
        "namespace {namespace} contains an etcd cluster ({} pods, including {}): deleting the namespace destroys the \
         cluster permanently",
        members.with_data.len(),
        member.metadata.name
    );
    let advice = break_glass_advice(&format!("namespace {namespace}"));
    OperationVerdict::with_member(protected(text, &format!("To {advice}")), namespace, member)
}

fn evaluate_stateful_set(namespace: &str, name: &str, members: &MemberPods<'_>) -> Verdict {
    let count = members.running.iter().filter(|pod| is_controlled_by(pod, name)).count();
    if count == 0 {
        return harmless(format!("StatefulSet {name} runs no etcd cluster"));
    }
    let text = format!(
        "StatefulSet {name} runs an etcd cluster ({count} pods): deleting the StatefulSet deletes all of them"
    );
    let advice = break_glass_advice(&format!("-n {namespace} statefulset {name}"));
    protected(text, &format!("To orphan the pods, add --cascade=orphan; to {advice}"))
}

fn evaluate_claim(namespace: &str, name: &str, pod: &Pod, has_vote: bool) -> OperationVerdict {
    let pod_name = &pod.metadata.name;
    if !has_vote {
        let text =
            format!("claim {name} holds the data of pod {pod_name}, and the member of that pod has no vote");
        return harmless(text).into();
    }
    let text = format!(
        "claim {name} holds the data of pod {pod_name}, which runs an etcd member: the next \
         restart of the pod loses the member permanently"
    );
    let advice = break_glass_advice(&format!("namespace {namespace}"));
    let remedy = format!("Remove its member from the cluster first; to {advice}");
    OperationVerdict::with_member(protected(text, &remedy), namespace, pod)
}

// === impl MemberPods ===

impl<'a> MemberPods<'a> {
    fn new(pods: &'a [Pod]) -> Self {
        Self {
            running: pods.iter().filter(|pod| runs_member(pod)).collect(),
            with_data: pods.iter().filter(|pod| is_member_pod(pod)).collect(),
        }
    }
}

// === impl OperationVerdict ===

impl OperationVerdict {
    /// Creates a verdict on an operation that would remove the member of this pod.
    fn with_member(verdict: Verdict, namespace: &str, pod: &Pod) -> Self {
        Self { verdict, stateful_set: EventRecord::stateful_set(namespace, pod) }
    }
}

impl From<Verdict> for OperationVerdict {
    fn from(verdict: Verdict) -> Self {
        Self { verdict, stateful_set: None }
    }
}

fn harmless(text: String) -> Verdict {
    Verdict::new(Reason::IntentHarmless, text)
}

fn protected(text: String, remedy: &str) -> Verdict {
    Verdict::new(Reason::IntentProtected, text).with_remedy(remedy)
}

/// Returns the advice to overrule the denial for [`BREAK_GLASS_TIME`] by break-glass annotations of the object.
fn break_glass_advice(object: &str) -> String {
    let now = Timestamp::now();
    let until = now.checked_add(BREAK_GLASS_TIME).unwrap_or(now).strftime("%Y-%m-%dT%H:%M:%SZ");
    format!(
        "overrule the guard for one hour: kubectl annotate --overwrite {object} {ALLOW_UNTIL}={until} \
         {ALLOW_REASON}='REASON'"
    )
}

fn is_controlled_by(pod: &Pod, stateful_set: &str) -> bool {
    pod.controller().is_some_and(|owner| owner.kind == "StatefulSet" && owner.name == *stateful_set)
}

/// Returns whether etcd runs in this pod and the pod is not terminating.
fn runs_member(pod: &Pod) -> bool {
    !pod.is_terminating()
        && !pod.is_finished()
        && etcd_pod::read(pod, &pod.metadata.annotations)
            .is_some_and(|member| pod.is_container_running(&member.container))
}

/// Returns whether this is the pod of a member. A terminating pod counts, because its successor mounts the same claim.
fn is_member_pod(pod: &Pod) -> bool {
    !pod.is_finished() && etcd_pod::read(pod, &pod.metadata.annotations).is_some()
}

fn mounts_claim(pod: &Pod, claim: &str) -> bool {
    pod.spec.volumes.iter().any(|volume| {
        volume.persistent_volume_claim.as_ref().is_some_and(|source| source.claim_name == claim)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(state: &serde_json::Value, metadata: &serde_json::Value) -> Pod {
        let mut pod = json!({
            "metadata": {"name": "etcd-2", "namespace": "prod", "uid": "u2"},
            "spec": {"containers": [{"name": "etcd", "image": "quay.io/coreos/etcd:v3.6.16"}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "etcd", "state": state}]}
        });
        for (name, value) in metadata.as_object().unwrap() {
            pod["metadata"][name] = value.clone();
        }
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn finds_member_data_in_every_pod_state_but_finished() {
        let running = pod(&json!({"running": {}}), &json!({}));
        assert!(runs_member(&running) && is_member_pod(&running));
        let crashing = pod(&json!({"waiting": {"reason": "CrashLoopBackOff"}}), &json!({}));
        assert!(!runs_member(&crashing) && is_member_pod(&crashing));
        let terminating = pod(&json!({"running": {}}), &json!({"deletionTimestamp": "2026-01-31T12:00:00Z"}));
        assert!(!runs_member(&terminating) && is_member_pod(&terminating));
        let mut ended = running;
        ended.status.phase = String::from("Succeeded");
        assert!(!is_member_pod(&ended));
    }
}
