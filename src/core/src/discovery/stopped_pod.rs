//! Verdicts that require no snapshot of the cluster: the pod runs no etcd, does not exist, or does not stop a member.

use crate::{
    escape::to_shell_word, objects::pod::Pod, opt_in_label::OptInLabel, reason::Reason, request::Request,
    verdict::Verdict,
};

/// Returns the approval of a deletion that has no effect on the cluster: the pod is terminating or finished, or is the
/// mirror of a static pod.
pub fn verdict_of_stopped_pod(pod: &Pod) -> Option<Verdict> {
    let name = &pod.metadata.name;
    if pod.is_terminating() {
        let text = format!("an earlier deletion of pod {name} was accepted");
        Some(Verdict::new(Reason::AlreadyTerminating, text))
    } else if pod.is_finished() {
        let text = format!("pod {name} has finished (phase {})", pod.status.phase);
        Some(Verdict::new(Reason::PodFinished, text))
    } else if pod.is_mirror() {
        let text = format!("pod {name} is the mirror of a static pod, which continues to run");
        Some(Verdict::new(Reason::MirrorPod, text))
    } else {
        None
    }
}

/// Returns the approval for a pod that runs no etcd.
pub fn not_etcd(pod: &str) -> Verdict {
    Verdict::new(Reason::NotEtcd, format!("pod {pod} runs no etcd"))
}

/// Returns the approval of a request in a namespace without the opt-in label. It warns: the API server sends such a request
/// only if the webhook configuration selects other namespaces than the guard, so that the requester may rely on an
/// evaluation that did not take place.
pub fn namespace_not_guarded(request: &Request, label: &OptInLabel) -> Verdict {
    let text = format!("namespace {} is not guarded", request.namespace);
    let mut verdict = Verdict::new(Reason::NamespaceNotGuarded, text);
    warn_not_guarded(&mut verdict, &request.namespace, label);
    verdict
}

/// Adds the warnings that requests of a namespace are not evaluated, and the command that changes this. Each of them is a
/// warning of its own, because the API server cuts long warnings.
pub fn warn_not_guarded(verdict: &mut Verdict, namespace: &str, label: &OptInLabel) {
    verdict.warn(&format!(
        "namespace {namespace} lacks the label {label}, so that this request was not evaluated"
    ));
    verdict.warn(&format!("to guard it: {}", label_command(namespace, label)));
}

/// Returns the command that opts a namespace in.
pub fn label_command(namespace: &str, label: &OptInLabel) -> String {
    format!("kubectl label namespace {} {label} --overwrite", to_shell_word(namespace))
}

/// Returns the approval for a pod that does not exist.
pub fn pod_gone(request: &Request) -> Verdict {
    Verdict::new(Reason::PodGone, format!("pod {}/{} does not exist", request.namespace, request.name))
}
