//! Moves of leadership by annotation.

use std::{cmp::Reverse, time::Duration};

use tokio::time::{Instant, sleep};

use super::requests::{Answer, Requested, Subject};
use crate::guard_client::GuardClient;
use etcd_guard_api::{ClusterStatus, Role};

/// The reason of the Event about a completed move.
const MOVED: &str = "LeaderMoved";

/// Time for the answer to one request in the course of a restart. The guard acts within 5 s.
pub(crate) const HANDOVER_TIMEOUT: Duration = Duration::from_secs(15);

/// Pause after a move of leadership that failed. Meanwhile the eviction of the leader is attempted.
pub(crate) const HANDOVER_INTERVAL: Duration = Duration::from_secs(30);

/// Pause between two reads of the Events.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Requests a move of leadership, and waits for the answer of the guard.
pub(crate) async fn move_leader(
    guard: &GuardClient,
    subject: &Subject,
    to: Option<&str>,
    timeout: Duration,
) -> anyhow::Result<Answer> {
    let request = Requested::annotate(guard, subject, "move-leader", to.unwrap_or_default(), None).await?;
    let deadline = Instant::now() + timeout;
    loop {
        let failure = match request.answers(guard).await {
            Ok(answers) => {
                // Another replica may have failed before it recorded the request. Its answer can precede that of the replica that
                // moved leadership.
                let moved = answers.iter().find(|answer| answer.is_moved());
                if let Some(answer) = moved.or(answers.first()) {
                    return Ok(answer.clone());
                }
                None
            }
            Err(failure) => Some(failure),
        };
        if Instant::now() >= deadline {
            return Err(request.unanswered(&crate::durations::text(timeout), failure.as_ref()));
        }
        sleep(POLL_INTERVAL).await;
    }
}

// === impl Answer ===

impl Answer {
    /// Whether leadership is where the request wants it.
    pub(crate) fn is_moved(&self) -> bool {
        self.reason == MOVED
    }
}

/// Returns the pod that shall lead: the serving voter that qualifies and has applied most raft entries. Of equal ones, the one
/// with the highest member id is chosen, because ids are hashes. The guard has the same order, and cannot know which members
/// a restart has replaced: the template of the StatefulSet is the same.
pub(crate) fn transferee(cluster: &ClusterStatus, qualifies: impl Fn(&str) -> bool) -> Option<&str> {
    let voters = cluster
        .members
        .iter()
        .filter(|member| member.role == Role::Follower && member.serving && member.leaving.is_none());
    let candidates = voters.filter_map(|member| {
        let rank = (Reverse(member.lag.unwrap_or(u64::MAX)), &member.id);
        member.pod.as_deref().filter(|pod| qualifies(pod)).map(|pod| (rank, pod))
    });
    candidates.max().map(|(_, pod)| pod)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maintenance::health::tests::cluster;

    #[test]
    fn transferee_is_the_most_advanced_voter_that_qualifies() {
        let mut cluster = cluster();
        cluster.members[1].lag = Some(7);
        assert_eq!(transferee(&cluster, |_| true), Some("etcd-2"));
        assert_eq!(transferee(&cluster, |pod| pod != "etcd-2"), Some("etcd-1"));
        cluster.members[2].lag = Some(7);
        cluster.members[1].id = Some(String::from("ff"));
        cluster.members[2].id = Some(String::from("0f"));
        assert_eq!(transferee(&cluster, |_| true), Some("etcd-1"), "of equal ones, that with the highest id");
        cluster.members[2].lag = None;
        assert_eq!(transferee(&cluster, |_| true), Some("etcd-1"), "the lag of etcd-2 is unknown");
        cluster.members[1].serving = false;
        assert_eq!(transferee(&cluster, |pod| pod != "etcd-2"), None);
        assert_eq!(transferee(&cluster, |pod| pod == "etcd-0"), None, "the leader");
    }
}
