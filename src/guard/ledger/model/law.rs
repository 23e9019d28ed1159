//! What must hold of every state.

use stateright::Property;

use super::{Call, LIFE, Look, Phase, Replica, Stage, State, Uid, World};

pub(super) const LAW: &str = "no yes costs the quorum";
pub(super) const LONE: &str = "a lone deletion of a healthy cluster's pod is granted in the end";
pub(super) const SPARE: &str = "all voters that can be spared are allowed to go at once";
pub(super) const NEXT: &str = "a pod is allowed to go when another has come back";

/// stateright's `eventually` holds on acyclic graphs alone, and time makes cycles here: so the liveness is an `always`, too.
/// From every state the world can come to rest, and wherever it rests, a deletion is granted.
pub(super) fn properties() -> Vec<Property<World>> {
    vec![
        Property::always(LAW, |_, state: &State| !state.broken),
        Property::always(LONE, |world: &World, state: &State| {
            !state.is_at_rest() || (0..world.voters).all(|pod| world.grants_in_the_end(state, pod))
        }),
        // These keep the search from finding nothing because nothing is ever allowed.
        Property::sometimes(SPARE, |world: &World, state: &State| {
            let serves = |call: &&Call| state.pods[usize::from(call.uid.pod)].phase == Phase::Serving;
            let allowed = state.calls.iter().filter(|call| call.stage == Stage::Allowed).filter(serves);
            allowed.count() == usize::from(world.voters) - world.quorum()
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
        // is gone does not reach its successor.
        if ready.idle || state.uid(call.uid.pod) != call.uid {
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

    /// Whether each replica, and one that has just started, says yes to whoever asks alone, now or at the latest when all
    /// that it has seen by now is over.
    fn grants_in_the_end(&self, state: &State, pod: u8) -> bool {
        let replicas = state.replicas.iter().cloned().chain([Replica::default()]);
        let grants = |replica: &mut Replica| {
            replica.observe(self, &state.record);
            let answers = self.answers(&state.pods, &state.pods);
            let held = replica.live(self, &state.record);
            self.reason(&Look { listed: state.pods.clone(), answers, held }, pod).allows()
        };
        replicas.into_iter().all(|mut replica| {
            grants(&mut replica) || {
                (0..LIFE).for_each(|_| replica.age());
                grants(&mut replica)
            }
        })
    }
}

// === impl State ===

impl State {
    pub(super) fn uid(&self, pod: u8) -> Uid {
        Uid { pod, incarnation: self.pods[usize::from(pod)].incarnation }
    }

    /// All members serve, and nothing is under way.
    fn is_at_rest(&self) -> bool {
        !self.broken && self.calls.is_empty() && self.pods.iter().all(|pod| pod.phase == Phase::Serving)
    }
}
