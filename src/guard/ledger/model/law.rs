//! What must hold of every state.

use stateright::Property;

use super::{Action, Call, LIFE, Phase, Stage, State, Uid, World};

pub(super) const LAW: &str = "no yes costs the quorum";
pub(super) const LONE: &str = "a lone deletion that costs no quorum is granted in the end";
pub(super) const SPARE: &str = "all voters that can be spared are allowed to go at once";
pub(super) const NEXT: &str = "a pod is allowed to go when another has come back";

/// More than a decision takes where nobody else writes: reads, a list, a look, a write.
const MOST_STEPS: u8 = 6;

/// stateright's `eventually` holds on acyclic graphs alone, and time makes cycles here: so the liveness is an `always`, too.
/// From every state the world can come to rest, and wherever it rests, a deletion is granted.
pub(super) fn properties() -> Vec<Property<World>> {
    vec![
        Property::always(LAW, |_, state: &State| !state.broken),
        Property::always(LONE, |world: &World, state: &State| {
            let is_free = |pod: &u8| world.others_are_a_quorum(state, *pod);
            !state.is_at_rest()
                || (0..).take(state.pods.len()).filter(is_free).all(|pod| world.grants_in_the_end(state, pod))
        }),
        // These keep the search from finding nothing because nothing is ever allowed.
        Property::sometimes(SPARE, |world: &World, state: &State| {
            let serves = |call: &&Call| state.pods[usize::from(call.uid.pod)].phase == Phase::Serving;
            let allowed = state.calls.iter().filter(|call| call.stage == Stage::Allowed).filter(serves);
            allowed.filter(|call| world.is_voter(call.uid.pod)).count()
                == usize::from(world.voters) - world.quorum()
        }),
        Property::sometimes(NEXT, |_, state: &State| {
            let is_back = state.pods.iter().any(|pod| pod.incarnation > 0 && pod.phase == Phase::Serving);
            let is_allowed = |call: &Call| call.stage == Stage::Allowed && call.uid.incarnation == 0;
            is_back && state.calls.iter().any(is_allowed)
        }),
    ]
}

// === impl World ===

impl World {
    /// Of a call that is answered yes at this moment: the voters that truly serve, without its pod and without all that
    /// were allowed to go and are not back, are a quorum.
    pub(super) fn keeps_the_law(&self, state: &State, call: &Call) -> bool {
        let Stage::Ready(ready) = &call.stage else { return true };
        // A yes to a pod that gave nothing takes nothing; what it may cost later is charged to later ones. A yes to one that
        // is gone does not reach its successor. A learner has no vote.
        if ready.idle || state.uid(call.uid.pod) != call.uid || !self.is_voter(call.uid.pod) {
            return true;
        }
        let is_going =
            |pod: u8| state.calls.iter().any(|it| it.stage == Stage::Allowed && it.uid == state.uid(pod));
        let serves = |pod: &u8| {
            let phase = state.pods[usize::from(*pod)].phase;
            // What died after the look is not charged to the guard.
            *pod != call.uid.pod && (phase == Phase::Serving || ready.died.contains(pod)) && !is_going(*pod)
        };
        (0..self.voters).filter(serves).count() >= self.quorum()
    }

    /// Whether the voters that serve are a quorum without this pod.
    fn others_are_a_quorum(&self, state: &State, pod: u8) -> bool {
        let serves = |it: &u8| *it != pod && state.pods[usize::from(*it)].phase == Phase::Serving;
        (0..self.voters).filter(serves).count() >= self.quorum()
    }

    /// Whether each replica, and one that has just started, says yes to whoever asks alone, now or at the latest when all
    /// that it has seen by now is over. It is asked, and answers, by the same steps as anywhere.
    fn grants_in_the_end(&self, state: &State, pod: u8) -> bool {
        let restarted = self.step(state, Action::Restart(0)).map(|state| (state, 0));
        let known = (0..self.replicas).map(|replica| (state.clone(), replica));
        known.chain(restarted).all(|(mut state, replica)| {
            self.grants(&mut state, pod, replica) || {
                for _ in 0..LIFE {
                    self.go(&mut state, Action::Tick);
                }
                self.grants(&mut state, pod, replica)
            }
        })
    }

    /// Asks this replica for a pod, while nobody else does anything: whether it says yes, and keeps the law.
    fn grants(&self, state: &mut State, pod: u8, replica: u8) -> bool {
        self.go(state, Action::Ask { pod, replica });
        for _ in 0..MOST_STEPS {
            let Some(call) = state.calls.first() else { return false };
            let action = match &call.stage {
                // Nothing changes meanwhile.
                Stage::Reading { .. } => Action::Read(0, 0),
                Stage::Relisting { .. } => Action::List(0),
                Stage::Looking { .. } => Action::Look(0),
                Stage::Ready(_) => Action::Write(0),
                Stage::StartingOver | Stage::Adrift { .. } => return false,
                Stage::Allowed => return !state.broken,
            };
            self.go(state, action);
        }
        false
    }

    fn go(&self, state: &mut State, action: Action) {
        if let Some(next) = self.step(state, action) {
            *state = next;
        }
    }
}

// === impl State ===

impl State {
    pub(super) fn uid(&self, pod: u8) -> Uid {
        Uid { pod, incarnation: self.pods[usize::from(pod)].incarnation }
    }

    /// Nothing is under way. Members may be down.
    fn is_at_rest(&self) -> bool {
        !self.broken && self.calls.is_empty() && self.pods.iter().all(|pod| pod.phase != Phase::Terminating)
    }
}
