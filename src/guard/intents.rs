//! Verdicts on what deletions of pods follow from.

use k8s_openapi::api::core::v1::ObjectReference;

use super::{
    Guard, NoLook,
    assess::assess,
    consequence::is_garbage_collector,
    deadline::Deadline,
    etcd_pod,
    family::Family,
    intent::Intent,
    policy::{Policy, Resolved},
    request::Request,
    scale,
    verdict::{Reason, Verdict},
};
use crate::k8s::{
    Telling,
    pod::{Container, Pod},
};

/// A verdict on what is meant.
struct Weighed {
    verdict: Verdict,
    /// The StatefulSet whose members it would cost, where something else is meant.
    stateful_set: Option<ObjectReference>,
}

// === impl Guard ===

impl Guard {
    pub(super) async fn judge_intent(
        &self,
        request: &Request,
        intent: Intent,
        deadline: Deadline,
    ) -> Verdict {
        let (name, namespace) = (&request.name, &request.namespace);
        if intent == Intent::OrphanStatefulSet {
            return harmless(format!("StatefulSet {name} goes and leaves its pods alone"));
        }
        if let Intent::ScaleDown { fewer: false, .. } = intent {
            return harmless(format!("StatefulSet {name} loses no pod"));
        }
        if intent != Intent::DeleteNamespace {
            if self.is_namespace_terminating(namespace, deadline).await {
                let text = format!("namespace {namespace} is being deleted, and {name} with it");
                return Verdict::new(Reason::NamespaceTerminating, text);
            }
            // Its second name is that of all controllers, and one of them scales.
            let is_scale_down = matches!(intent, Intent::ScaleDown { .. });
            if !is_scale_down && is_garbage_collector(&request.user) {
                return Verdict::new(
                    Reason::OwnerDeleted,
                    format!("the owner of {name} was deleted, and {name} with it"),
                );
            }
        }
        let Resolved { policy, mistakes } = self.policies.of_owner(namespace, intent.stateful_set(name));
        let weighed = self.weigh(request, intent, deadline).await;
        let Weighed { mut verdict, stateful_set } =
            weighed.unwrap_or_else(|no_look| no_look.verdict(request).into());
        self.apply(request, &policy, &mistakes, &mut verdict);
        self.tell_of_intent(request, intent, stateful_set, &verdict);
        verdict
    }

    async fn weigh(&self, request: &Request, intent: Intent, deadline: Deadline) -> Result<Weighed, NoLook> {
        let (name, namespace) = (&request.name, &request.namespace);
        let list = self.looker.pods.list(namespace);
        let mut pods =
            deadline.within("listing the pods from the apiserver", list).await?.map_err(NoLook::Lookup)?;
        self.looker.inherit(namespace, &mut pods);
        let members: Vec<&Pod> = pods.iter().filter(|pod| runs_member(pod)).collect();
        // Data is there whether its container runs at this moment or not.
        let with_data: Vec<&Pod> = pods.iter().filter(|pod| has_member(pod)).collect();
        let of_set =
            |pod: &&&Pod| pod.controller().is_some_and(|it| it.kind == "StatefulSet" && it.name == *name);
        match intent {
            Intent::DeleteNamespace => {
                let Some(member) = with_data.first() else {
                    return Ok(harmless(format!("namespace {namespace} holds no living etcd cluster")).into());
                };
                let text = format!(
                    "namespace {namespace} holds a living etcd cluster ({} pods, {} among them): deleting the namespace \
                     deletes it for good",
                    with_data.len(),
                    member.metadata.name
                );
                let next = format!("If that is meant: {}", break_glass(&format!("namespace {namespace}")));
                let verdict = protected(text, &next);
                Ok(Weighed::of_member(verdict, namespace, member))
            }
            Intent::DeleteStatefulSet => Ok(match members.iter().filter(of_set).count() {
                0 => harmless(format!("StatefulSet {name} runs no living etcd cluster")),
                count => protected(
                    format!(
                        "StatefulSet {name} runs a living etcd cluster ({count} pods): deleting it deletes them all"
                    ),
                    &format!(
                        "To keep the pods: kubectl -n {namespace} delete statefulset {name} --cascade=orphan. If it is \
                         meant: {}",
                        break_glass(&format!("-n {namespace} statefulset {name}"))
                    ),
                ),
            }
            .into()),
            Intent::DeleteClaim => {
                let Some(pod) = with_data.iter().find(|pod| mounts(pod, name)) else {
                    return Ok(harmless(format!("no living etcd member holds claim {name}")).into());
                };
                if self.has_no_vote(namespace, pod, &pods, deadline).await {
                    let text = format!(
                        "claim {name} holds the data of pod {}, whose member has no vote",
                        pod.metadata.name
                    );
                    return Ok(harmless(text).into());
                }
                let text = format!(
                    "claim {name} holds the data of pod {}, which runs an etcd member: at the pod's next restart the \
                     member is lost for good",
                    pod.metadata.name
                );
                let next = format!(
                    "Remove the member first: kubectl -n {namespace} exec {} -- etcdctl member list, then member remove \
                     ID; or, if it is meant: {}",
                    pod.metadata.name,
                    break_glass(&format!("namespace {namespace}"))
                );
                let verdict = protected(text, &next);
                Ok(Weighed::of_member(verdict, namespace, pod))
            }
            Intent::ScaleDown { first_to_go, relative, .. } => {
                let Some(any) = members.iter().find(|pod| of_set(pod)) else {
                    return Ok(harmless(format!("StatefulSet {name} runs no living etcd cluster")).into());
                };
                let family = Family::of(namespace, any);
                let start = if relative { self.first_ordinal(namespace, name, deadline).await? } else { 0 };
                let first_to_go = first_to_go.saturating_add(start);
                let snapshot = self.looker.look_at_list(&family, &pods, deadline).await?;
                Ok(scale::judge(&snapshot, name, first_to_go).into())
            }
            Intent::OrphanStatefulSet => {
                Ok(harmless(format!("StatefulSet {name} leaves its pods alone")).into())
            }
        }
    }
}

impl Guard {
    /// Whether it was proven just now that this pod's member is none of the voters: removed, or a learner. Whatever is not
    /// proven is a no.
    async fn has_no_vote(&self, namespace: &str, pod: &Pod, pods: &[Pod], deadline: Deadline) -> bool {
        let family = Family::of(namespace, pod);
        let Ok(snapshot) = self.looker.look_at_list(&family, pods, deadline).await else { return false };
        let target = snapshot.pod(&pod.metadata.name);
        target.is_some_and(|it| assess(&snapshot, it, &Policy::default()).reason == Reason::NotAVoter)
    }

    async fn first_ordinal(&self, namespace: &str, name: &str, deadline: Deadline) -> Result<u32, NoLook> {
        let read = self.looker.pods.first_ordinal(namespace, name);
        let read = deadline.within("reading the StatefulSet from the apiserver", read).await?;
        read.map_err(NoLook::Lookup)
    }
}

// === impl Weighed ===

impl Weighed {
    /// On what would cost this pod's cluster a member.
    fn of_member(verdict: Verdict, namespace: &str, pod: &Pod) -> Self {
        Self { verdict, stateful_set: Telling::stateful_set(namespace, pod) }
    }
}

impl From<Verdict> for Weighed {
    fn from(verdict: Verdict) -> Self {
        Self { verdict, stateful_set: None }
    }
}

fn harmless(text: String) -> Verdict {
    Verdict::new(Reason::IntentHarmless, text)
}

fn protected(text: String, next: &str) -> Verdict {
    Verdict::new(Reason::IntentProtected, text).with_next(next)
}

/// What to write on which object to overrule the denial; the end is the reader's to choose.
fn break_glass(object: &str) -> String {
    format!(
        "kubectl annotate {object} etcd-guard.io/allow-delete-until=TIME etcd-guard.io/allow-delete-reason=WHY (TIME at \
         most 24 h ahead)"
    )
}

/// Whether etcd runs in this pod and is to go on running.
fn runs_member(pod: &Pod) -> bool {
    let runs = |container: &Container| pod.runs(&container.name);
    !pod.is_terminating()
        && !pod.is_finished()
        && etcd_pod::read(pod, &pod.metadata.annotations)
            .is_some_and(|it| pod.spec.containers.iter().any(|at| at.name == it.container && runs(at)))
}

/// Whether this pod is a member's, in whatever state: a pod that is going comes back to its claim.
fn has_member(pod: &Pod) -> bool {
    !pod.is_finished() && etcd_pod::read(pod, &pod.metadata.annotations).is_some()
}

fn mounts(pod: &Pod, claim: &str) -> bool {
    pod.spec
        .volumes
        .iter()
        .any(|it| it.persistent_volume_claim.as_ref().is_some_and(|it| it.claim_name == claim))
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
    fn a_member_has_data_whatever_state_its_pod_is_in() {
        let running = pod(&json!({"running": {}}), &json!({}));
        assert!(runs_member(&running) && has_member(&running));
        let crashing = pod(&json!({"waiting": {"reason": "CrashLoopBackOff"}}), &json!({}));
        assert!(!runs_member(&crashing) && has_member(&crashing));
        let going = pod(&json!({"running": {}}), &json!({"deletionTimestamp": "2026-01-31T12:00:00Z"}));
        assert!(!runs_member(&going) && has_member(&going));
        let mut ended = running;
        ended.status.phase = String::from("Succeeded");
        assert!(!has_member(&ended));
    }
}
