//! Numbers of a verdict, and the arithmetic of quorums.

use crate::{
    etcd::member::MemberId,
    membership::{Member, Membership, leadership::Leadership},
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
pub const fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

// === impl Tally ===

impl Tally {
    /// Counts the voters for the deletion of all members for which `is_deleted` is true.
    pub fn new(membership: &Membership<'_>, is_deleted: impl Fn(&Member<'_>) -> bool) -> Self {
        let Leadership { leader, term } = membership.leadership();
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
    pub const fn has_quorum(&self) -> bool {
        self.remaining >= self.quorum
    }

    /// Whether the cluster could lose one voter if all its voters were healthy. A cluster of one or two voters cannot: time
    /// does not cure the denial of a deletion.
    pub const fn can_ever_spare_one(&self) -> bool {
        self.voters > self.quorum
    }

    /// Whether the cluster could lose two voters if all its voters were healthy: then the recovery of another voter cures
    /// the denial of a deletion with which a member is lost.
    pub const fn can_ever_spare_two(&self) -> bool {
        self.voters > self.quorum.saturating_add(1)
    }

    /// Whether the remaining voters are a quorum and one more lost voter would cost it.
    pub const fn has_no_spare(&self) -> bool {
        self.remaining == self.quorum
    }
}
