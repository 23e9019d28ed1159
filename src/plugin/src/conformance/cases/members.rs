//! Deletions of single pods: a pod without etcd, the leader, a follower.

use serde_json::json;

use super::{
    requests::{Deletion, Expected, request_deletion},
    runner::{Case, Cases, LEADER_CHANGED, MAX_ATTEMPTS},
};
use crate::api_server::Response;

/// A pod that runs no etcd. Its scheduler does not exist, so that it is never scheduled.
const OTHER_POD: &str = "without-etcd";

const LEADER_DENIED: Expected = Expected::Denied(&["LeaderProtected"]);
const LEADER_DENIED_FOR_NOW: Expected = Expected::DeniedForNow(&["LeaderProtected"]);

const LEADER_CASES: [(Case, Deletion); 5] = [
    (
        Case {
            request: "delete the leader, dry run",
            expected: LEADER_DENIED,
            why: "a dry run gets the same response",
        },
        Deletion::DryRun,
    ),
    (
        Case {
            request: "delete the leader",
            expected: LEADER_DENIED,
            why: "the policy of the cluster is `leader: deny`",
        },
        Deletion::Delete,
    ),
    (
        Case {
            request: "delete the leader by force",
            expected: LEADER_DENIED,
            why: "a forced deletion has the same effect on etcd",
        },
        Deletion::Force,
    ),
    (
        Case {
            request: "evict the leader, dry run",
            expected: LEADER_DENIED_FOR_NOW,
            why: "a dry run gets the same response",
        },
        Deletion::EvictDryRun,
    ),
    (
        Case {
            request: "evict the leader, as a drain does",
            expected: LEADER_DENIED_FOR_NOW,
            why: "a drain retries after status 429",
        },
        Deletion::Evict,
    ),
];

// === impl Cases ===

impl Cases<'_> {
    pub(super) async fn pod_without_etcd(&mut self) -> anyhow::Result<()> {
        let case = Case {
            request: "delete a pod that runs no etcd",
            expected: Expected::Allowed,
            why: "only etcd members are guarded",
        };
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": OTHER_POD},
            "spec": {
                "schedulerName": "does-not-exist",
                "automountServiceAccountToken": false,
                "securityContext": {
                    "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [{
                    "name": "unused",
                    "image": "unused",
                    "resources": {"limits": {"cpu": "10m", "memory": "16Mi"}},
                    "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                }],
            },
        });
        // A policy of the cluster may reject the pod, for instance because of its image.
        let created = self.sandbox.api.post(&self.sandbox.path("pods"), &pod).await?;
        if !created.is_success() {
            self.skip(case, &format!("cannot create the pod: {}", created.message));
            return Ok(());
        }
        let response = request_deletion(self.sandbox, OTHER_POD, Deletion::Delete).await?;
        let failure = if response.is_success() { self.enforcement_failure().await? } else { None };
        self.record(case, &response, failure);
        Ok(())
    }

    pub(super) async fn leader(&mut self) -> anyhow::Result<()> {
        for (case, deletion) in LEADER_CASES {
            let mut conclusive = None;
            for _ in 0..MAX_ATTEMPTS {
                let before = self.sandbox.wait_until_healthy().await?;
                let response = request_deletion(self.sandbox, &before.leader, deletion).await?;
                let failure = self.deletion_failure(&before).await?;
                if failure.is_some() || !self.has_new_leader(&before).await? {
                    conclusive = Some((response, failure));
                    break;
                }
            }
            match conclusive {
                Some((response, failure)) => self.record(case, &response, failure),
                None => self.skip(case, LEADER_CHANGED),
            }
        }
        Ok(())
    }

    pub(super) async fn follower_dry_run(&mut self) -> anyhow::Result<()> {
        let case = Case {
            request: "delete a follower, dry run",
            expected: Expected::Allowed,
            why: "the quorum remains, and nothing is reserved",
        };
        for _ in 0..MAX_ATTEMPTS {
            let before = self.sandbox.wait_until_healthy().await?;
            let reservations = self.sandbox.reservations().await?;
            let [follower, _] = &before.followers;
            let response = request_deletion(self.sandbox, follower, Deletion::DryRun).await?;
            let mut failure = self.deletion_failure(&before).await?;
            if !response.is_success() && self.has_new_leader(&before).await? {
                continue;
            }
            if !self.sandbox.reservations().await?.is_subset(&reservations) {
                failure = Some(String::from("a reservation was recorded"));
            }
            if response.is_success() && failure.is_none() {
                failure = self.enforcement_failure().await?;
            }
            self.record(case, &response, failure);
            return Ok(());
        }
        self.skip(case, LEADER_CHANGED);
        Ok(())
    }

    /// Evicts the other follower after the first one serves again.
    pub(super) async fn later_eviction(&mut self) -> anyhow::Result<()> {
        let case = Case {
            request: "evict the other follower later",
            expected: Expected::Allowed,
            why: "the first follower serves again, so that a drain can continue",
        };
        for _ in 0..MAX_ATTEMPTS {
            let before = self.sandbox.wait_until_healthy().await?;
            let reservations = self.sandbox.reservations().await?;
            let [_, second] = &before.followers;
            // A budget counts ready pods with a delay of some seconds.
            let evict = async || request_deletion(self.sandbox, second, Deletion::Evict).await;
            let is_conclusive = |response: &Response| {
                response.is_success() || response.denial().is_some() || response.is_forbidden()
            };
            let response = self.sandbox.retry_until(evict, is_conclusive).await?;
            let failure = if response.is_success() {
                self.reservation_failure(&reservations, second).await?
            } else {
                None
            };
            if response.is_success() || !self.has_new_leader(&before).await? {
                self.record(case, &response, failure);
                self.sandbox.wait_until_healthy().await?;
                return Ok(());
            }
        }
        self.skip(case, LEADER_CHANGED);
        Ok(())
    }
}
