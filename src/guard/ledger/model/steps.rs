//! What each action makes of a state.

use super::{
    Action, Held, Look, Mistake, OLDEST_CALL, Phase, Pod, Ready, Replica, Stage, State, Uid, World, look,
};

/// One of these by a number that chooses of several lists, one after the other.
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
            Action::Ask { pod, replica } => state.ask(pod, replica, state.start()),
            Action::AskLastLook { pod, replica } => {
                let look = state.replicas[usize::from(replica)].last_look.clone()?;
                if !self.reason(&look, pod).allows() {
                    return None;
                }
                let ready = Ready {
                    record: state.record.clone(),
                    listed: look.listed,
                    idle: false,
                    goes_unreserved: false,
                    died: Vec::new(),
                };
                state.ask(pod, replica, Stage::Ready(ready));
            }
            Action::StartOver(n) => state.calls[n].stage = state.start(),
            Action::Read(n, choice) => self.read(&mut state, n, choice),
            Action::List(n) => state.list(n),
            Action::Look(n) => self.look(&mut state, n),
            Action::Write(n) => self.write(&mut state, n),
            Action::Fail(n) => {
                let Stage::Ready(Ready { goes_unreserved: true, .. }) = state.calls[n].stage else {
                    return None;
                };
                state.calls[n].stage = Stage::Allowed;
            }
            Action::GiveUp(n) if state.calls[n].stale => drop(state.calls.remove(n)),
            Action::GiveUp(n) => {
                let record = self.next_record(&mut state, n);
                state.calls[n].stage = Stage::Adrift { record };
            }
            Action::WriteLate(n) => {
                let Stage::Adrift { record } = state.calls.remove(n).stage else { return None };
                state.store(record);
            }
            Action::Delete(n) => {
                let uid = state.calls.remove(n).uid;
                // What else was allowed for the same pod finds it deleted already.
                state.calls.retain(|call| call.uid != uid || call.stage != Stage::Allowed);
                let pod = &mut state.pods[usize::from(uid.pod)];
                match pod.phase {
                    _ if pod.incarnation != uid.incarnation => {}
                    Phase::Serving => pod.phase = Phase::Terminating,
                    Phase::Terminating => {}
                    Phase::Down => pod.incarnation += 1,
                }
            }
            Action::Stop(pod) => {
                let pod = &mut state.pods[usize::from(pod)];
                *pod = Pod { incarnation: pod.incarnation + 1, phase: Phase::Down };
            }
            Action::Serve(pod) => state.pods[usize::from(pod)].phase = Phase::Serving,
            Action::Die(pod) => {
                state.pods[usize::from(pod)].phase = Phase::Down;
                state.deaths += 1;
                for call in &mut state.calls {
                    if let Stage::Ready(ready) = &mut call.stage {
                        ready.died.push(pod);
                        ready.died.sort_unstable();
                        ready.died.dedup();
                    }
                }
            }
            Action::Restart(replica) => {
                state.replicas[usize::from(replica)] = Replica::default();
                state.restarts += 1;
                state.calls.retain(|call| call.replica != replica || !call.is_at_work());
            }
            Action::Tick => {
                for call in &mut state.calls {
                    call.age += 1;
                }
                state.calls.retain(|call| call.age <= OLDEST_CALL);
                for replica in &mut state.replicas {
                    replica.age();
                }
            }
        }
        state.show();
        Some(state)
    }

    fn read(&self, state: &mut State, n: usize, mut choice: usize) {
        let call = &mut state.calls[n];
        let Stage::Reading { records, pods } = &call.stage else { return };
        let record = chosen(records, &mut choice).clone();
        let listed: Vec<Pod> = pods.iter().map(|had| *chosen(had, &mut choice)).collect();
        call.stale = record != state.record;
        let replica = &mut state.replicas[usize::from(call.replica)];
        replica.observe(self, &record);
        let held = replica.live(self, &record);
        call.stage = if replica.outdates(self, &record, &listed) {
            Stage::Relisting { record, held }
        } else {
            Stage::Looking { record, held, listed }
        };
    }

    fn look(&self, state: &mut State, n: usize) {
        let call = &mut state.calls[n];
        let Stage::Looking { record, held, listed } = &call.stage else { return };
        let Uid { pod, incarnation } = call.uid;
        let target = state.pods[usize::from(pod)];
        let answers = self.answers(&state.pods, listed);
        let look = Look { listed: listed.clone(), answers, held: held.clone() };
        let reason = self.reason(&look, pod);
        // Of a pod that was replaced meanwhile there is nothing to delete any more.
        let is_asked_for = listed[usize::from(pod)].incarnation == incarnation
            && listed[usize::from(pod)].phase != Phase::Terminating;
        let ready = Ready {
            record: record.clone(),
            listed: listed.clone(),
            idle: look::is_idle(reason) && target.phase == Phase::Down,
            goes_unreserved: !reason.costs_a_vote()
                || (self.makes(Mistake::LetsIdleGoUnreserved) && look::is_idle(reason)),
            died: Vec::new(),
        };
        if self.makes(Mistake::CachesYes) {
            state.replicas[usize::from(call.replica)].last_look = Some(look);
        }
        if is_asked_for && reason.allows() {
            call.stage = Stage::Ready(ready);
        } else {
            state.calls.remove(n);
        }
    }

    /// The record with this call's reservation.
    fn next_record(&self, state: &mut State, n: usize) -> Vec<Held> {
        let call = &state.calls[n];
        let Stage::Ready(Ready { record, listed, .. }) = &call.stage else { return state.record.clone() };
        let new = Held { uid: call.uid, call: call.number };
        state.replicas[usize::from(call.replica)].with(self, record, new, listed)
    }

    fn write(&self, state: &mut State, n: usize) {
        if state.calls[n].stale && !self.makes(Mistake::IgnoresConflicts) {
            state.calls[n].stage = Stage::StartingOver;
            return;
        }
        let record = self.next_record(state, n);
        state.broken |= !self.keeps_the_law(state, &state.calls[n]);
        let replica = usize::from(state.calls[n].replica);
        if let Some(look) = &mut state.replicas[replica].last_look {
            look.held.push(Held { uid: state.calls[n].uid, call: state.calls[n].number });
        }
        state.calls[n].stage = Stage::Allowed;
        state.store(record);
        state.replicas[replica].observe(self, &state.record);
    }
}

// === impl State ===

impl State {
    fn list(&mut self, n: usize) {
        let call = &mut self.calls[n];
        let Stage::Relisting { record, held } = &call.stage else { return };
        self.replicas[usize::from(call.replica)].note_living(record, &self.pods);
        let (record, held) = (record.clone(), held.clone());
        call.stage = Stage::Looking { record, held, listed: self.pods.clone() };
    }
}
