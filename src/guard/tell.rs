//! Which verdicts become events: denials, also those that audit mode only warns of, transfers, and whatever a break-glass let
//! through.

use k8s_openapi::api::core::v1::ObjectReference;

use super::{
    Guard,
    intent::Intent,
    request::{Operation, Request},
    verdict::{Reason, Verdict},
};
use crate::k8s::{Telling, pod::Pod};

// === impl Guard ===

impl Guard {
    /// Tells of a verdict on a pod, where somebody may want to hear of it.
    pub(super) fn tell_of_pod(&self, request: &Request, pod: &Pod, verdict: &Verdict) {
        let namespace = &request.namespace;
        self.tell(request, verdict, Telling::pod(namespace, pod), Telling::stateful_set(namespace, pod));
    }

    /// Tells of a verdict on a pod of which nothing could be read but its name, and on the StatefulSet whose pods have such
    /// names: of that the watch knows the uid as well.
    pub(super) fn tell_of_unread_pod(&self, request: &Request, verdict: &Verdict) {
        let (namespace, name) = (request.namespace.as_str(), request.name.as_str());
        let stateful_set = self.looker.annotations.stateful_set_by_pod_name(namespace, name);
        let stateful_set = stateful_set
            .map(|(set, uid)| Telling::object(("apps/v1", "StatefulSet"), Some(namespace), &set, Some(&uid)));
        let pod = Telling::object(("v1", "Pod"), Some(namespace), name, None);
        self.tell(request, verdict, pod, stateful_set);
    }

    /// Tells of a verdict on what pods' deletions follow from; `stateful_set` is that of the members which it would cost,
    /// if it is another object.
    pub(super) fn tell_of_intent(
        &self,
        request: &Request,
        intent: Intent,
        stateful_set: Option<ObjectReference>,
        verdict: &Verdict,
    ) {
        let (name, namespace) = (request.name.as_str(), request.namespace.as_str());
        let (kind, namespace) = match intent {
            Intent::DeleteStatefulSet | Intent::OrphanStatefulSet | Intent::ScaleDown { .. } => {
                (("apps/v1", "StatefulSet"), Some(namespace))
            }
            Intent::DeleteClaim => (("v1", "PersistentVolumeClaim"), Some(namespace)),
            Intent::DeleteNamespace => (("v1", "Namespace"), None),
        };
        let object = Telling::object(kind, namespace, name, request.uid.as_deref());
        // In a namespace that goes nothing can be written any more.
        let goes_as_well = intent == Intent::DeleteNamespace && verdict.allows();
        let stateful_set = stateful_set.filter(|_| !goes_as_well);
        self.tell(request, verdict, object, stateful_set);
    }

    /// Never of a dry run, which is to leave no trace.
    fn tell(
        &self,
        request: &Request,
        verdict: &Verdict,
        object: ObjectReference,
        stateful_set: Option<ObjectReference>,
    ) {
        let is_denial = !verdict.reason.allows();
        let is_told = is_denial || matches!(verdict.reason, Reason::BreakGlass | Reason::LeaderTransferred);
        if request.dry_run || !is_told {
            return;
        }
        let note = if verdict.audited {
            format!("would be denied without audit mode: {}", verdict.text())
        } else {
            verdict.text()
        };
        self.events.tell(Telling {
            object,
            stateful_set,
            warns: verdict.reason != Reason::LeaderTransferred,
            reason: verdict.reason.word(),
            action: match request.operation {
                Operation::Evict => "Evict",
                Operation::Intent(Intent::ScaleDown { .. }) => "Scale",
                Operation::Delete | Operation::Intent(_) => "Delete",
            },
            note,
        });
    }
}
