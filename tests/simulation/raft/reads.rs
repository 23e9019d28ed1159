//! Linearizable reads, as the members confirm them and as they are in truth.

use tokio::time::Instant;

use super::{Cluster, Role};

impl Cluster {
    /// Whether a member confirms a linearizable read now. With etcd issue 20418 this can be wrong.
    pub(crate) fn confirms_read(&self, member: usize, now: Instant) -> bool {
        let state = &self.members[member];
        if self.confirms_stale_reads
            && state.takes_part()
            && state.role == Role::Leader
            && state.is_catching_up_until > now
        {
            // The acknowledgements of heartbeats before the pause confirm the read.
            return true;
        }
        // A learner that is listed as a voter passes reads on to the leader.
        let is_wrong = state.is_learner && !state.is_listed_learner();
        self.serves(member, now) || is_wrong && self.follows(member, now)
    }

    /// Whether a member serves linearizable reads: the leader that it follows has a quorum, and the member has applied
    /// what the leader has committed.
    pub(crate) fn serves(&self, member: usize, now: Instant) -> bool {
        !self.members[member].is_learner && self.follows(member, now)
    }

    /// Whether the leader that a member follows has a quorum, and the member has applied what the leader has committed.
    fn follows(&self, member: usize, now: Instant) -> bool {
        let state = &self.members[member];
        let Some(leader) = state.leader.filter(|_| state.takes_part()) else { return false };
        let lead = &self.members[leader];
        let follows = self.reach_each_other(member, leader)
            && lead.role == Role::Leader
            && lead.term == state.term
            && lead.is_catching_up_until <= now
            && state.is_catching_up_until <= now
            && lead.has_committed
            && !lead.has_slow_disk
            && (!state.has_slow_disk || member == leader);
        let confirming = self.voters().filter(|voter| {
            let voter_state = &self.members[*voter];
            self.reach_each_other(*voter, leader)
                && voter_state.is_catching_up_until <= now
                && voter_state.term <= lead.term
        });
        follows && confirming.count() >= self.quorum() && state.applied.1 == lead.term
    }
}
