//! Verdicts that require no snapshot of the cluster: the pod runs no etcd, does not exist, or does not stop a member.

use crate::guard::model::{reason::Reason, request::Request, verdict::Verdict};
use crate::k8s::pod::Pod;

/// Returns the approval of a deletion that has no effect on the cluster: the pod is terminating or finished, or is the
/// mirror of a static pod.
pub(in crate::guard) fn settled_verdict(pod: &Pod) -> Option<Verdict> {
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
pub(in crate::guard) fn not_etcd(pod: &str) -> Verdict {
    Verdict::new(Reason::NotEtcd, format!("pod {pod} runs no etcd"))
}

/// Returns the approval of a request in a namespace without the opt-in label.
pub(in crate::guard) fn namespace_not_guarded(request: &Request) -> Verdict {
    let text = format!("namespace {} is not guarded", request.namespace);
    Verdict::new(Reason::NamespaceNotGuarded, text)
}

/// Returns the approval for a pod that does not exist.
pub(in crate::guard) fn pod_gone(request: &Request) -> Verdict {
    Verdict::new(Reason::PodGone, format!("pod {}/{} does not exist", request.namespace, request.name))
}
