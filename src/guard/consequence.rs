//! Deletions that only follow from one that was accepted: of the namespace, or of the StatefulSet. To hold these up would
//! save nothing and leave both half deleted; what was meant is judged where it is meant.

use super::{
    Guard,
    deadline::Deadline,
    request::Request,
    verdict::{Reason, Verdict},
};
use crate::k8s::pod::Pod;

/// Who deletes the dependents of what was deleted. The second name is that of all controllers together, where they have
/// no service accounts of their own.
const GARBAGE_COLLECTORS: [&str; 2] =
    ["system:serviceaccount:kube-system:generic-garbage-collector", "system:kube-controller-manager"];

/// Whether this is the controller that deletes the dependents of what was deleted.
pub(super) fn is_garbage_collector(user: &str) -> bool {
    GARBAGE_COLLECTORS.contains(&user)
}

// === impl Guard ===

impl Guard {
    /// The verdict, if this deletion only follows from another. If that cannot be found out it is judged like any other.
    pub(super) async fn consequence(
        &self,
        request: &Request,
        pod: &Pod,
        deadline: Deadline,
    ) -> Option<Verdict> {
        let (name, namespace) = (&request.name, &request.namespace);
        if self.is_namespace_terminating(namespace, deadline).await {
            let text = format!("namespace {namespace} is being deleted, and pod {name} with it");
            return Some(Verdict::new(Reason::NamespaceTerminating, text));
        }
        if !is_garbage_collector(&request.user) {
            return None;
        }
        let owner = pod.controller().filter(|owner| owner.kind == "StatefulSet")?;
        let going = self.looker.pods.is_stateful_set_going(namespace, &owner.name, &owner.uid);
        match deadline.within("reading the StatefulSet from the apiserver", going).await {
            Ok(Ok(true)) => {
                let text = format!("StatefulSet {} was deleted, and pod {name} with it", owner.name);
                Some(Verdict::new(Reason::OwnerDeleted, text))
            }
            Ok(Ok(false) | Err(_)) | Err(_) => None,
        }
    }

    /// Whether the namespace's deletion was surely accepted: the watch says so at no cost, and a live read confirms it.
    pub(super) async fn is_namespace_terminating(&self, name: &str, deadline: Deadline) -> bool {
        if !self.policies.is_namespace_terminating(name) {
            return false;
        }
        let live = self.looker.pods.is_namespace_terminating(name);
        let live = deadline.within("reading the namespace from the apiserver", live).await;
        matches!(live, Ok(Ok(true)))
    }
}
