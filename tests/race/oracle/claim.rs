//! The claim of an approval, the state of its member, and whether both together require a quorum of other members.

/// The basis of an approval, as far as its reason states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// A quorum of other members.
    Quorum,
    /// The pod serves nothing or does not exist, so no quorum is needed.
    ServesNothing,
    /// Not stated. The subject is assumed to know if the pod serves nothing.
    Unstated,
}

/// The state of a member at the time of the request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MemberState {
    /// Whether its process had run long enough to serve.
    pub(super) ran: bool,
    /// Whether its address accepts connections. etcd listens before it takes part in anything, and continues while it
    /// is frozen or has no quorum: a member that does not listen has no vote.
    pub(super) listens: bool,
    pub(super) serves: bool,
}

// === impl Claim ===

impl Claim {
    /// Whether an approval with this claim for a member in this state requires a quorum of other members.
    pub(super) fn requires_quorum(self, state_before: MemberState) -> bool {
        // A running member may vote even if it does not serve, and the others may have a quorum only with its vote.
        let may_vote = state_before.ran && state_before.listens;
        match self {
            Self::Quorum => true,
            // A member that started after the guard's probe is not the guard's responsibility.
            Self::ServesNothing => may_vote,
            // The subject does not state that it probed the member.
            Self::Unstated => may_vote || state_before.serves,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVES: MemberState = MemberState { ran: true, listens: true, serves: true };
    const FROZEN_OR_ALONE: MemberState = MemberState { serves: false, ..SERVES };
    const JUST_UP: MemberState = MemberState { ran: false, ..SERVES };
    const NOT_YET_UP: MemberState = MemberState { listens: false, ..FROZEN_OR_ALONE };
    const DOWN: MemberState = MemberState { ran: false, listens: false, serves: false };

    #[test]
    fn approval_requires_quorum_unless_member_has_no_vote() {
        let needs = |claim: Claim| {
            [SERVES, FROZEN_OR_ALONE, JUST_UP, NOT_YET_UP, DOWN].map(|state| claim.requires_quorum(state))
        };
        assert_eq!(needs(Claim::Quorum), [true, true, true, true, true]);
        assert_eq!(needs(Claim::ServesNothing), [true, true, false, false, false]);
        assert_eq!(needs(Claim::Unstated), [true, true, true, false, false]);
    }
}
