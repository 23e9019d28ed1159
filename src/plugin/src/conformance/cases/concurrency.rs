//! Deletions of more than one pod: consecutive, concurrent, against a `PodDisruptionBudget`, and of a collection.

use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    requests::{Deletion, Expected, delete_options, is_leader_denial, request_deletion, summarize},
    runner::{Case, Cases, LEADER_CHANGED, MAX_ATTEMPTS, Observation},
};
use crate::{
    api_server::Response,
    conformance::{
        manifests::SET,
        sandbox::cluster_state::{HealthyCluster, Reservations},
    },
};

/// Minimum time for a deleted member to serve again. A request that is evaluated later may correctly be approved if the
/// deleted pod has a successor.
const MIN_DOWNTIME: Duration = Duration::from_millis(200);

/// The number of concurrent calls for each follower. The client uses HTTP/1.1, so that each call has its own connection
/// and the calls reach several replicas of the guard.
const CALLS_PER_POD: usize = 4;

const MEMBER_UNAVAILABLE: Expected = Expected::Denied(&["DisruptionInProgress", "QuorumAtRisk"]);

/// The reason for skipping a pair of deletions.
const TOO_LATE: &str = "the second response was so late that the first member may have served again";

const FIRST_DELETION: Case =
    Case { request: "delete a follower", expected: Expected::Allowed, why: "the quorum remains" };

const SECOND_DELETION: Case = Case {
    request: "delete the other follower at once",
    expected: MEMBER_UNAVAILABLE,
    why: "two of three voters would be unavailable",
};

const RECOVERY: Observation = Observation {
    request: "the deleted follower",
    expected: "serves again as the same member",
    why: "its data was kept",
};

const CONCURRENT: Observation = Observation {
    request: "delete both followers at the same instant",
    expected: "one is deleted, the other denied",
    why: "two of three voters would be unavailable",
};

const BUDGET_EVICTION: Case = Case {
    request: "evict a follower against its budget",
    expected: Expected::DeniedForNow(&["BudgetExhausted"]),
    why: "the API server would refuse the eviction after an approval",
};

const BUDGET_OTHER: Case = Case {
    request: "delete the other follower then, dry run",
    expected: Expected::Allowed,
    why: "the eviction of the first reserved nothing",
};

const BUDGET_FIRST: Case = Case {
    request: "delete the first follower then",
    expected: Expected::Allowed,
    why: "a deletion consults no budget",
};

/// The result of concurrent deletions.
enum ConcurrentResult {
    /// One pod was deleted, the other one denied.
    OneDeleted,
    /// The guard denied all calls for both pods.
    BothDenied,
    /// A failure, with its description.
    Failed(String),
    /// Neither success nor failure, with the reason.
    Inconclusive(String),
}

// === impl Cases ===

impl Cases<'_> {
    /// Deletes both followers, the second one while the first one is unavailable.
    pub(super) async fn consecutive_deletions(&mut self) -> anyhow::Result<()> {
        let mut reason = "";
        for _ in 0..MAX_ATTEMPTS {
            let before = self.sandbox.wait_until_healthy().await?;
            let reservations = self.sandbox.reservations().await?;
            let [first, second] = &before.followers;
            let first_response = request_deletion(self.sandbox, first, Deletion::Delete).await?;
            let approved = Instant::now();
            let second_response = request_deletion(self.sandbox, second, Deletion::Delete).await?;
            let is_late = approved.elapsed() > MIN_DOWNTIME;
            let both_approved = first_response.is_success() && second_response.is_success();
            if both_approved && is_late && self.has_successor(&before, first).await? {
                reason = TOO_LATE;
                continue;
            }
            let is_leader = [&first_response, &second_response].into_iter().any(is_leader_denial);
            if is_leader && self.has_new_leader(&before).await? {
                reason = LEADER_CHANGED;
                continue;
            }
            let failure = if first_response.is_success() {
                self.reservation_failure(&reservations, first).await?
            } else {
                None
            };
            self.record(FIRST_DELETION, &first_response, failure);
            self.record(SECOND_DELETION, &second_response, None);
            let after = self.sandbox.wait_until_healthy().await?;
            let is_same_member = after.member_ids.get(first) == before.member_ids.get(first);
            let is_new_pod = after.uids.get(first) != before.uids.get(first);
            let has_recovered = is_same_member && is_new_pod;
            let observed = if has_recovered {
                "serves again as the same member"
            } else {
                "is another member, or its pod was not deleted"
            };
            self.record_observation(RECOVERY, observed, has_recovered);
            return Ok(());
        }
        self.skip(FIRST_DELETION, reason);
        self.skip(SECOND_DELETION, reason);
        self.skip_observation(RECOVERY, reason);
        Ok(())
    }

    /// Deletes both followers concurrently. The guard must never approve both.
    pub(super) async fn concurrent_deletions(&mut self) -> anyhow::Result<()> {
        let mut last = String::from("both were denied");
        let mut denied = 0;
        for _ in 0..MAX_ATTEMPTS {
            let before = self.sandbox.wait_until_healthy().await?;
            let reservations = self.sandbox.reservations().await?;
            let result = self.delete_both(&before, &reservations).await?;
            self.sandbox.wait_until_healthy().await?;
            match result {
                ConcurrentResult::OneDeleted => {
                    self.record_observation(CONCURRENT, "one was deleted, the other denied", true);
                    return Ok(());
                }
                ConcurrentResult::Failed(failure) => {
                    self.record_observation(CONCURRENT, &failure, false);
                    return Ok(());
                }
                ConcurrentResult::BothDenied => denied += 1,
                ConcurrentResult::Inconclusive(reason) => last = reason,
            }
        }
        if denied == MAX_ATTEMPTS {
            // A guard that denies both deletions each time blocks concurrent clients permanently.
            let observed = format!("both were denied, {MAX_ATTEMPTS} times");
            self.record_observation(CONCURRENT, &observed, false);
        } else {
            self.skip_observation(CONCURRENT, &last);
        }
        Ok(())
    }

    async fn delete_both(
        &self,
        before: &HealthyCluster,
        reservations: &Reservations,
    ) -> anyhow::Result<ConcurrentResult> {
        let calls = (0..CALLS_PER_POD).flat_map(|_| &before.followers).map(async |pod| {
            // The precondition excludes the successor of the pod, which a late call could delete.
            let options = json!({"preconditions": {"uid": before.uids.get(pod)}});
            let path = self.sandbox.path(&format!("pods/{pod}"));
            let response = self.sandbox.api.delete(&path, &delete_options(&options)).await;
            (pod, response, Instant::now())
        });
        let mut responses = join_all(calls).await;
        responses.sort_by_key(|(.., time)| *time);
        let deleted = self.deleted_pods(before).await?;
        match deleted.as_slice() {
            [] => {
                let are_denied = responses.iter().all(|(_, response, _)| {
                    response
                        .as_ref()
                        .is_ok_and(|response| response.denial().is_some() && !is_leader_denial(response))
                });
                Ok(if are_denied {
                    ConcurrentResult::BothDenied
                } else {
                    ConcurrentResult::Inconclusive(String::from("neither was deleted"))
                })
            }
            [one] => {
                if let Some(failure) = self.reservation_failure(reservations, one).await? {
                    return Ok(ConcurrentResult::Failed(format!("{one} was deleted, but {failure}")));
                }
                let others = responses.iter().filter(|(pod, ..)| *pod != one);
                let mut inconclusive = None;
                for (pod, response, _) in others {
                    match response {
                        Ok(response) if response.denial().is_some() => {}
                        Ok(response) if response.is_success() => {
                            return Ok(ConcurrentResult::Failed(format!("{pod} was approved beside {one}")));
                        }
                        Ok(response) => inconclusive = Some(format!("{pod}: {}", summarize(response))),
                        Err(error) => inconclusive = Some(format!("{pod}: {error:#}")),
                    }
                }
                Ok(inconclusive.map_or(ConcurrentResult::OneDeleted, ConcurrentResult::Inconclusive))
            }
            _ => {
                let first_approval = |pod: &String| {
                    let is_approval = |response: &anyhow::Result<Response>| {
                        response.as_ref().is_ok_and(Response::is_success)
                    };
                    let mut responses = responses.iter();
                    responses
                        .find(|(name, response, _)| *name == pod && is_approval(response))
                        .map(|(.., time)| *time)
                };
                let gap = match before.followers.each_ref().map(first_approval) {
                    [Some(one), Some(other)] => one.max(other).duration_since(one.min(other)),
                    // A pod was deleted without an approval.
                    _ => Duration::ZERO,
                };
                let [first, second] = &before.followers;
                let has_successor =
                    self.has_successor(before, first).await? || self.has_successor(before, second).await?;
                if gap > MIN_DOWNTIME && has_successor {
                    return Ok(ConcurrentResult::Inconclusive(String::from(TOO_LATE)));
                }
                Ok(ConcurrentResult::Failed(format!("{} were deleted", deleted.join(" and "))))
            }
        }
    }

    /// Whether another pod of this name exists, which may serve already.
    async fn has_successor(&self, before: &HealthyCluster, name: &str) -> anyhow::Result<bool> {
        let pods = self.sandbox.pods(SET).await?;
        Ok(pods.iter().any(|pod| pod.name == name && before.uids.get(name) != Some(&pod.uid)))
    }

    /// Evicts a follower while its budget allows no disruption. The guard denies what the API server would refuse, so that
    /// no other deletion waits.
    pub(super) async fn budget(&mut self) -> anyhow::Result<()> {
        if let Some(reason) = self.set_allowed_disruptions(0).await? {
            self.skip_budget(&reason);
            return Ok(());
        }
        let mut attempts = 1;
        while !self.try_budget().await? {
            if attempts == MAX_ATTEMPTS {
                self.skip_budget(LEADER_CHANGED);
                break;
            }
            attempts += 1;
        }
        self.sandbox.wait_until_healthy().await?;
        self.set_allowed_disruptions(1).await?;
        Ok(())
    }

    fn skip_budget(&mut self, reason: &str) {
        for case in [BUDGET_EVICTION, BUDGET_OTHER, BUDGET_FIRST] {
            self.skip(case, reason);
        }
    }

    /// Returns whether the result was conclusive.
    async fn try_budget(&mut self) -> anyhow::Result<bool> {
        let before = self.sandbox.wait_until_healthy().await?;
        let [first, second] = &before.followers;
        let evicted = request_deletion(self.sandbox, first, Deletion::Evict).await?;
        if evicted.is_forbidden() {
            for case in [BUDGET_EVICTION, BUDGET_OTHER, BUDGET_FIRST] {
                self.record(case, &evicted, None);
            }
            return Ok(true);
        }
        let eviction_failure = self.deletion_failure(&before).await?;
        let other = request_deletion(self.sandbox, second, Deletion::DryRun).await?;
        let reservations = self.sandbox.reservations().await?;
        let again = request_deletion(self.sandbox, first, Deletion::Delete).await?;
        let is_leader = [&evicted, &other, &again].into_iter().any(is_leader_denial);
        if is_leader && self.has_new_leader(&before).await? {
            return Ok(false);
        }
        let deletion_failure =
            if again.is_success() { self.reservation_failure(&reservations, first).await? } else { None };
        self.record(BUDGET_EVICTION, &evicted, eviction_failure);
        self.record(BUDGET_OTHER, &other, None);
        self.record(BUDGET_FIRST, &again, deletion_failure);
        Ok(true)
    }

    /// Sets the number of disruptions that the budget allows and waits until its status has it. Returns the reason if
    /// that fails.
    async fn set_allowed_disruptions(&self, pods: u64) -> anyhow::Result<Option<String>> {
        let path =
            format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets/{SET}", self.sandbox.namespace);
        let change = json!({"spec": {"maxUnavailable": pods}});
        let is_set = |response: &Response| {
            let status = response.object.pointer("/status/disruptionsAllowed");
            status.and_then(Value::as_u64) == Some(pods) || response.is_forbidden()
        };
        let call = async || self.sandbox.api.patch(&path, &change).await;
        let response = self.sandbox.retry_until(call, is_set).await?;
        Ok(match response {
            response if response.is_forbidden() => Some(format!("missing permission: {}", response.message)),
            response if is_set(&response) => None,
            response if response.is_success() => {
                Some(format!("the status of its budget does not reach {pods} allowed disruptions"))
            }
            response => Some(response.message),
        })
    }

    pub(super) async fn collection(&mut self) -> anyhow::Result<()> {
        let case = Case {
            request: "delete the collection of pods",
            expected: Expected::Denied(&["LeaderProtected", "DisruptionInProgress", "QuorumAtRisk"]),
            why: "at most one member may be deleted",
        };
        let before = self.sandbox.wait_until_healthy().await?;
        let path = format!("{}?labelSelector=app%3D{SET}", self.sandbox.path("pods"));
        let response = self.sandbox.api.delete(&path, &delete_options(&json!({}))).await?;
        let deleted = self.deleted_pods(&before).await?.len();
        let failure = (deleted > 1).then(|| format!("{deleted} pods were deleted"));
        self.record(case, &response, failure);
        self.sandbox.wait_until_healthy().await?;
        Ok(())
    }
}
