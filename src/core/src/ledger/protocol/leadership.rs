//! Leadership: elections, transfers, and voters that cannot reach each other.

use crate::ledger::protocol::{Defect, PodState, Request, RequestStage, State, World};

// === impl World ===

impl World {
    /// Whether the process of this voter runs and reaches a quorum, itself included.
    pub(super) fn can_lead(&self, state: &State, pod: u8) -> bool {
        let runs = |pod: u8| state.pods[usize::from(pod)].state != PodState::Down;
        let reached = (0..self.voters).filter(|other| runs(*other) && state.is_connected(pod, *other));
        runs(pod) && reached.count() >= self.quorum()
    }

    /// Whether linearizable reads pass at this running voter.
    pub(super) fn serves_reads(&self, state: &State, pod: u8) -> bool {
        if !self.leadership {
            let runs = |pod: &u8| state.pods[usize::from(*pod)].state != PodState::Down;
            return (0..self.voters).filter(runs).count() >= self.quorum();
        }
        state.leader.is_some_and(|leader| state.is_connected(leader, pod))
    }

    /// Whether these voters can elect a leader and commit writes.
    pub(super) fn are_a_quorum(&self, state: &State, voters: &[u8]) -> bool {
        let reached = |leader: &u8| voters.iter().filter(|pod| state.is_connected(*leader, **pod)).count();
        voters.iter().any(|leader| reached(leader) >= self.quorum())
    }

    /// Ends the leadership of a voter that stopped or lost its quorum.
    pub(super) fn update_leader(&self, state: &mut State) {
        state.leader = state.leader.filter(|leader| self.can_lead(state, *leader));
    }

    /// Transfers leadership from the target of a request. A transfer fails if the target does not lead any more, or if the
    /// other voter cannot lead: the request is then denied.
    pub(super) fn transfer(&self, state: &mut State, n: usize, transferee: u8) {
        let request = &state.requests[n];
        if state.leader != Some(request.uid.pod) || !self.can_lead(state, transferee) {
            state.requests.remove(n);
            return;
        }
        state.leader = Some(transferee);
        state.requests[n].moved = true;
        if self.has_defect(Defect::SkipsSecondProbe) {
            let pod = state.requests[n].uid.pod;
            let others: Vec<u8> =
                (0..self.voters).filter(|other| *other != pod && state.stays(*other)).collect();
            state.violated |= !self.are_a_quorum(state, &others);
            state.requests[n].stage = RequestStage::Approved;
        } else {
            state.requests[n].stage = state.begin_reads();
        }
    }

    /// Whether the leader during the probe of `request` is its target, or another voter that is leaving. A voter without
    /// vote can be deleted in any case.
    pub(super) fn rests_on_leaving_leader(&self, state: &State, request: &Request) -> bool {
        let RequestStage::Ready(ready) = &request.stage else { return false };
        let Some(leader) = ready.leader.filter(|_| !ready.idle && self.is_voter(request.uid.pod)) else {
            return false;
        };
        let is_current = state.uid(request.uid.pod) == request.uid;
        is_current && (leader == request.uid.pod || state.is_leaving(leader))
    }
}

// === impl State ===

impl State {
    /// Whether two voters reach each other.
    pub(super) fn is_connected(&self, one: u8, other: u8) -> bool {
        !self.cut.is_some_and(|cut| cut == (one, other) || cut == (other, one))
    }

    /// Whether the pod is terminating, its deletion is approved, or its leadership is being transferred for its deletion.
    pub(super) fn is_leaving(&self, pod: u8) -> bool {
        let leaves = |request: &Request| {
            let is_accepted = match &request.stage {
                RequestStage::Approved | RequestStage::Transferring { .. } => true,
                _ => request.moved,
            };
            is_accepted && request.uid == self.uid(pod)
        };
        self.pods[usize::from(pod)].state == PodState::Terminating || self.requests.iter().any(leaves)
    }

    /// Whether the pod serves and is not leaving.
    fn stays(&self, pod: u8) -> bool {
        self.pods[usize::from(pod)].state == PodState::Serving && !self.is_leaving(pod)
    }
}
