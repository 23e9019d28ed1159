//! Helpers of all cases: verification of approvals, and recording of results.

use tokio::time::{Duration, Instant, sleep};

use super::requests::{DELETION_WEBHOOK, Deletion, Expected, request_deletion, summarize};
use crate::{
    api_server::Response,
    conformance::{
        manifests::{ClusterOptions, SET},
        progress::report_progress,
        report::{Outcome, Report, Row},
        sandbox::{
            POLL_INTERVAL, Sandbox,
            cluster_state::{HealthyCluster, Reservations},
        },
    },
};

/// Maximum number of attempts of a case with inconclusive results.
pub(super) const MAX_ATTEMPTS: usize = 5;

/// The reason for skipping a case during which the leader changed in every attempt.
pub(super) const LEADER_CHANGED: &str = "the leader changed during every attempt";

/// The failure of an approval without the expected warning.
pub(super) const WARNING_MISSING: &str = "the warning of the guard is missing";

/// Maximum time until the status of the guard shows an approval. The members may be busy with the deletion.
const RESERVATION_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the cases and records their results.
pub(crate) struct Cases<'a> {
    pub(crate) sandbox: &'a Sandbox,
    pub(crate) cluster: &'a ClusterOptions<'a>,
    pub(crate) report: &'a mut Report,
}

/// The constant part of a row.
#[derive(Clone, Copy)]
pub(super) struct Case {
    pub(super) request: &'static str,
    pub(super) expected: Expected,
    /// The reason for the expectation.
    pub(super) why: &'static str,
}

/// The constant part of a row with an observed result, which is not a response of the API server.
#[derive(Clone, Copy)]
pub(super) struct Observation {
    pub(super) request: &'static str,
    pub(super) expected: &'static str,
    /// The reason for the expectation.
    pub(super) why: &'static str,
}

// === impl Cases ===

impl Cases<'_> {
    /// Checks by a dry run that the guard protects the leader. The inner error is the reason why it does not.
    pub(crate) async fn check_enforcement(sandbox: &Sandbox) -> anyhow::Result<Result<(), String>> {
        let is_denied =
            |response: &Response| response.denial().is_some_and(|(webhook, _)| webhook == DELETION_WEBHOOK);
        let call = async || {
            let leader = sandbox.wait_until_healthy().await?.leader;
            request_deletion(sandbox, &leader, Deletion::DryRun).await
        };
        let response = sandbox.retry_until(call, is_denied).await?;
        Ok(match response {
            response if is_denied(&response) => Ok(()),
            response if response.is_success() => {
                Err(String::from("a dry run of the leader's deletion was allowed"))
            }
            response => Err(response.message),
        })
    }

    /// Returns the failure of an approval without a trace: the leader is not protected right after it.
    pub(super) async fn enforcement_failure(&self) -> anyhow::Result<Option<String>> {
        let failure = Self::check_enforcement(self.sandbox).await?.err();
        Ok(failure.map(|reason| format!("the guard is not called: {reason}")))
    }

    /// Returns the failure of an approval without a new reservation. Reservations in `before` belong to other
    /// deletions.
    pub(super) async fn reservation_failure(
        &self,
        before: &Reservations,
        pod: &str,
    ) -> anyhow::Result<Option<String>> {
        let end = Instant::now() + RESERVATION_TIMEOUT;
        loop {
            if self.sandbox.reservations().await?.difference(before).any(|(name, _)| name == pod) {
                return Ok(None);
            }
            if Instant::now() > end {
                return Ok(Some(String::from("the guard was not called: it has no reservation for the pod")));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Whether the leader changed. The request was then for another role, and another response may be correct.
    pub(super) async fn has_new_leader(&self, before: &HealthyCluster) -> anyhow::Result<bool> {
        Ok(self.sandbox.wait_until_healthy().await?.leader != before.leader)
    }

    /// The pods that were deleted or are terminating.
    pub(super) async fn deleted_pods(&self, before: &HealthyCluster) -> anyhow::Result<Vec<String>> {
        let pods = self.sandbox.pods(SET).await?;
        let remains = |name: &String, uid: &String| {
            pods.iter().any(|pod| pod.name == *name && pod.uid == *uid && !pod.terminating)
        };
        let deleted = before.uids.iter().filter(|(name, uid)| !remains(name, uid));
        Ok(deleted.map(|(name, _)| name.clone()).collect())
    }

    /// Returns the failure of a request that must not delete a pod.
    pub(super) async fn deletion_failure(&self, before: &HealthyCluster) -> anyhow::Result<Option<String>> {
        let deleted = self.deleted_pods(before).await?;
        Ok((!deleted.is_empty()).then(|| format!("pod {} was deleted", deleted.join(", "))))
    }

    /// Records a response. `failure` is an observed failure beside it.
    pub(super) fn record(&mut self, case: Case, response: &Response, failure: Option<String>) {
        if response.is_forbidden() {
            return self.skip(case, &format!("missing permission: {}", response.message));
        }
        let passed = case.expected.matches(response) && failure.is_none();
        let mut answered = summarize(response);
        if let Some(failure) = failure {
            answered = format!("{answered}, but {failure}");
        }
        self.push(Row {
            request: case.request.to_owned(),
            expected: case.expected.summary(),
            why: case.why,
            answered,
            message: response.message.clone(),
            result: if passed { Outcome::Passed } else { Outcome::Failed },
        });
    }

    /// Records an observation.
    pub(super) fn record_observation(&mut self, observation: Observation, observed: &str, passed: bool) {
        let result = if passed { Outcome::Passed } else { Outcome::Failed };
        self.push_observation(observation, observed, result);
    }

    /// Records that a case could not run.
    pub(super) fn skip(&mut self, case: Case, reason: &str) {
        self.push(Row {
            request: case.request.to_owned(),
            expected: case.expected.summary(),
            why: case.why,
            answered: reason.to_owned(),
            message: String::new(),
            result: Outcome::Skipped,
        });
    }

    /// Records that an observation was not possible.
    pub(super) fn skip_observation(&mut self, observation: Observation, reason: &str) {
        self.push_observation(observation, reason, Outcome::Skipped);
    }

    fn push_observation(&mut self, observation: Observation, observed: &str, result: Outcome) {
        self.push(Row {
            request: observation.request.to_owned(),
            expected: observation.expected.to_owned(),
            why: observation.why,
            answered: observed.to_owned(),
            message: String::new(),
            result,
        });
    }

    fn push(&mut self, row: Row) {
        report_progress(&format!("{}: {}", row.request, row.answered));
        self.report.rows.push(row);
    }
}
