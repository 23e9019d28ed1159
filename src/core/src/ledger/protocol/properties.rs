//! Properties of every reachable state.

use stateright::Property;

use crate::ledger::protocol::{Action, LIFETIME, PodState, Request, RequestStage, State, Uid, World};

pub(super) const SAFETY: &str = "no approval costs the quorum";
pub(super) const LEADERSHIP: &str = "no approval rests on a leader that is leaving";
pub(super) const LIVENESS: &str = "a single harmless deletion is eventually approved";
pub(super) const ALL_SPARE_VOTERS: &str = "all spare voters can be approved at the same time";
pub(super) const AFTER_RETURN: &str = "a deletion is approved after another pod has returned";

/// Upper bound for the steps of an evaluation without concurrent writes: reads, a list, a probe, a write, and after a
/// transfer of leadership the same again.
const MAX_STEPS: u8 = 12;

/// Returns the properties. Liveness is an `always` property, because `eventually` of stateright requires acyclic graphs and
/// time creates cycles. Every state can reach a quiescent state, and every quiescent state must approve a harmless deletion.
pub(super) fn properties() -> Vec<Property<World>> {
    vec![
        Property::always(SAFETY, |_, state: &State| !state.violated),
        Property::always(LEADERSHIP, |_, state: &State| !state.misled),
        Property::always(LIVENESS, |world: &World, state: &State| {
            let is_free = |pod: &u8| world.others_are_a_quorum(state, *pod);
            !state.is_quiescent()
                || (world.leadership && state.leader.is_none())
                || (0..)
                    .take(state.pods.len())
                    .filter(is_free)
                    .all(|pod| world.eventually_approves(state, pod))
        }),
        // These properties fail if the model approves too little to be meaningful.
        Property::sometimes(ALL_SPARE_VOTERS, |world: &World, state: &State| {
            let serves =
                |request: &&Request| state.pods[usize::from(request.uid.pod)].state == PodState::Serving;
            let allowed = state
                .requests
                .iter()
                .filter(|request| request.stage == RequestStage::Approved)
                .filter(serves);
            allowed.filter(|request| world.is_voter(request.uid.pod) && !request.is_cascade).count()
                == usize::from(world.voters) - world.quorum()
        }),
        Property::sometimes(AFTER_RETURN, |_, state: &State| {
            let is_back = state.pods.iter().any(|pod| pod.incarnation > 0 && pod.state == PodState::Serving);
            let is_allowed =
                |request: &Request| request.stage == RequestStage::Approved && request.uid.incarnation == 0;
            is_back && state.requests.iter().any(is_allowed)
        }),
    ]
}

// === impl World ===

impl World {
    /// Whether the approval of `request` satisfies the safety invariant: the voters that serve, without its pod and without
    /// all approved pods that have not returned, form a quorum.
    pub(super) fn satisfies_safety(&self, state: &State, request: &Request) -> bool {
        let RequestStage::Ready(ready) = &request.stage else { return true };
        // The deletion of a pod that does not serve costs nothing now; later approvals account for it. The deletion of a
        // pod that is gone does not reach its successor. A learner has no vote.
        if ready.idle || state.uid(request.uid.pod) != request.uid || !self.is_voter(request.uid.pod) {
            return true;
        }
        let is_leaving = |pod: u8| {
            state
                .requests
                .iter()
                .any(|request| request.stage == RequestStage::Approved && request.uid == state.uid(pod))
        };
        let serves = |pod: &u8| {
            let pod_state = state.pods[usize::from(*pod)].state;
            // A crash after the probe is not the fault of the guard.
            *pod != request.uid.pod
                && (pod_state == PodState::Serving || ready.crashed.contains(pod))
                && !is_leaving(*pod)
        };
        let voters: Vec<u8> = (0..self.voters).filter(serves).collect();
        self.are_a_quorum(state, &voters)
    }

    /// Whether the serving voters form a quorum without this pod. The guard counts a voter only if its reads pass.
    fn others_are_a_quorum(&self, state: &State, pod: u8) -> bool {
        let serves = |other: &u8| {
            let is_up = state.pods[usize::from(*other)].state == PodState::Serving;
            *other != pod && is_up && (!self.leadership || self.serves_reads(state, *other))
        };
        let voters: Vec<u8> = (0..self.voters).filter(serves).collect();
        self.are_a_quorum(state, &voters)
    }

    /// Whether every replica, and a replica that has just restarted, approves a single request now or after all
    /// reservations that it knows have expired. The evaluation takes the ordinary transitions of the model.
    fn eventually_approves(&self, state: &State, pod: u8) -> bool {
        let restarted = self.step(state, Action::Restart(0)).map(|state| (state, 0));
        let known = (0..self.replicas).map(|replica| (state.clone(), replica));
        known.chain(restarted).all(|(mut state, replica)| {
            self.approves(&mut state, pod, replica) || {
                for _ in 0..LIFETIME {
                    self.apply(&mut state, Action::Tick);
                }
                self.approves(&mut state, pod, replica)
            }
        })
    }

    /// Whether the replica approves the deletion of a pod without concurrent activity, and satisfies the safety invariant.
    fn approves(&self, state: &mut State, pod: u8, replica: u8) -> bool {
        self.apply(state, Action::Evaluate { pod, replica });
        for _ in 0..MAX_STEPS {
            let Some(request) = state.requests.first() else { return false };
            let action = match &request.stage {
                // The values do not change during the reads.
                RequestStage::Reading { .. } => Action::Read(0, 0),
                RequestStage::Relisting { .. } => Action::List(0),
                RequestStage::Probing { .. } => Action::Probe(0),
                RequestStage::Ready(_) => Action::Write(0),
                RequestStage::Transferring { candidates } => Action::Transfer(0, candidates[0]),
                RequestStage::Retrying | RequestStage::WriteAbandoned { .. } => return false,
                RequestStage::Approved => return !state.violated && !state.misled,
            };
            self.apply(state, action);
        }
        false
    }

    fn apply(&self, state: &mut State, action: Action) {
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

    /// Whether no request is in progress and no pod is terminating. Members can be down.
    fn is_quiescent(&self) -> bool {
        !self.violated
            && !self.misled
            && self.requests.is_empty()
            && self.pods.iter().all(|pod| pod.state != PodState::Terminating)
    }
}
