//! Which verdicts become events: denials, also those that audit mode only warns of, transfers, and whatever a break-glass let
//! through.

use super::{
    Guard,
    request::{Operation, Request},
    verdict::{Reason, Verdict},
};
use crate::k8s::{Telling, pod::Pod};

// === impl Guard ===

impl Guard {
    /// Tells of a verdict on a pod, where somebody may want to hear of it. Never of a dry run, which is to leave no trace.
    pub(super) fn tell(&self, request: &Request, pod: &Pod, verdict: &Verdict) {
        let is_denial = !verdict.reason.allows();
        let is_told = is_denial || matches!(verdict.reason, Reason::BreakGlass | Reason::LeaderTransferred);
        if request.dry_run || !is_told {
            return;
        }
        let (pod, stateful_set) = Telling::about(&request.namespace, pod);
        let note = if verdict.audited {
            format!("would be denied without audit mode: {}", verdict.text())
        } else {
            verdict.text()
        };
        self.events.tell(Telling {
            pod,
            stateful_set,
            warns: verdict.reason != Reason::LeaderTransferred,
            reason: verdict.reason.word(),
            action: match request.operation {
                Operation::Evict => "Evict",
                Operation::Delete | Operation::Intent(_) => "Delete",
            },
            note,
        });
    }
}
