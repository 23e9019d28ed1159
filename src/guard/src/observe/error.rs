//! The reason why an evaluation ends without an assessment.

use crate::{
    deadline::DeadlineExceeded,
    reserve::ledger_error::{LedgerError, denied_user},
};
use etcd_guard_core::{
    escape::to_shell_word,
    reason::Reason,
    request::{Operation, Request, WorkloadOperation},
    verdict::Verdict,
};
use etcd_guard_kubernetes::LookupError;

/// Maximum number of pods that are probed although they match no voter. It bounds the duration of a probe round, and
/// exceeds the number of etcd pods in most namespaces.
pub(crate) const MAX_UNMATCHED_PODS: usize = 64;

/// The reason why an evaluation ends without an assessment.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EvaluationError {
    /// An object could not be read from the API server.
    #[error("{0}")]
    Lookup(LookupError),
    /// The reservations could not be read or written.
    #[error("{0}")]
    Ledger(#[from] LedgerError),
    /// The deadline passed.
    #[error("{0}")]
    DeadlineExceeded(#[from] DeadlineExceeded),
    /// A voter runs in no known pod, and the namespace has more etcd pods than are probed to find it.
    #[error("a voter runs in no known pod, and {count} other etcd pods are too many to probe")]
    TooManyPods {
        /// The number of these pods.
        count: usize,
    },
}

// === impl EvaluationError ===

impl EvaluationError {
    /// Returns the verdict on a request after its evaluation ended with this error.
    pub(crate) fn into_verdict(self, request: &Request) -> Verdict {
        const UNAVAILABLE: &str = "Retry when the API server is ready: kubectl get --raw '/readyz?verbose'";
        let subject = subject(request);
        match self {
            Self::Lookup(error @ LookupError::TooLarge { .. }) => {
                let text = format!("could not evaluate {subject}: {error}");
                let scope = match request.namespace.as_str() {
                    "" => String::from("--all-namespaces"),
                    namespace => format!("-n {namespace}"),
                };
                let remedy = format!(
                    "Find objects with large specifications, and shrink or delete them: kubectl get {scope} \
                     pods,statefulsets,pvc -o yaml"
                );
                Verdict::new(Reason::LookupFailed, text).with_remedy(&remedy)
            }
            Self::Lookup(error @ LookupError::Forbidden { .. }) => {
                let text = format!("could not evaluate {subject}: {error}");
                let user = match &error {
                    LookupError::Forbidden { cause, .. } => denied_user(cause),
                    _ => None,
                };
                let remedy = format!(
                    "A permission of the guard is missing: apply its manifests again (for custom resources that own members, \
                     deploy/owners-role.yaml), and check: kubectl auth can-i --list --as={}",
                    to_shell_word(user.unwrap_or("system:serviceaccount:etcd-guard:etcd-guard"))
                );
                Verdict::new(Reason::LookupFailed, text).with_remedy(&remedy)
            }
            Self::Lookup(error) => {
                let text = format!("could not evaluate {subject}: {error}");
                Verdict::new(Reason::LookupFailed, text).with_remedy(UNAVAILABLE)
            }
            Self::Ledger(error) => {
                let text = format!("could not reserve the deletion of {subject}: {error}");
                Verdict::new(Reason::LedgerUnavailable, text).with_remedy(&error.remedy(&request.namespace))
            }
            Self::DeadlineExceeded(error) => {
                let (limit, cause) = (humantime::format_duration(error.limit), error.cause());
                let text = format!("could not evaluate {subject} within {limit}: {cause}");
                let remedy =
                    "Retry. If it happens again, see what is slow: kubectl get --raw '/readyz?verbose'";
                Verdict::new(Reason::DeadlineExceeded, text).with_remedy(remedy)
            }
            Self::TooManyPods { count } => {
                let text = format!(
                    "could not evaluate {subject}: a voter of its cluster runs in no pod of the same owner, and {count} \
                     other etcd pods of namespace {} match no peer URL, name or address of that voter; at most \
                     {MAX_UNMATCHED_PODS} are probed",
                    request.namespace
                );
                let remedy = format!(
                    "Compare the peer URLs of the member list with the pods: kubectl -n {} get pods -o wide",
                    request.namespace
                );
                Verdict::new(Reason::AmbiguousMember, text).with_remedy(&remedy)
            }
        }
    }
}

/// Returns kind and name of the object that a request deletes or scales.
fn subject(request: &Request) -> String {
    let kind = match request.operation {
        Operation::Delete | Operation::Evict | Operation::Update(_) => "pod",
        Operation::Workload(WorkloadOperation::DeleteNamespace) => "namespace",
        Operation::Workload(WorkloadOperation::DeleteClaim) => "PersistentVolumeClaim",
        Operation::Workload(
            WorkloadOperation::DeleteStatefulSet
            | WorkloadOperation::OrphanStatefulSet
            | WorkloadOperation::ScaleDown { .. },
        ) => "StatefulSet",
        Operation::Workload(WorkloadOperation::DeleteResource(kind)) => kind.as_str(),
        Operation::Workload(
            WorkloadOperation::DeleteOwner
            | WorkloadOperation::OrphanOwner
            | WorkloadOperation::ScaleOwner { .. },
        ) => request.owner.as_ref().map_or("object", |owner| owner.kind.as_str()),
        Operation::Workload(WorkloadOperation::DeleteNode { .. }) => "node",
    };
    format!("{kind} {}", request.name)
}
