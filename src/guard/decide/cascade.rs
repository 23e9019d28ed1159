//! Deletions that follow from an accepted deletion of the namespace or of the StatefulSet. A denial would preserve no
//! data, and would leave the parent and its dependents half deleted. The guard therefore evaluates only the deletion of
//! the parent object.

use crate::guard::model::{deadline::Deadline, reason::Reason, request::Request, verdict::Verdict};
use crate::k8s::{AnnotationCache, ApiReader, pod::Pod};

/// Users that delete the dependents of deleted objects. The second is the user of all controllers if the controller
/// manager runs without `--use-service-account-credentials`.
const GARBAGE_COLLECTORS: [&str; 2] =
    ["system:serviceaccount:kube-system:generic-garbage-collector", "system:kube-controller-manager"];

/// Returns whether this user deletes the dependents of deleted objects.
pub(super) fn is_garbage_collector(user: &str) -> bool {
    GARBAGE_COLLECTORS.contains(&user)
}

/// Detects deletions that follow from another deletion.
pub(super) struct CascadeDetector {
    pub(super) annotations: AnnotationCache,
    pub(super) pods: ApiReader,
}

// === impl CascadeDetector ===

impl CascadeDetector {
    /// Returns the approval of a pod's deletion that follows from another deletion. Returns `None` for any other
    /// deletion, and if the parent object cannot be read. The pod is then evaluated as usual.
    pub(super) async fn pod_verdict(
        &self,
        request: &Request,
        pod: &Pod,
        deadline: Deadline,
    ) -> Option<Verdict> {
        let (name, namespace) = (&request.name, &request.namespace);
        if self.is_namespace_terminating(namespace, deadline).await {
            return Some(namespace_terminating(namespace, name));
        }
        if !is_garbage_collector(&request.user) {
            return None;
        }
        let owner = pod.controller().filter(|owner| owner.kind == "StatefulSet")?;
        let read = self.pods.is_stateful_set_terminating(namespace, &owner.name, &owner.uid);
        match deadline.within("reading the StatefulSet from the API server", read).await {
            Ok(Ok(true)) => {
                let text =
                    format!("StatefulSet {} was deleted, and its pod {name} is deleted with it", owner.name);
                Some(Verdict::new(Reason::OwnerDeleted, text))
            }
            Ok(Ok(false) | Err(_)) | Err(_) => None,
        }
    }

    /// Returns the approval of a workload operation that follows from another deletion. For a scale-down the user
    /// proves nothing, because the controllers that scale StatefulSets can have the user of the garbage collector.
    pub(super) async fn operation_verdict(
        &self,
        request: &Request,
        is_scale_down: bool,
        deadline: Deadline,
    ) -> Option<Verdict> {
        let (name, namespace) = (&request.name, &request.namespace);
        if self.is_namespace_terminating(namespace, deadline).await {
            return Some(namespace_terminating(namespace, name));
        }
        if !is_scale_down && is_garbage_collector(&request.user) {
            let text = format!("the owner of {name} was deleted, and {name} is deleted with it");
            return Some(Verdict::new(Reason::OwnerDeleted, text));
        }
        None
    }

    /// Returns whether the deletion of a namespace was accepted. Only if the watch shows the deletion, a live read
    /// confirms it.
    async fn is_namespace_terminating(&self, name: &str, deadline: Deadline) -> bool {
        if !self.annotations.is_namespace_terminating(name) {
            return false;
        }
        let read = self.pods.is_namespace_terminating(name);
        let read = deadline.within("reading the namespace from the API server", read).await;
        matches!(read, Ok(Ok(true)))
    }
}

fn namespace_terminating(namespace: &str, name: &str) -> Verdict {
    let text = format!("namespace {namespace} is terminating, and {name} is deleted with it");
    Verdict::new(Reason::NamespaceTerminating, text)
}
