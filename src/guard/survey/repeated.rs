//! A survey now and then, so that somebody hears of a missing voter before a deletion is denied for it. It decides nothing,
//! and no verdict rests on it.
//!
//! Clusters are counted by their state, never named in a label: names come from users, and a label's values must not. The log
//! names a cluster when its state changes.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::{MissedTickBehavior, interval};

use super::ClusterStatus;
use crate::guard::{Deadline, Guard};

/// As much as any answer is given.
const SURVEY_LIMIT: Duration = Duration::from_secs(30);

/// What a survey finds of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::guard) enum State {
    /// A voter could go and a quorum would remain.
    Spare,
    /// Every healthy voter is needed.
    NoSpare,
    /// It has one voter, which is always needed: its owners want it so.
    SingleMember,
    /// Fewer healthy voters than a quorum takes were proven.
    NoQuorum,
    /// It could not be asked, or gave no answer to count by.
    Unknown,
}

// === impl Guard ===

impl Guard {
    /// Surveys every `every`, for as long as it is awaited.
    pub(in crate::guard) async fn survey_for_ever(&self, every: Duration) {
        let mut known: BTreeMap<String, State> = BTreeMap::new();
        // An interval of nothing would be no interval.
        let mut ticks = interval(every.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let survey = self.survey(None, Deadline::of(Some(SURVEY_LIMIT))).await;
            for problem in &survey.problems {
                tracing::warn!(problem, "survey");
            }
            let found: Vec<State> = survey.clusters.iter().map(State::of).collect();
            // Of what could not be looked at nobody knows how many clusters it holds: at least one.
            let unseen = survey.problems.iter().map(|_| State::Unknown);
            let counted: Vec<State> = found.iter().copied().chain(unseen).collect();
            self.looker.metrics.record_survey(&counted);
            let mut now = BTreeMap::new();
            for (cluster, state) in survey.clusters.iter().zip(found) {
                let name = format!("{}/{}", cluster.namespace, cluster.name);
                if known.get(&name) != Some(&state) {
                    tell(&name, cluster, state);
                }
                now.insert(name, state);
            }
            known = now;
        }
    }
}

/// One line for each change.
fn tell(name: &str, cluster: &ClusterStatus, state: State) {
    let ClusterStatus { voters, healthy, quorum, .. } = cluster;
    match state {
        State::NoSpare | State::NoQuorum | State::Unknown => {
            tracing::warn!(cluster = name, state = state.word(), voters, healthy, quorum, "survey");
        }
        State::Spare | State::SingleMember => {
            tracing::info!(cluster = name, state = state.word(), voters, healthy, quorum, "survey");
        }
    }
}

// === impl State ===

impl State {
    /// All states there are.
    pub(in crate::guard) const ALL: [Self; 5] =
        [Self::Spare, Self::NoSpare, Self::SingleMember, Self::NoQuorum, Self::Unknown];

    /// As the metric's label and the log write it.
    pub(in crate::guard) const fn word(self) -> &'static str {
        match self {
            Self::Spare => "spare",
            Self::NoSpare => "no_spare",
            Self::SingleMember => "single_member",
            Self::NoQuorum => "no_quorum",
            Self::Unknown => "unknown",
        }
    }

    fn of(cluster: &ClusterStatus) -> Self {
        let (Some(voters), Some(healthy), Some(spare)) = (cluster.voters, cluster.healthy, cluster.spare)
        else {
            // No linearizable read passed, which proves that there is no quorum only if members answered.
            let answers = cluster.members.iter().any(|it| it.version.is_some());
            return if answers { Self::NoQuorum } else { Self::Unknown };
        };
        match (voters, healthy, spare) {
            (1, 1, _) => Self::SingleMember,
            (_, _, ..0) => Self::NoQuorum,
            (_, _, 0) => Self::NoSpare,
            (_, _, 1..) => Self::Spare,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::guard::{
        assess::{census, tests::cluster},
        snapshot::Snapshot,
    };

    fn status(snapshot: &Snapshot) -> ClusterStatus {
        ClusterStatus::of(snapshot, &census(snapshot), &[], Vec::new(), Vec::new())
    }

    fn state(snapshot: &Snapshot) -> State {
        State::of(&status(snapshot))
    }

    #[test]
    fn a_cluster_is_counted_by_the_voters_that_could_go() {
        assert_eq!(state(&cluster(3)), State::Spare);
        assert_eq!(state(&cluster(3).crash(1)), State::NoSpare);
        assert_eq!(state(&cluster(5).crash(1)), State::Spare);
        assert_eq!(state(&cluster(5).crash(1).crash(2)), State::NoSpare);
        assert_eq!(state(&cluster(2)), State::NoSpare, "two voters survive the loss of none");
    }

    #[test]
    fn the_first_pod_that_is_silent_does_not_hide_the_numbers() {
        let found = status(&cluster(3).crash(0));
        assert_eq!(
            (found.voters, found.healthy, found.quorum, found.spare),
            (Some(3), Some(2), Some(2), Some(0))
        );
    }

    #[test]
    fn one_voter_that_serves_is_as_its_owners_want_it() {
        assert_eq!(state(&cluster(1)), State::SingleMember);
    }

    #[test]
    fn a_cluster_of_which_nobody_answers_is_unknown_and_one_that_proves_nothing_has_no_quorum() {
        assert_eq!(state(&cluster(3).crash(0).crash(1).crash(2)), State::Unknown);
        assert_eq!(state(&cluster(3).crash(0).starve(1).starve(2)), State::NoQuorum);
    }

    #[test]
    fn every_state_has_a_word_of_its_own() {
        let words: BTreeSet<_> = State::ALL.iter().map(|it| it.word()).collect();
        assert_eq!(words.len(), State::ALL.len());
    }
}
