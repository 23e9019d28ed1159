//! Numbers of a verdict, and the arithmetic of quorums.

use crate::etcd::{MemberId, ProbeResult, Status};
use crate::guard::model::{
    membership::{Member, Membership},
    snapshot::Snapshot,
};

/// Voters of a cluster, counted for one deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Voters in the member list.
    pub voters: usize,
    /// Voters that the probe round proved healthy.
    pub healthy: usize,
    /// Number of voters in a majority.
    pub quorum: usize,
    /// Healthy voters that would remain: without the deleted members, and without members that are leaving.
    pub remaining: usize,
    /// The leader, if all serving members of the highest term name the same one.
    pub leader: Option<MemberId>,
    /// The highest term of a serving member.
    pub term: u64,
}

/// Number of voters in a majority of `voters`.
pub(in crate::guard) const fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

// === impl Tally ===

impl Tally {
    /// Counts the voters for the deletion of all members for which `is_deleted` is true.
    pub(in crate::guard) fn new(
        snapshot: &Snapshot,
        membership: &Membership<'_>,
        is_deleted: impl Fn(&Member<'_>) -> bool,
    ) -> Self {
        let (leader, term) = leader(snapshot);
        let voters = membership.voters().count();
        let healthy = || membership.voters().filter(|voter| voter.is_healthy());
        Self {
            voters,
            healthy: healthy().count(),
            quorum: quorum(voters),
            remaining: healthy().filter(|voter| !voter.is_leaving() && !is_deleted(voter)).count(),
            leader,
            term,
        }
    }

    /// Whether the remaining voters are a quorum.
    pub(in crate::guard) const fn has_quorum(&self) -> bool {
        self.remaining >= self.quorum
    }

    /// Whether the remaining voters are a quorum and one more lost voter would cost it.
    pub(in crate::guard) const fn has_no_spare(&self) -> bool {
        self.remaining == self.quorum
    }
}

/// Returns the leader that all serving members of the highest term name, and that term. Other members do not count: a
/// partitioned member names a former leader, and before etcd 3.5 increases its term continuously.
fn leader(snapshot: &Snapshot) -> (Option<MemberId>, u64) {
    let serving = snapshot.replies().filter(|reply| reply.is_healthy());
    let serving: Vec<&Status> = serving.filter_map(ProbeResult::status).collect();
    let term = serving.iter().map(|status| status.term).max().unwrap_or(0);
    let mut named = serving.iter().filter(|status| status.term == term).map(|status| status.leader);
    let leader = named.next().flatten();
    let is_unanimous = named.all(|other| other == leader);
    (leader.filter(|_| is_unanimous), term)
}
