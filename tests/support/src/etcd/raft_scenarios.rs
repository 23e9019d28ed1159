//! Faults of small clusters, after which the verdicts of the guard on each member are recorded with real etcd and compared
//! with the simulation.

use serde_json::{Value, json};

/// A member: 0 is the leader before the faults, and the followers have the next numbers. An added member is the last one.
pub type Label = usize;

/// A cluster, and the faults that occur one after another.
pub struct RaftScenario {
    /// The name in the recordings.
    pub name: &'static str,
    /// The number of voters at the start.
    pub voters: usize,
    /// The member that joins before the faults.
    pub added: Option<Added>,
    /// The faults.
    pub faults: &'static [Fault],
}

/// A member that joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// A voter that is listed and does not run.
    StoppedVoter,
    /// A learner that runs.
    Learner,
}

/// A fault or an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process ends.
    Kill(Label),
    /// A process that has ended starts again.
    Start(Label),
    /// The process stops, and accepts connections.
    Pause(Label),
    /// Two members do not reach each other.
    Cut(Label, Label),
    /// Messages from the first member do not reach the second one.
    Lose(Label, Label),
    /// Leadership moves to this follower.
    Transfer(Label),
    /// The member is removed from the cluster, and its process ends.
    Remove(Label),
}

const fn scenario(name: &'static str, voters: usize, faults: &'static [Fault]) -> RaftScenario {
    RaftScenario { name, voters, added: None, faults }
}

const fn growing(name: &'static str, voters: usize, added: Added, faults: &'static [Fault]) -> RaftScenario {
    RaftScenario { name, voters, added: Some(added), faults }
}

/// All scenarios.
pub const RAFT_SCENARIOS: [RaftScenario; 24] = {
    use Fault::{Cut, Kill, Lose, Pause, Remove, Start, Transfer};
    [
        scenario("three voters", 3, &[]),
        scenario("five voters", 5, &[]),
        scenario("a follower is killed", 3, &[Kill(1)]),
        scenario("the leader is killed", 3, &[Kill(0)]),
        scenario("the leader is killed and starts again", 3, &[Kill(0), Start(0)]),
        scenario("a follower is paused", 3, &[Pause(1)]),
        scenario("the leader is paused", 3, &[Pause(0)]),
        scenario("two followers are killed", 3, &[Kill(1), Kill(2)]),
        scenario("the leader and a follower are killed", 3, &[Kill(0), Kill(1)]),
        scenario("the leader and a follower are paused", 3, &[Pause(0), Pause(1)]),
        scenario("a follower is cut off", 3, &[Cut(1, 0), Cut(1, 2)]),
        scenario("the leader is cut off", 3, &[Cut(0, 1), Cut(0, 2)]),
        scenario("the leader and a follower do not reach each other", 3, &[Cut(0, 1)]),
        scenario("the followers do not reach each other", 3, &[Cut(1, 2)]),
        scenario("a follower does not receive", 3, &[Lose(0, 1), Lose(2, 1)]),
        scenario("a follower does not send", 3, &[Lose(1, 0), Lose(1, 2)]),
        scenario("the leader does not receive", 3, &[Lose(1, 0), Lose(2, 0)]),
        scenario("the leader does not send", 3, &[Lose(0, 1), Lose(0, 2)]),
        scenario("leadership moves", 3, &[Transfer(1)]),
        scenario("a follower is removed", 3, &[Remove(1)]),
        growing("a stopped voter joins", 3, Added::StoppedVoter, &[]),
        growing("a learner joins", 3, Added::Learner, &[]),
        scenario("two of five are killed", 5, &[Kill(0), Kill(1)]),
        scenario(
            "the leader of five is cut off with a follower",
            5,
            &[Cut(0, 2), Cut(0, 3), Cut(0, 4), Cut(1, 2), Cut(1, 3), Cut(1, 4)],
        ),
    ]
};

// === impl RaftScenario ===

impl RaftScenario {
    /// Number of members, with the added one.
    #[must_use]
    pub fn members(&self) -> usize {
        self.voters + usize::from(self.added.is_some())
    }

    /// Whether links between members fail.
    #[must_use]
    pub fn cuts_links(&self) -> bool {
        self.faults.iter().any(|fault| matches!(fault, Fault::Cut(..) | Fault::Lose(..)))
    }

    /// Returns the verdicts in a form that does not depend on the member that wins an election: those of the members that a
    /// fault affects, and those of the others in alphabetical order. `verdicts` are in the order of the labels.
    #[must_use]
    pub fn summarize(&self, verdicts: &[String]) -> Value {
        let is_affected = |label: usize| {
            self.added.is_some() && label == self.voters
                || self.faults.iter().any(|fault| match *fault {
                    Fault::Kill(member)
                    | Fault::Start(member)
                    | Fault::Pause(member)
                    | Fault::Transfer(member)
                    | Fault::Remove(member) => member == label,
                    Fault::Cut(one, other) | Fault::Lose(one, other) => one == label || other == label,
                })
        };
        let (affected, others): (Vec<usize>, Vec<usize>) =
            (0..self.members()).partition(|label| is_affected(*label));
        // The members of a cluster without a leader's fault elect one of several.
        let elects = self.elects();
        let texts = |labels: Vec<usize>| labels.into_iter().filter_map(|label| verdicts.get(label).cloned());
        let mut others: Vec<String> = texts(others).collect();
        let affected: Vec<String> = texts(affected).collect();
        if elects {
            others.extend(affected);
            others.sort();
            return json!({"members": others});
        }
        others.sort();
        json!({"affected": affected, "others": others})
    }

    /// Whether affected members can win an election, so that their verdicts depend on chance.
    fn elects(&self) -> bool {
        self.cuts_links() || self.faults.iter().any(|fault| matches!(fault, Fault::Start(_)))
    }
}
