//! Verdicts on pods that could not be read, or not with the annotations of their owners.

use crate::guard::{
    decide::{
        context::EvaluationError,
        evaluator::{Evaluator, inspected_object, overrule, warn_without_reservation},
    },
    explain::advise_inspection,
    model::{deadline::Deadline, request::Request, verdict::Verdict},
    policy::effective::{Mode, ResolvedPolicy},
};
use crate::k8s::pod::Pod;

// === impl Evaluator ===

impl Evaluator {
    /// Returns the verdict on a pod that could not be read. So that break-glass and audit mode do not depend on the API
    /// server, the policy of the copy in the review applies. As it can be forged, nothing is reserved or counted.
    pub(super) fn unreadable_pod_verdict(
        &self,
        request: &Request,
        copy: &Pod,
        resolved: &ResolvedPolicy,
        error: EvaluationError,
    ) -> Verdict {
        let mut verdict = error.into_verdict(request);
        if !verdict.reason.allows() {
            self.advise(request, copy, &mut verdict);
            overrule(&resolved.policy, &mut verdict);
            if verdict.allows() && !request.dry_run {
                warn_without_reservation(request, &mut verdict);
            }
            for warning in &resolved.warnings {
                verdict.warn(warning);
            }
        }
        self.events.record_unreadable_pod(request, &verdict);
        verdict
    }

    /// Returns the verdict on a pod that could not be read with the annotations of its owners. A break-glass of the live pod
    /// itself applies, because no owner can revoke it.
    pub(super) async fn unknown_owners_verdict(
        &self,
        request: &Request,
        error: EvaluationError,
        deadline: Deadline,
    ) -> Verdict {
        let mut verdict = error.into_verdict(request);
        advise_inspection(&mut verdict, inspected_object(request));
        if !verdict.reason.allows()
            && let Ok(pod) = self.observer.live_pod_alone(request, deadline).await
        {
            let mut resolved = self.policies.resolve_for_pod_alone(&pod);
            // An owner may require enforcement where the defaults of the configuration do not.
            resolved.policy.mode = Mode::Enforce;
            self.apply_policy(request, &resolved, &mut verdict);
            if verdict.allows() {
                if !request.dry_run {
                    warn_without_reservation(request, &mut verdict);
                }
                self.events.record_pod(request, &pod, &verdict);
                return verdict;
            }
        }
        self.events.record_unreadable_pod(request, &verdict);
        verdict
    }
}
