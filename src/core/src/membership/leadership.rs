//! Leadership of a cluster, as its serving voters report it.
//!
//! A linearizable read alone is not proof of a current leader: before 3.4.42, 3.5.28 and 3.6.9, etcd can confirm a read at a
//! leader that was paused and deposed (etcd issue 20418). The term is the second proof. A member reports the term of the
//! last entry that it has applied, and a new leader serves reads only after it has committed an entry of its own term.
//! Therefore every member that passed a read through the current leader reports the current term.

use crate::etcd::member::{MemberId, Status};

/// The leader that the serving voters of the highest term name, and that term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The leader, if all serving voters of the highest term name the same one.
    pub leader: Option<MemberId>,
    /// The highest term of a serving voter.
    pub term: u64,
}

// === impl Leadership ===

impl Leadership {
    /// Determines the leadership from the statuses of the voters whose linearizable read passed. Other members do not
    /// count: a member that is cut off may name a former leader, and may report any term.
    pub fn new(serving: &[&Status]) -> Self {
        let term = serving.iter().map(|status| status.term).max().unwrap_or(0);
        let mut named = serving.iter().filter(|status| status.term == term).map(|status| status.leader);
        let leader = named.next().flatten();
        let is_unanimous = named.all(|other| other == leader);
        Self { leader: leader.filter(|_| is_unanimous), term }
    }

    /// Whether a member with this status follows the current leadership. Members of the highest term that name different
    /// leaders need no further check: the leader is then unknown, and no deletion is approved.
    pub fn is_current(self, status: &Status) -> bool {
        status.term == self.term
    }
}
