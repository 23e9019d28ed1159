//! Seeded mistakes of the guard. The simulation activates one of them to prove that its invariants detect it.
//!
//! Only builds with debug assertions contain the switch. In release builds `Mistake::is_active` is a constant, and the
//! compiler removes the code of the mistakes.

#[cfg(debug_assertions)]
use std::cell::Cell;

/// A mistake in an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A cached snapshot approves a deletion.
    ApproveFromCache,
    /// The reservations are read again after the probe round, and the evaluation does not count them.
    ReadLedgerAfterProbe,
    /// A write of a ledger is not sent, and counts as successful.
    LoseLeaseUpdate,
    /// Terminating pods of other owners than the target's count as remaining.
    IgnoreForeignTerminating,
    /// Every deletion that the garbage collector requests is a cascade.
    BelieveGarbageCollector,
    /// The result of the second probe round, after a transfer of leadership, is ignored.
    SkipSecondProbe,
    /// The lifetime of a reservation is measured on the wall clocks of the replicas.
    ExpireByWallClock,
    /// A confirmed read counts as proof of health, also if the member follows a deposed leader.
    CountStaleRead,
    /// Approvals without a cluster id do not count.
    IgnoreWithoutClusterId,
    /// The member list is believed, also where it contradicts what the members do.
    BelieveMemberList,
    /// The approval of an eviction without a uid reserves the pod, and not its name.
    ReserveNoNames,
}

#[cfg(debug_assertions)]
thread_local! {
    /// The active mistake of this thread.
    static ACTIVE: Cell<Option<Mistake>> = const { Cell::new(None) };
}

// === impl Mistake ===

impl Mistake {
    /// All mistakes.
    pub const ALL: [Self; 11] = [
        Self::ApproveFromCache,
        Self::ReadLedgerAfterProbe,
        Self::LoseLeaseUpdate,
        Self::IgnoreForeignTerminating,
        Self::BelieveGarbageCollector,
        Self::SkipSecondProbe,
        Self::ExpireByWallClock,
        Self::CountStaleRead,
        Self::IgnoreWithoutClusterId,
        Self::BelieveMemberList,
        Self::ReserveNoNames,
    ];

    /// Makes this thread commit a mistake, or none.
    #[cfg(debug_assertions)]
    pub fn activate(mistake: Option<Self>) {
        ACTIVE.set(mistake);
    }

    /// Whether this thread commits the mistake.
    #[cfg(debug_assertions)]
    pub fn is_active(self) -> bool {
        ACTIVE.get() == Some(self)
    }

    /// Whether this thread commits the mistake: never.
    #[cfg(not(debug_assertions))]
    pub const fn is_active(self) -> bool {
        false
    }
}
