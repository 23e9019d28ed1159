//! The search for an evaluation of the model.

use std::collections::BTreeSet;

use super::Run;
use crate::ledger::protocol::{Action, PodState, Request, RequestStage, State, Uid, World};

// === impl Run ===

impl Run {
    /// Searches these moments for an evaluation of the pod's deletion. `end` completes the evaluation. Returns the resulting state.
    pub(super) fn search(
        &self,
        uid: Uid,
        moments: &[State],
        end: impl Fn(&World, State, usize) -> Option<State>,
    ) -> Option<State> {
        let first = moments.iter().position(|moment| moment.uid(uid.pod) == uid)?;
        let mut begin = moments[first].clone();
        begin.started = self.unused_number();
        let mut request =
            self.world.step(&begin, Action::Evaluate { pod: uid.pod, replica: 0 })?.requests.pop()?;
        for (place, moment) in moments.iter().enumerate().skip(first) {
            // The evaluation is the last request of the state.
            let mut state = moment.clone();
            state.requests.push(request);
            state.extend_reads();
            let number = state.requests.len() - 1;
            for probed in self.evaluate(&state, number) {
                let last = self.at_last_moment(probed, &moments[place..]);
                let number = last.requests.len() - 1;
                if let Some(next) = end(&self.world, last, number) {
                    return Some(next);
                }
            }
            request = state.requests.pop()?;
        }
        None
    }

    /// Returns the states in which the evaluation has read one combination of the possible values and probed the members, and
    /// approves the deletion.
    fn evaluate(&self, state: &State, number: usize) -> Vec<State> {
        let RequestStage::Reading { ledgers, pods } = &state.requests[number].stage else {
            return Vec::new();
        };
        let choices = ledgers.len() * pods.iter().map(Vec::len).product::<usize>();
        let probed = (0..choices).filter_map(|choice| {
            let mut state = self.world.step(state, Action::Read(number, choice))?;
            if matches!(state.requests[number].stage, RequestStage::Relisting { .. }) {
                state = self.world.step(&state, Action::List(number))?;
            }
            let state = self.world.step(&state, Action::Probe(number))?;
            let is_ready = |request: &Request| matches!(request.stage, RequestStage::Ready(_));
            state.requests.get(number).is_some_and(is_ready).then_some(state)
        });
        probed.collect()
    }

    /// Returns the last of these moments with the evaluation, which is the last request of `probed`.
    fn at_last_moment(&self, mut probed: State, moments: &[State]) -> State {
        let Some(mut request) = probed.requests.pop() else { return probed };
        if let RequestStage::Ready(ready) = &mut request.stage {
            let crashed = (0..self.world.voters).filter(|pod| {
                let state = |moment: &State| moment.pods[usize::from(*pod)];
                moments.windows(2).any(|pair| {
                    let [before, after] = [&pair[0], &pair[1]].map(state);
                    let is_same = before.incarnation == after.incarnation;
                    is_same && before.state == PodState::Serving && after.state == PodState::Down
                })
            });
            ready.crashed = crashed.collect();
        }
        let mut last = moments.last().cloned().unwrap_or_else(|| probed.clone());
        last.replicas = probed.replicas;
        last.requests.push(request);
        last
    }

    /// Returns a number that no request and no reservation has.
    fn unused_number(&self) -> u8 {
        let State { ledger, requests, replicas, .. } = &self.state;
        let reserved = ledger
            .iter()
            .chain(replicas.iter().flat_map(|replica| replica.first_seen.iter().map(|(held, _)| held)));
        let used: BTreeSet<u8> =
            reserved.map(|held| held.request).chain(requests.iter().map(|request| request.number)).collect();
        (0..=u8::MAX).find(|number| !used.contains(number)).expect("fewer than 256 reservations")
    }
}
