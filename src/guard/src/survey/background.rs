//! Periodic surveys, which report a missing voter before a deletion is denied because of it. No verdict depends on them.
//!
//! `etcd_guard_clusters` counts clusters by state and has no label with their names: users choose names, and the values of a
//! label must be a closed set. The log names a cluster when its state changes, and so do the metrics on demand
//! ([`Surveys::max_named_clusters`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::{
    deadline::Deadline,
    survey::{
        Scope, Surveyor,
        shares::{MISSED_SURVEYS, Share},
    },
};
use etcd_guard_api::ClusterStatus;
use etcd_guard_core::cluster_state::ClusterState;

/// Time limit of one survey: the maximum timeout of any request.
const SURVEY_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest time over which a periodic survey is spread, so that it does not delay evaluations. The remaining time
/// until [`SURVEY_TIMEOUT`] is available to the last namespaces.
const MAX_SPREAD: Duration = Duration::from_secs(24);

/// Settings of periodic surveys.
#[derive(Clone, Copy, Debug)]
pub struct Surveys {
    /// Interval of the surveys.
    pub interval: Duration,
    /// Maximum number of clusters with metrics of their own; `None` for metrics without names.
    pub max_named_clusters: Option<usize>,
}

// === impl Surveyor ===

impl Surveyor {
    /// Surveys the guarded clusters of this replica's share periodically until the future is dropped.
    pub(crate) async fn survey_periodically(&self, surveys: Surveys) {
        let mut known: BTreeMap<String, (ClusterState, Vec<String>)> = BTreeMap::new();
        let mut known_warnings: Vec<String> = Vec::new();
        let mut known_gaps: BTreeSet<String> = BTreeSet::new();
        // `interval` panics if the period is zero.
        let mut ticks = interval(surveys.interval.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let share = self.share(surveys.interval).await;
            let started = Instant::now();
            let scope = share.as_ref().map_or(Scope::All, Scope::Share);
            let spread = spread(surveys.interval);
            let survey = self.survey_scope(scope, spread, Deadline::from_timeout(Some(SURVEY_TIMEOUT))).await;
            for problem in &survey.problems {
                tracing::warn!(problem, "survey");
            }
            for warning in survey.warnings.iter().filter(|warning| !known_warnings.contains(warning)) {
                tracing::warn!(warning, "survey");
            }
            let found: Vec<ClusterState> = survey.clusters.iter().map(cluster_state).collect();
            let is_finished = started.elapsed() < SURVEY_TIMEOUT;
            let named = survey.clusters.iter().zip(found.iter().copied());
            self.cluster_metrics.record(named, surveys.max_named_clusters, is_finished);
            // Each problem hides at least one cluster.
            let unknown = survey.problems.iter().map(|_| ClusterState::Unknown);
            let counted: Vec<ClusterState> = found.iter().copied().chain(unknown).collect();
            self.services.observer.metrics.record_survey(&counted);
            let in_pods = survey.gaps.iter().filter(|gap| gap.pod.is_some()).count();
            self.services.observer.metrics.record_gaps(survey.gaps.len().saturating_sub(in_pods), in_pods);
            let members = survey.clusters.iter().flat_map(|cluster| &cluster.members);
            let releases: Vec<Option<&str>> = members.map(|member| member.version.as_deref()).collect();
            self.services.observer.metrics.record_releases(&releases);
            let mut now = BTreeMap::new();
            for (cluster, state) in survey.clusters.iter().zip(found) {
                let name = format!("{}/{}", cluster.namespace, cluster.name);
                let before = known.get(&name);
                if before.map(|(state, _)| *state) != Some(state) {
                    log_state(&name, cluster, state);
                }
                let is_known = |problem| before.is_some_and(|(_, problems)| problems.contains(problem));
                for problem in cluster.problems.iter().filter(|problem| !is_known(problem)) {
                    tracing::warn!(cluster = name, problem, "problem of a cluster");
                }
                now.insert(name, (state, cluster.problems.clone()));
            }
            known = now;
            known_warnings = survey.warnings;
            let gaps: BTreeSet<String> = survey.gaps.into_iter().map(|gap| gap.text).collect();
            for gap in gaps.difference(&known_gaps) {
                tracing::warn!(gap, "a member may not be recognized");
            }
            known_gaps = gaps;
        }
    }
}

impl Surveyor {
    /// Returns the share of this replica, or `None` for all namespaces.
    async fn share(&self, interval: Duration) -> Option<Share> {
        // A survey that takes longer than the interval delays the next one.
        let announced = self.shares.as_ref()?.announce(interval + SURVEY_TIMEOUT / MISSED_SURVEYS).await;
        announced
            .inspect_err(|error| {
                tracing::warn!(error, "the surveys could not be divided between the replicas");
            })
            .ok()
    }
}

/// Returns the time within which the evaluations of all namespaces start, in surveys with this interval: at most two fifths of the
/// interval. The rest of the interval remains for the last namespaces.
fn spread(interval: Duration) -> Duration {
    MAX_SPREAD.min(interval / 5 * 2)
}

/// Logs the new state of a cluster.
fn log_state(name: &str, cluster: &ClusterStatus, state: ClusterState) {
    let ClusterStatus { voters, healthy, quorum, .. } = cluster;
    match state {
        ClusterState::NoSpare | ClusterState::NoQuorum | ClusterState::Unknown => {
            tracing::warn!(cluster = name, state = state.as_str(), voters, healthy, quorum, "survey");
        }
        ClusterState::Spare | ClusterState::SingleMember => {
            tracing::info!(cluster = name, state = state.as_str(), voters, healthy, quorum, "survey");
        }
    }
}

fn cluster_state(cluster: &ClusterStatus) -> ClusterState {
    let (Some(voters), Some(healthy), Some(spare)) = (cluster.voters, cluster.healthy, cluster.spare) else {
        // Without a linearizable read, a missing quorum is proven only if members reply.
        let has_replies = cluster.members.iter().any(|member| member.version.is_some());
        return if has_replies { ClusterState::NoQuorum } else { ClusterState::Unknown };
    };
    match (voters, healthy, spare) {
        (1, 1, _) => ClusterState::SingleMember,
        (_, _, ..0) => ClusterState::NoQuorum,
        (_, _, 0) => ClusterState::NoSpare,
        (_, _, 1..) => ClusterState::Spare,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::survey::status::cluster_status;
    use etcd_guard_core::{
        assess::cluster_summary::ClusterSummary,
        snapshot::{Snapshot, fixture::cluster},
    };

    fn status(snapshot: &Snapshot) -> ClusterStatus {
        cluster_status(snapshot, &ClusterSummary::new(snapshot), &[], Vec::new(), Vec::new())
    }

    fn state(snapshot: &Snapshot) -> ClusterState {
        cluster_state(&status(snapshot))
    }

    #[test]
    fn state_depends_on_spare_voters() {
        assert_eq!(state(&cluster(3)), ClusterState::Spare);
        assert_eq!(state(&cluster(3).crash(1)), ClusterState::NoSpare);
        assert_eq!(state(&cluster(5).crash(1)), ClusterState::Spare);
        assert_eq!(state(&cluster(5).crash(1).crash(2)), ClusterState::NoSpare);
        assert_eq!(state(&cluster(2)), ClusterState::NoSpare, "two voters have none to spare");
    }

    #[test]
    fn starts_of_a_survey_take_a_part_of_its_interval() {
        assert_eq!(spread(Duration::from_secs(10)), Duration::from_secs(4));
        assert_eq!(spread(Duration::from_secs(60)), Duration::from_secs(24));
        let longest = spread(Duration::from_secs(3600));
        assert_eq!(longest, Duration::from_secs(24));
        assert!(longest < SURVEY_TIMEOUT, "the last namespaces have time before the time limit");
    }

    #[test]
    fn silent_first_pod_does_not_hide_the_numbers() {
        let found = status(&cluster(3).crash(0));
        assert_eq!(
            (found.voters, found.healthy, found.quorum, found.spare),
            (Some(3), Some(2), Some(2), Some(0))
        );
    }

    #[test]
    fn status_warns_of_releases_with_stale_reads() {
        let problems = |version: &str| {
            let snapshot = cluster(3).restate(1, |status| version.clone_into(&mut status.version));
            status(&snapshot).problems
        };
        assert_eq!(problems("3.5.31"), [""; 0]);
        let wrong_list = |version: &str, fixed: &str| {
            format!(
                "etcd {version} (etcd-1) can list a learner as a voter, or a voter as a learner (etcd issues 21694, 19557): \
                 upgrade to {fixed} or later"
            )
        };
        assert_eq!(problems("3.5.30"), [wrong_list("3.5.30", "3.5.31")]);
        assert_eq!(
            problems("3.5.16"),
            [
                "etcd 3.5.16 (etcd-1) can confirm a linearizable read at a deposed leader (etcd issue 20418): upgrade to 3.5.28 \
              or later",
                &wrong_list("3.5.16", "3.5.31"),
            ]
        );
    }

    #[test]
    fn serving_single_voter_is_a_state_of_its_own() {
        assert_eq!(state(&cluster(1)), ClusterState::SingleMember);
    }

    #[test]
    fn distinguishes_unknown_from_no_quorum() {
        assert_eq!(state(&cluster(3).crash(0).crash(1).crash(2)), ClusterState::Unknown);
        assert_eq!(state(&cluster(3).crash(0).starve(1).starve(2)), ClusterState::NoQuorum);
    }

    #[test]
    fn labels_of_states_are_distinct() {
        let labels: BTreeSet<_> = ClusterState::ALL.iter().map(|state| state.as_str()).collect();
        assert_eq!(labels.len(), ClusterState::ALL.len());
    }
}
