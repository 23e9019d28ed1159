//! Evictions that the API server would refuse after an approval, because of a budget (`PodDisruptionBudget`). Such an
//! approval would reserve the pod or move leadership for nothing, and a drain repeats it every few seconds for ever.

use std::time::Duration;

use tokio::time::timeout;

use crate::evaluation::{Evaluation, Target};
use etcd_guard_core::{
    assess::Assessment,
    escape::{MAX_ERROR_CHARS, to_bounded_line, to_shell_word},
    objects::disruption_budget::{BudgetRefusal, budget_refusal},
    reason::Reason,
    request::Operation,
    snapshot::Snapshot,
    verdict::Verdict,
};

/// Maximum time of the read of the budgets. An approval does not depend on it, so it must leave time for the rest.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the denial of an eviction that the API server would refuse. If the budgets cannot be read, the evaluation
/// continues as if there were none: the API server reads them itself. Break-glass and audit mode overrule denials of the
/// guard, so nothing is read for them.
pub(super) async fn denial(
    on: &Evaluation<'_>,
    target: &Target,
    snapshot: &Snapshot,
    assessment: &Assessment,
) -> Option<Verdict> {
    let &Evaluation { services, request, .. } = on;
    if request.operation != Operation::Evict || !target.resolved.policy.enforces_denials() {
        return None;
    }
    let read = timeout(READ_TIMEOUT, services.observer.pods.list_disruption_budgets(&request.namespace));
    let budgets = match read.await {
        Ok(Ok(budgets)) => budgets,
        Ok(Err(error)) => {
            tracing::warn!(%error, "an eviction is evaluated without the PodDisruptionBudgets");
            return None;
        }
        Err(_) => {
            tracing::warn!(
                "an eviction is evaluated without the PodDisruptionBudgets: the read took too long"
            );
            return None;
        }
    };
    let refusal = budget_refusal(&budgets, &target.pod)?;
    let verdict = explain(&refusal, &request.namespace, &request.name);
    let cluster = Some(to_bounded_line(&snapshot.cluster, MAX_ERROR_CHARS));
    Some(Verdict { member: assessment.member, tally: assessment.tally.clone(), cluster, ..verdict })
}

fn explain(refusal: &BudgetRefusal<'_>, namespace: &str, pod: &str) -> Verdict {
    let wait = |budget: &str| {
        let [namespace, budget] = [namespace, budget].map(to_shell_word);
        format!(
            "Wait until it allows one, then retry: kubectl -n {namespace} get poddisruptionbudget {budget}"
        )
    };
    match refusal {
        BudgetRefusal::Exhausted { budget, healthy, required } => {
            let text = format!(
                "PodDisruptionBudget {budget} does not allow the eviction of {pod} now: {healthy} pods are healthy, and it \
                 requires {required}"
            );
            Verdict::new(Reason::BudgetExhausted, text).with_remedy(&wait(budget))
        }
        BudgetRefusal::Outdated { budget } => {
            let text = format!(
                "PodDisruptionBudget {budget} has changed, and its controller has not counted the pods again"
            );
            Verdict::new(Reason::BudgetExhausted, text).with_remedy(&wait(budget))
        }
        BudgetRefusal::Several { budgets } => {
            let text = format!(
                "{} PodDisruptionBudgets select {pod} ({}), and the API server evicts no such pod",
                budgets.len(),
                budgets.join(", ")
            );
            let namespace = to_shell_word(namespace);
            let remedy = format!(
                "Delete or change all but one of them: kubectl -n {namespace} get poddisruptionbudgets -o wide"
            );
            Verdict::new(Reason::AmbiguousBudget, text).with_remedy(&remedy)
        }
    }
}
