//! The effect of each action on a state.

use crate::{
    ledger::protocol::{
        Action, Defect, MAX_REQUEST_AGE, Observation, Pod, PodState, Ready, Replica, RequestStage, Reserved,
        State, Uid, World, observation,
        observation::{Answer, Judgement},
    },
    reason::Reason,
};

/// Returns one element, selected by a number that encodes the choices from several lists.
fn chosen<'a, T>(all: &'a [T], choice: &mut usize) -> &'a T {
    let place = *choice % all.len();
    *choice /= all.len();
    &all[place]
}

// === impl World ===

impl World {
    pub(super) fn step(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Evaluate { pod, replica } => state.begin(pod, replica, state.begin_reads()),
            Action::EvaluateFromCache { pod, replica } => {
                let observation = state.replicas[usize::from(replica)].cached.clone()?;
                if !self.judge(&observation, pod).reason.allows() {
                    return None;
                }
                let ready = Ready {
                    ledger: state.ledger.clone(),
                    listed: observation.listed,
                    idle: false,
                    proceeds_unreserved: false,
                    crashed: Vec::new(),
                    leader: observation.leader,
                    candidates: Vec::new(),
                };
                state.begin(pod, replica, RequestStage::Ready(ready));
            }
            Action::DeleteOwner { pod, replica } => {
                state.begin(pod, replica, state.begin_reads());
                state.cascades += 1;
                if let Some(request) = state.requests.last_mut() {
                    request.is_cascade = true;
                }
            }
            Action::Transfer(n, transferee) => self.transfer(&mut state, n, transferee),
            Action::Elect(pod) => state.leader = Some(pod),
            Action::Retry(n) => state.requests[n].stage = state.begin_reads(),
            Action::Read(n, choice) => self.read(&mut state, n, choice),
            Action::List(n) => state.list(n),
            Action::Probe(n) => self.probe(&mut state, n),
            Action::Write(n) => self.write(&mut state, n),
            Action::Fail(n) => {
                let RequestStage::Ready(Ready { proceeds_unreserved: true, .. }) = state.requests[n].stage
                else {
                    return None;
                };
                state.requests[n].stage = RequestStage::Approved;
            }
            Action::Abandon(n) if state.requests[n].stale => drop(state.requests.remove(n)),
            Action::Abandon(n) => {
                let ledger = self.next_ledger(&mut state, n);
                state.requests[n].stage = RequestStage::WriteAbandoned { ledger };
            }
            Action::WriteLate(n) => {
                let RequestStage::WriteAbandoned { ledger } = state.requests.remove(n).stage else {
                    return None;
                };
                state.store(ledger);
            }
            Action::Delete(n) => {
                let uid = state.requests.remove(n).uid;
                // Other approved deletions of the same pod have no further effect.
                state
                    .requests
                    .retain(|request| request.uid != uid || request.stage != RequestStage::Approved);
                let pod = &mut state.pods[usize::from(uid.pod)];
                match pod.state {
                    _ if pod.incarnation != uid.incarnation => {}
                    PodState::Serving => pod.state = PodState::Terminating,
                    PodState::Terminating => {}
                    PodState::Down => pod.incarnation += 1,
                }
            }
            Action::Stop(pod) => {
                let pod = &mut state.pods[usize::from(pod)];
                *pod = Pod { incarnation: pod.incarnation + 1, state: PodState::Down };
            }
            Action::Serve(pod) => state.pods[usize::from(pod)].state = PodState::Serving,
            Action::Crash(pod) => {
                state.pods[usize::from(pod)].state = PodState::Down;
                state.crashes += 1;
                for request in &mut state.requests {
                    if let RequestStage::Ready(ready) = &mut request.stage {
                        ready.crashed.push(pod);
                        ready.crashed.sort_unstable();
                        ready.crashed.dedup();
                    }
                }
            }
            Action::Restart(replica) => {
                state.replicas[usize::from(replica)] = Replica::default();
                state.restarts += 1;
                state.requests.retain(|request| request.replica != replica || !request.is_in_progress());
            }
            Action::Tick => {
                for request in &mut state.requests {
                    request.age += 1;
                }
                state.requests.retain(|request| request.age <= MAX_REQUEST_AGE);
                for replica in &mut state.replicas {
                    replica.age();
                }
            }
        }
        self.update_leader(&mut state);
        state.extend_reads();
        Some(state)
    }

    fn read(&self, state: &mut State, n: usize, mut choice: usize) {
        let request = &mut state.requests[n];
        let RequestStage::Reading { ledgers, pods } = &request.stage else { return };
        let ledger = chosen(ledgers, &mut choice).clone();
        let listed: Vec<Pod> = pods.iter().map(|values| *chosen(values, &mut choice)).collect();
        request.stale = ledger != state.ledger;
        let replica = &mut state.replicas[usize::from(request.replica)];
        replica.observe(self, &ledger);
        let held = replica.active(self, &ledger);
        request.stage = if replica.may_be_newer_than(self, &ledger, &listed) {
            RequestStage::Relisting { ledger, held }
        } else {
            RequestStage::Probing { ledger, held, listed }
        };
    }

    fn probe(&self, state: &mut State, n: usize) {
        let request = &state.requests[n];
        let RequestStage::Probing { ledger, held, listed } = &request.stage else { return };
        let Uid { pod, incarnation } = request.uid;
        let target = state.pods[usize::from(pod)];
        let (listed, held, ledger) = (listed.clone(), held.clone(), ledger.clone());
        let (is_cascade, moved, replica) = (request.is_cascade, request.moved, request.replica);
        let answers = self.answers(state, &listed);
        let observation = Observation { listed, answers, held, leader: state.leader };
        let Judgement { reason, candidates } = self.judge(&observation, pod);
        let listed = &observation.listed;
        let transfers = self.leadership
            && reason == Reason::LeaderProtected
            && !moved
            && !is_cascade
            && !self.has_defect(Defect::SkipsTransfer);
        let is_approved = is_cascade
            || reason.allows()
            || (transfers && !candidates.is_empty())
            || (self.has_defect(Defect::SkipsTransfer) && reason == Reason::LeaderProtected);
        // A pod that was replaced can no longer be deleted.
        let is_asked_for = listed[usize::from(pod)].incarnation == incarnation
            && listed[usize::from(pod)].state != PodState::Terminating;
        // Only whether a pod serves matters for the write.
        let serves = |(pod, answer): (&Pod, &Answer)| Pod {
            incarnation: pod.incarnation,
            state: if pod.state == PodState::Serving && *answer == Answer::Serves {
                PodState::Serving
            } else {
                PodState::Down
            },
        };
        let ready = Ready {
            ledger,
            listed: listed.iter().zip(&observation.answers).map(serves).collect(),
            idle: observation::is_idle(reason) && target.state == PodState::Down,
            proceeds_unreserved: (!is_cascade && reason.allows() && !reason.removes_a_voter())
                || (self.has_defect(Defect::SkipsReservationOfIdlePods) && observation::is_idle(reason)),
            crashed: Vec::new(),
            leader: state.leader,
            candidates: if transfers { candidates } else { Vec::new() },
        };
        if self.has_defect(Defect::ApprovesFromCache) {
            state.replicas[usize::from(replica)].cached = Some(observation);
        }
        if is_asked_for && is_approved {
            state.requests[n].stage = RequestStage::Ready(ready);
        } else {
            state.requests.remove(n);
        }
    }

    /// Returns the ledger with the reservation of this request.
    fn next_ledger(&self, state: &mut State, n: usize) -> Vec<Reserved> {
        let request = &state.requests[n];
        let RequestStage::Ready(Ready { ledger, listed, .. }) = &request.stage else {
            return state.ledger.clone();
        };
        let new = Reserved { uid: request.uid, request: request.number };
        state.replicas[usize::from(request.replica)].with(self, ledger, new, listed)
    }

    fn write(&self, state: &mut State, n: usize) {
        if state.requests[n].stale && !self.has_defect(Defect::IgnoresConflicts) {
            state.requests[n].stage = RequestStage::Retrying;
            return;
        }
        if state.requests[n].is_cascade && self.has_defect(Defect::SkipsReservationOfCascades) {
            state.requests[n].stage = RequestStage::Approved;
            return;
        }
        let ledger = self.next_ledger(state, n);
        let replica = usize::from(state.requests[n].replica);
        if let RequestStage::Ready(Ready { candidates, .. }) = &state.requests[n].stage
            && !candidates.is_empty()
        {
            state.requests[n].stage = RequestStage::Transferring { candidates: candidates.clone() };
            state.store(ledger);
            state.replicas[replica].observe(self, &state.ledger);
            return;
        }
        if !state.requests[n].is_cascade {
            state.violated |= !self.satisfies_safety(state, &state.requests[n]);
            state.misled |= self.rests_on_leaving_leader(state, &state.requests[n]);
        }
        if let Some(observation) = &mut state.replicas[replica].cached {
            observation.held.push(Reserved { uid: state.requests[n].uid, request: state.requests[n].number });
        }
        state.requests[n].stage = RequestStage::Approved;
        state.store(ledger);
        state.replicas[replica].observe(self, &state.ledger);
    }
}

// === impl State ===

impl State {
    fn list(&mut self, n: usize) {
        let request = &mut self.requests[n];
        let RequestStage::Relisting { ledger, held } = &request.stage else { return };
        let (ledger, held) = (ledger.clone(), held.clone());
        request.stage = RequestStage::Probing { ledger, held, listed: self.pods.clone() };
    }
}
