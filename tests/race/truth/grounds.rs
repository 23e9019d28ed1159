//! What a yes claims, what its pod was like, and whether the two together take a quorum of others.

/// What a yes rests on, as far as it says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grounds {
    /// A quorum of others.
    Quorum,
    /// The pod serves nothing or is gone: no quorum is needed.
    ServesNothing,
    /// Nobody said. It is believed to have seen that the pod serves nothing, if that is so.
    Untold,
}

/// A pod's member at the time when it was asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Before {
    /// Whether its process ran for long enough to serve.
    pub(super) ran: bool,
    /// Whether somebody accepts connections at its address. etcd does before it takes part in anything, and goes on when
    /// it is frozen or finds no quorum: where nobody does there is no vote.
    pub(super) listens: bool,
    pub(super) serves: bool,
}

// === impl Grounds ===

impl Grounds {
    /// Whether a yes that rests on this, to a member that was like that, takes a quorum of others.
    pub(super) fn need_a_quorum(self, before: Before) -> bool {
        // A pod that runs may vote, even if it does not serve: the others may have a quorum only with it.
        let may_vote = before.ran && before.listens;
        match self {
            Self::Quorum => true,
            // What has come up since the guard looked is not charged to it.
            Self::ServesNothing => may_vote,
            // Of these nobody said that they had looked.
            Self::Untold => may_vote || before.serves,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVES: Before = Before { ran: true, listens: true, serves: true };
    const FROZEN_OR_ALONE: Before = Before { serves: false, ..SERVES };
    const JUST_UP: Before = Before { ran: false, ..SERVES };
    const NOT_YET_UP: Before = Before { listens: false, ..FROZEN_OR_ALONE };
    const DOWN: Before = Before { ran: false, listens: false, serves: false };

    #[test]
    fn a_yes_needs_a_quorum_of_others_unless_its_pod_has_no_vote() {
        let needs = |grounds: Grounds| {
            [SERVES, FROZEN_OR_ALONE, JUST_UP, NOT_YET_UP, DOWN].map(|it| grounds.need_a_quorum(it))
        };
        assert_eq!(needs(Grounds::Quorum), [true, true, true, true, true]);
        assert_eq!(needs(Grounds::ServesNothing), [true, true, false, false, false]);
        assert_eq!(needs(Grounds::Untold), [true, true, true, false, false]);
    }
}
