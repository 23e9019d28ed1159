//! Events for verdicts: denials (in audit mode, the warnings that replace them), leader transfers, and approvals under
//! break-glass annotations.

use k8s_openapi::api::core::v1::ObjectReference;

use crate::evaluation::Evaluation;
use etcd_guard_core::{
    objects::pod::Pod,
    reason::Reason,
    request::{Operation, WorkloadOperation},
    verdict::Verdict,
};
use etcd_guard_kubernetes::EventRecord;

/// Records a verdict on a pod, and on the StatefulSet of that pod.
pub(super) fn record_pod(on: &Evaluation<'_>, pod: &Pod, verdict: &Verdict) {
    let namespace = &on.request.namespace;
    let stateful_set = EventRecord::stateful_set(namespace, pod);
    record(on, verdict, EventRecord::pod(namespace, pod), stateful_set);
}

/// Records a denial on a pod that could not be read, and on its StatefulSet. The name of the StatefulSet is
/// derived from the name of the pod, and the watch of StatefulSets provides the uid.
pub(super) fn record_unreadable_pod(on: &Evaluation<'_>, verdict: &Verdict) {
    // Without a live pod, the break-glass and its text may be forged.
    if verdict.reason == Reason::BreakGlass {
        return;
    }
    let request = on.request;
    let (namespace, name) = (request.namespace.as_str(), request.name.as_str());
    let stateful_set = on.services.observer.annotations.stateful_set_by_pod_name(namespace, name);
    let stateful_set = stateful_set
        .map(|(set, uid)| EventRecord::object(("apps/v1", "StatefulSet"), Some(namespace), &set, Some(&uid)));
    let pod = EventRecord::object(("v1", "Pod"), Some(namespace), name, request.object_uid());
    record(on, verdict, pod, stateful_set);
}

/// Records a verdict on a workload operation. `stateful_set` is the StatefulSet of the member that the operation
/// would remove, if it is not the object of the operation itself.
pub(super) fn record_operation(
    on: &Evaluation<'_>,
    operation: WorkloadOperation,
    stateful_set: Option<ObjectReference>,
    verdict: &Verdict,
) {
    let request = on.request;
    let (name, namespace) = (request.name.as_str(), request.namespace.as_str());
    let owner = request.owner.clone().unwrap_or_default();
    let api_version = format!("{}/{}", owner.group, owner.version);
    let (kind, namespace) = match operation {
        WorkloadOperation::DeleteOwner
        | WorkloadOperation::OrphanOwner
        | WorkloadOperation::ScaleOwner { .. } => {
            ((api_version.as_str(), owner.kind.as_str()), Some(namespace))
        }
        WorkloadOperation::DeleteStatefulSet
        | WorkloadOperation::OrphanStatefulSet
        | WorkloadOperation::ScaleDown { .. } => (("apps/v1", "StatefulSet"), Some(namespace)),
        WorkloadOperation::DeleteClaim => (("v1", "PersistentVolumeClaim"), Some(namespace)),
        WorkloadOperation::DeleteResource(kind) => (("v1", kind.as_str()), Some(namespace)),
        WorkloadOperation::DeleteNamespace => (("v1", "Namespace"), None),
        WorkloadOperation::DeleteNode { .. } => (("v1", "Node"), None),
    };
    let object = EventRecord::object(kind, namespace, name, request.uid.as_deref());
    // The API server rejects new objects in a terminating namespace.
    let is_terminating = operation == WorkloadOperation::DeleteNamespace && verdict.allows();
    record(on, verdict, object, stateful_set.filter(|_| !is_terminating));
}

/// Records a verdict unless the request is a dry run, which must have no effects.
fn record(
    on: &Evaluation<'_>,
    verdict: &Verdict,
    object: ObjectReference,
    stateful_set: Option<ObjectReference>,
) {
    let is_denial = !verdict.reason.allows();
    let is_recorded = is_denial || matches!(verdict.reason, Reason::BreakGlass | Reason::LeaderTransferred);
    let request = on.request;
    if request.dry_run || !is_recorded {
        return;
    }
    let note = if verdict.audited {
        format!("would be denied without audit mode: {}: {}", verdict.reason, verdict.line())
    } else {
        format!("{}: {}", verdict.reason, verdict.line())
    };
    on.services.events.record(EventRecord {
        object,
        stateful_set,
        is_warning: verdict.reason != Reason::LeaderTransferred,
        reason: verdict.reason.as_str(),
        action: match request.operation {
            Operation::Evict => "Evict",
            Operation::Update(_) => "Update",
            Operation::Workload(
                WorkloadOperation::ScaleDown { .. } | WorkloadOperation::ScaleOwner { .. },
            ) => "Scale",
            Operation::Delete | Operation::Workload(_) => "Delete",
        },
        note,
        documentation: is_denial.then(|| on.services.manual.reason(verdict.reason)),
    });
}
