//! Verdicts on workload operations.

use k8s_openapi::api::core::v1::ObjectReference;

use etcd_guard_core::{
    escape::to_shell_word, objects::pod::Pod, policy::ResolvedPolicy, reason::Reason, verdict::Verdict,
};
use etcd_guard_kubernetes::EventRecord;

/// The verdict on a workload operation.
pub(crate) struct OperationVerdict {
    pub(crate) verdict: Verdict,
    /// The StatefulSet of the member that the operation would affect, if it is not the object of the operation itself.
    pub(crate) stateful_set: Option<ObjectReference>,
    /// The policy of the members that the operation would affect, if it is not the policy of the object's owners.
    pub(crate) policy: Option<ResolvedPolicy>,
    /// Namespace and name of a member's pod that the verdict concerns.
    pub(crate) member: Option<(String, String)>,
    /// Whether objects of members are deleted with the object.
    pub(crate) has_cascade: bool,
}

// === impl OperationVerdict ===

impl OperationVerdict {
    /// Creates a verdict on an operation that would affect the member of this pod.
    pub(super) fn with_member(verdict: Verdict, namespace: &str, pod: &Pod) -> Self {
        let stateful_set = EventRecord::stateful_set(namespace, pod);
        let member = Some((namespace.to_owned(), pod.metadata.name.clone()));
        Self { stateful_set, member, has_cascade: true, ..Self::from(verdict) }
    }

    /// Adds the policy of the members that the operation would affect.
    pub(super) fn with_policy(self, policy: ResolvedPolicy) -> Self {
        Self { policy: Some(policy), ..self }
    }
}

impl From<Verdict> for OperationVerdict {
    fn from(verdict: Verdict) -> Self {
        Self { verdict, stateful_set: None, policy: None, member: None, has_cascade: false }
    }
}

pub(super) fn harmless(text: String) -> Verdict {
    Verdict::new(Reason::IntentHarmless, text)
}

/// Returns a denial with the ways to continue, each of which ends with a command.
pub(super) fn protected(text: String, remedies: &[&str]) -> Verdict {
    let mut denial = Verdict::new(Reason::IntentProtected, text);
    for remedy in remedies {
        denial.add_advice(remedy);
    }
    denial
}

/// Returns the arguments of `kubectl` for the object whose break-glass applies to this pod: its StatefulSet, or else its
/// namespace. The API server does not validate the name in an ownerReference, and a StatefulSet has no name that a shell
/// or `kubectl` would interpret.
pub(crate) fn owner_arguments(namespace: &str, pod: &Pod) -> String {
    let is_plain = |name: &&str| !name.starts_with('-') && to_shell_word(name) == **name;
    match pod.stateful_set().filter(is_plain) {
        Some(name) => format!("-n {namespace} statefulset {name}"),
        None => format!("namespace {namespace}"),
    }
}

/// Returns the first element with a policy that enforces a denial, or else the first element.
pub(super) fn first_enforced<T>(
    elements: impl IntoIterator<Item = (T, ResolvedPolicy)>,
) -> Option<(T, ResolvedPolicy)> {
    let mut first = None;
    for element in elements {
        if element.1.policy.enforces_denials() {
            return Some(element);
        }
        first.get_or_insert(element);
    }
    first
}
