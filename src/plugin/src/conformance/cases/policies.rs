//! Policies that users choose: audit mode and transfer of leadership.

use std::cell::Cell;

use serde_json::json;

use super::{
    requests::{Deletion, Expected, request_deletion},
    runner::{Case, Cases, MAX_ATTEMPTS, Observation, WARNING_MISSING},
};
use crate::{
    api_server::Response,
    conformance::{
        manifests::SET,
        sandbox::cluster_state::{HealthyCluster, MEMBERS},
    },
};

const ROLLOUT: Observation = Observation {
    request: "rollout by the StatefulSet controller",
    expected: "every pod replaced, quorum maintained",
    why: "the controller retries after a denial",
};

/// The quorum of three voters.
const QUORUM: usize = 2;

/// Counts the healthy voters during a rollout.
#[derive(Default)]
struct HealthMonitor {
    samples: Cell<usize>,
    /// The healthy voters of the last sample.
    last: Cell<Option<usize>>,
    /// The minimum over pairs of consecutive samples, of which the higher value counts. A member that is unavailable is
    /// missing in more than one sample; a single sample may fail for other reasons.
    minimum: Cell<Option<usize>>,
}

// === impl Cases ===

impl Cases<'_> {
    pub(super) async fn audit_mode(&mut self) -> anyhow::Result<()> {
        let case = Case {
            request: "delete the leader in audit mode, dry run",
            expected: Expected::Allowed,
            why: "audit mode only warns",
        };
        let mode = |value: &str| json!({"etcd-guard.io/mode": value});
        let policy = self.sandbox.set_policy(&mode("audit"), "etcd-guard.io/mode", Some("audit")).await?;
        match policy {
            Err(reason) => self.skip(case, &reason),
            Ok(()) => {
                let is_warned =
                    |response: &Response| response.has_warning("would be denied: LeaderProtected: ");
                // Another replica may observe the policy a moment later.
                let call = async || self.request_leader_dry_run().await;
                let response = self.sandbox.retry_until(call, is_warned).await?;
                let is_unwarned = !is_warned(&response) && response.is_success();
                self.record(case, &response, is_unwarned.then(|| String::from(WARNING_MISSING)));
            }
        }
        // If the policy cannot be restored, the case of the final enforcement fails.
        let _ = self.sandbox.set_policy(&mode("enforce"), "etcd-guard.io/mode", Some("enforce")).await?;
        let _ = Self::check_enforcement(self.sandbox).await?;
        Ok(())
    }

    async fn request_leader_dry_run(&self) -> anyhow::Result<Response> {
        let leader = self.sandbox.wait_until_healthy().await?.leader;
        request_deletion(self.sandbox, &leader, Deletion::DryRun).await
    }

    /// Deletes the leader under `leader: transfer`, then runs a rollout under the same policy.
    pub(super) async fn leadership_transfer(&mut self) -> anyhow::Result<()> {
        let case = Case {
            request: "delete the leader under `leader: transfer`",
            expected: Expected::Allowed,
            why: "leadership moves to another voter first",
        };
        let annotations = json!({"etcd-guard.io/leader": "transfer"});
        let policy = self.sandbox.set_policy(&annotations, "etcd-guard.io/leader", Some("transfer")).await?;
        if let Err(reason) = policy {
            self.skip(case, &reason);
            self.skip_observation(ROLLOUT, &reason);
            return Ok(());
        }
        let mut attempts = 1;
        loop {
            let former_leader = Cell::new(String::new());
            // Another replica may observe the policy a moment later, and deny.
            let delete = async || {
                let leader = self.sandbox.wait_until_healthy().await?.leader;
                let response = request_deletion(self.sandbox, &leader, Deletion::Delete).await;
                former_leader.set(leader);
                response
            };
            let response = self.sandbox.retry_until(delete, Response::is_success).await?;
            let warning = format!("leadership of etcd {}/{SET} was moved to ", self.sandbox.namespace);
            let is_warned = response.has_warning(&warning);
            let has_moved = self.sandbox.wait_until_healthy().await?.leader != former_leader.take();
            // A member that lost leadership before the request is approved without a warning.
            if response.is_success() && !is_warned && has_moved && attempts < MAX_ATTEMPTS {
                attempts += 1;
                continue;
            }
            let has_failed = response.is_success() && !(is_warned && has_moved);
            let failure =
                has_failed.then(|| String::from("leadership did not move, or the warning is missing"));
            self.record(case, &response, failure);
            break;
        }
        self.rollout().await
    }

    async fn rollout(&mut self) -> anyhow::Result<()> {
        let before = self.sandbox.wait_until_healthy().await?;
        let now = k8s_openapi::jiff::Timestamp::now().to_string();
        let restart =
            json!({"spec": {"template": {"metadata": {"annotations": {"etcd-guard.io/restarted-at": now}}}}});
        let patched = self.sandbox.api.patch(&self.sandbox.set_path(), &restart).await?;
        patched.into_object("restarting the StatefulSet")?;
        let monitor = HealthMonitor::default();
        let is_replaced = async || self.is_replaced(&before, &monitor).await;
        let is_complete = self.sandbox.wait_until(MEMBERS, is_replaced).await?;
        if is_complete && monitor.minimum.get().is_none() {
            self.skip_observation(ROLLOUT, "too few status samples during the rollout");
            return Ok(());
        }
        let minimum = monitor.minimum.get().unwrap_or(QUORUM);
        let has_quorum = minimum >= QUORUM;
        let observed = match (is_complete, has_quorum) {
            (true, true) => format!(
                "every pod replaced; no two consecutive of {} samples without a quorum",
                monitor.samples.get()
            ),
            (_, false) => format!("{minimum} healthy voters"),
            (false, true) => String::from("not complete in time"),
        };
        self.record_observation(ROLLOUT, &observed, is_complete && has_quorum);
        Ok(())
    }

    /// Whether each pod was replaced and the cluster is healthy.
    async fn is_replaced(&self, before: &HealthyCluster, monitor: &HealthMonitor) -> anyhow::Result<bool> {
        // The guard may be busy with requests of the controller, so that the status times out. That is not a sample.
        let Ok(cluster) = self.sandbox.cluster().await else { return Ok(false) };
        // If the guard cannot count the voters, the quorum is not proven.
        monitor.record(cluster.healthy.unwrap_or(0));
        let pods = self.sandbox.pods(SET).await?;
        let are_new = before.uids.values().all(|uid| !pods.iter().any(|pod| pod.uid == *uid));
        Ok(are_new && self.sandbox.check_health(&cluster).await?.is_ok())
    }
}

// === impl HealthMonitor ===

impl HealthMonitor {
    fn record(&self, healthy: usize) {
        self.samples.set(self.samples.get() + 1);
        if let Some(last) = self.last.replace(Some(healthy)) {
            let pair = last.max(healthy);
            self.minimum.set(Some(self.minimum.get().map_or(pair, |minimum| minimum.min(pair))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minimum(samples: &[usize]) -> Option<usize> {
        let monitor = HealthMonitor::default();
        for healthy in samples {
            monitor.record(*healthy);
        }
        monitor.minimum.get()
    }

    #[test]
    fn counts_lost_quorum_only_in_two_consecutive_samples() {
        assert_eq!(minimum(&[3, 2, 2, 3]), Some(2));
        assert_eq!(minimum(&[3, 0, 2, 3]), Some(2));
        assert_eq!(minimum(&[3, 0, 1, 3]), Some(1));
        assert_eq!(minimum(&[0]), None);
    }
}
