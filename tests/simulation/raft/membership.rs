//! Changes of the membership, with the conditions of etcd's `--strict-reconfig-check`. Source: `server/etcdserver/server.go`.

use tokio::time::Instant;

use super::Cluster;

/// The number of entries by which a learner may lag behind the leader when it is promoted.
const PROMOTION_LAG: u64 = 5;

impl Cluster {
    /// Removes a voter, unless the leader lacks a quorum of the others. Its process ends. Returns whether it is removed.
    pub(crate) fn remove_voter(&mut self, member: usize, now: Instant) -> bool {
        let others: Vec<usize> = self.voters().filter(|voter| *voter != member).collect();
        let connected = others.iter().filter(|voter| self.serves(**voter, now)).count();
        let is_possible = self.members[member].leader != Some(member)
            && !others.is_empty()
            && connected > others.len() / 2
            && self.serves_somewhere(now);
        if is_possible {
            self.remove(member);
            self.changed_at = Some(now);
        }
        is_possible
    }

    /// Adds a removed member again: a learner with another id and without data. Returns whether it is added.
    pub(crate) fn add_learner(&mut self, member: usize, now: Instant) -> bool {
        if !self.serves_somewhere(now) {
            return false;
        }
        let id = self.members.iter().map(|member| member.id).max().unwrap() + 1;
        let state = &mut self.members[member];
        (state.id, state.is_removed, state.is_learner) = (id, false, true);
        (state.term, state.log, state.applied) = (0, 0, (0, 0));
        state.voted_in = 0;
        state.address = String::new();
        self.changed_at = Some(now);
        true
    }

    /// Promotes a learner that has caught up with the leader. Returns whether it is a voter now.
    pub(crate) fn promote(&mut self, member: usize, now: Instant) -> bool {
        let state = &self.members[member];
        let Some(leader) = state.leader.filter(|_| state.takes_part()) else { return false };
        let lead = &self.members[leader];
        let voters = self.voters().count();
        let connected = self.voters().filter(|voter| self.serves(*voter, now)).count() + 1;
        let is_possible = self.serves(leader, now)
            && self.reach_each_other(member, leader)
            && state.is_catching_up_until <= now
            && !state.has_slow_disk
            && state.applied.1 == lead.term
            && state.applied.0 + PROMOTION_LAG >= lead.applied.0
            && connected > usize::midpoint(voters, 1);
        if is_possible {
            self.members[member].is_learner = false;
            self.changed_at = Some(now);
        }
        is_possible
    }

    /// Whether a leader has a quorum.
    fn serves_somewhere(&self, now: Instant) -> bool {
        self.voters().any(|voter| self.members[voter].leader == Some(voter) && self.serves(voter, now))
    }
}
