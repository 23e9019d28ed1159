//! Verdicts on what deletions of pods follow from.

use super::{
    Guard, NoLook,
    consequence::is_garbage_collector,
    deadline::Deadline,
    etcd_pod,
    family::Family,
    intent::Intent,
    policy::Resolved,
    request::Request,
    scale,
    verdict::{Reason, Verdict},
};
use crate::k8s::pod::{Container, Pod};

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
        let stateful_set = match intent {
            Intent::DeleteStatefulSet | Intent::ScaleDown { .. } => Some(name.as_str()),
            Intent::DeleteNamespace | Intent::DeleteClaim | Intent::OrphanStatefulSet => None,
        };
        let Resolved { policy, mistakes } = self.policies.of_owner(namespace, stateful_set);
        let mut verdict = match self.weigh(request, intent, deadline).await {
            Ok(verdict) => verdict,
            Err(no_look) => no_look.verdict(request),
        };
        self.apply(&policy, &mistakes, &mut verdict);
        verdict
    }

    async fn weigh(&self, request: &Request, intent: Intent, deadline: Deadline) -> Result<Verdict, NoLook> {
        let (name, namespace) = (&request.name, &request.namespace);
        let list = self.looker.pods.list(namespace);
        let mut pods =
            deadline.within("listing the pods from the apiserver", list).await?.map_err(NoLook::Lookup)?;
        self.looker.annotations.inherit(namespace, &mut pods, &etcd_pod::ANNOTATIONS);
        let members: Vec<&Pod> = pods.iter().filter(|pod| runs_member(pod)).collect();
        let of_set =
            |pod: &&&Pod| pod.controller().is_some_and(|it| it.kind == "StatefulSet" && it.name == *name);
        match intent {
            Intent::DeleteNamespace => Ok(match members.first() {
                None => harmless(format!("namespace {namespace} holds no living etcd cluster")),
                Some(member) => protected(format!(
                    "namespace {namespace} holds a living etcd cluster ({} pods, {} among them): deleting the namespace \
                     deletes it for good. If that is meant: {}",
                    members.len(),
                    member.metadata.name,
                    break_glass(&format!("namespace {namespace}"))
                )),
            }),
            Intent::DeleteStatefulSet => Ok(match members.iter().filter(of_set).count() {
                0 => harmless(format!("StatefulSet {name} runs no living etcd cluster")),
                count => protected(format!(
                    "StatefulSet {name} runs a living etcd cluster ({count} pods): deleting it deletes them all. To keep \
                     the pods: kubectl -n {namespace} delete statefulset {name} --cascade=orphan. If it is meant: {}",
                    break_glass(&format!("-n {namespace} statefulset {name}"))
                )),
            }),
            Intent::DeleteClaim => Ok(match members.iter().find(|pod| mounts(pod, name)) {
                None => harmless(format!("no living etcd member holds claim {name}")),
                Some(pod) => protected(format!(
                    "claim {name} holds the data of pod {}, which runs an etcd member: at the pod's next restart the \
                     member is lost for good. Remove the member first: kubectl -n {namespace} exec {} -- etcdctl member \
                     list, then member remove ID; or, if it is meant: {}",
                    pod.metadata.name,
                    pod.metadata.name,
                    break_glass(&format!("namespace {namespace}"))
                )),
            }),
            Intent::ScaleDown { first_to_go, .. } => {
                let Some(any) = members.iter().find(|pod| of_set(pod)) else {
                    return Ok(harmless(format!("StatefulSet {name} runs no living etcd cluster")));
                };
                let family = Family::of(namespace, any);
                let snapshot = self.looker.look_at_list(&family, &pods, deadline).await?;
                Ok(scale::judge(&snapshot, name, first_to_go))
            }
            Intent::OrphanStatefulSet => Ok(harmless(format!("StatefulSet {name} leaves its pods alone"))),
        }
    }
}

fn harmless(text: String) -> Verdict {
    Verdict::new(Reason::IntentHarmless, text)
}

fn protected(text: String) -> Verdict {
    Verdict::new(Reason::IntentProtected, text)
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

fn mounts(pod: &Pod, claim: &str) -> bool {
    pod.spec
        .volumes
        .iter()
        .any(|it| it.persistent_volume_claim.as_ref().is_some_and(|it| it.claim_name == claim))
}
