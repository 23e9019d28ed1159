//! The probe round and its assessment, reduced to arithmetic. The shipped assessment is part of the model of one cluster.

use super::{
    Defect, Lease, Pod, Process, Stage, State, World, Writing, bit, contains, replica::takes,
    requests::numbers, set,
};

// === impl World ===

impl World {
    /// Returns the listed pods, each with whether its own container runs and its member passed the probe.
    pub(super) fn facts(listed: &[Pod], healthy: u8) -> Vec<(Pod, bool)> {
        let serves = |(pod, n): (&Pod, u8)| (*pod, pod.process == Process::Serves && contains(healthy, n));
        listed.iter().zip(0..).map(serves).collect()
    }

    pub(super) fn probe(&self, state: &mut State, n: usize) {
        let request = state.requests[n].clone();
        let Stage::Probing { listed, mut read, mut active } = request.stage.clone() else { return };
        let (target, home) = (usize::from(request.pod), self.home(request.pod));
        if request.by_name && listed[target].process == Process::Terminating {
            self.reserve_ended(state, n, read);
            return;
        }
        // A pod that was replaced can no longer be deleted.
        if listed[target].incarnation != request.incarnation || listed[target].process == Process::Terminating
        {
            state.requests.remove(n);
            return;
        }
        let voters = self.voters(state, home.cluster);
        let runs = |pod: u8| state.pods[usize::from(pod)].process != Process::Down;
        let answers = |pod: u8| {
            let (now, listed) = (state.pods[usize::from(pod)], listed[usize::from(pod)]);
            let is_same = now.incarnation == listed.incarnation || self.keeps_address;
            // Without a known pod, the member is asked at its address in the list of members.
            runs(pod) && (is_same || self.is_hidden(request.pod, pod))
        };
        let pods = set((0..)
            .take(self.pods.len())
            .map(|pod| self.home(pod).cluster == home.cluster && answers(pod)));
        let id = (pods != 0).then(|| state.ids[usize::from(home.cluster)]);
        let has_quorum = numbers(voters).filter(|pod| runs(*pod)).count() > numbers(voters).count() / 2;
        let healthy = if has_quorum { pods & voters } else { 0 };

        let needed = self.needed(request.pod, id, voters);
        let is_computed_once = self.has(Defect::IgnoresNewVoters) && request.is_extended;
        if needed & !request.leases != 0 && !is_computed_once {
            let request = &mut state.requests[n];
            let missing = needed & !request.leases;
            request.leases |= needed;
            request.is_extended = true;
            if !self.has(Defect::SkipsSecondProbe) {
                state.start_again(n);
                return;
            }
            let replica = usize::from(request.replica);
            for place in numbers(missing).map(usize::from) {
                let mut lease = state.leases[place].clone();
                lease.held = state.replicas[replica].observe(self, place, &lease);
                read[place] = lease;
                state.requests[n].stale &= !bit(place.try_into().unwrap());
            }
        }

        if self.has(Defect::SkipsSecondProbe) || self.has(Defect::ExpiresDuringEvaluation) {
            active = state.replicas[usize::from(request.replica)].all_active(self, &read);
        }
        let facts = Self::facts(&listed, healthy);
        let held: Vec<_> =
            active.into_iter().filter(|held| held.id == id || !self.has(Defect::CountsOwnIdOnly)).collect();
        let is_leaving = |pod: u8| {
            if self.is_hidden(request.pod, pod) {
                return held.iter().any(|held| held.pod == pod && held.id == id);
            }
            listed[usize::from(pod)].process == Process::Terminating
                || held.iter().any(|held| takes(self, *held, &facts, pod))
        };
        let is_idle = listed[target].process == Process::Down && !answers(request.pod);
        let is_free = is_idle || (id.is_some() && !contains(voters, request.pod));
        let staying = numbers(healthy).filter(|pod| *pod != request.pod && !is_leaving(*pod)).count();
        if !is_free && staying <= numbers(voters).count() / 2 {
            state.requests.remove(n);
            return;
        }
        let request = &mut state.requests[n];
        let mut written = if self.has(Defect::WritesOwnNamespaceOnly) { bit(home.namespace) } else { needed };
        written &= request.leases;
        if id.is_none() && self.has(Defect::SkipsReservationWithoutId) {
            written = 0;
        }
        request.stage = Stage::Writing(Writing {
            listed,
            read,
            id,
            voters,
            healthy,
            is_free,
            overtaken: false,
            crashed: 0,
            needed: written,
            written: 0,
        });
    }

    /// Reserves the name of a terminating pod, if the list after the read of the ledger shows that it still is.
    fn reserve_ended(&self, state: &mut State, n: usize, read: Vec<Lease>) {
        let listed = state.pods.clone();
        let request = &state.requests[n];
        let (target, home) = (usize::from(request.pod), self.home(request.pod));
        if listed[target].process != Process::Terminating {
            state.start_again(n);
            return;
        }
        let voters = self.voters(state, home.cluster);
        let needed = if self.has(Defect::ForgetsEndedNames) { 0 } else { bit(home.namespace) };
        let request = &mut state.requests[n];
        request.incarnation = listed[target].incarnation;
        request.stage = Stage::Writing(Writing {
            listed,
            read,
            id: None,
            voters,
            healthy: 0,
            is_free: true,
            overtaken: false,
            crashed: 0,
            needed,
            written: 0,
        });
    }

    /// Whether an evaluation of `target` does not find this pod.
    fn is_hidden(&self, target: u8, pod: u8) -> bool {
        let hidden = self.hidden_namespace;
        hidden == Some(self.home(pod).namespace) && hidden != Some(self.home(target).namespace)
            || hidden == Some(self.home(target).namespace) && hidden != Some(self.home(pod).namespace)
    }

    /// Returns the Leases that an approval must have read before the probe.
    fn needed(&self, target: u8, id: Option<u8>, voters: u8) -> u8 {
        let mut needed = bit(self.home(target).namespace);
        if id.is_none() || self.has(Defect::ReadsOwnNamespaceOnly) {
            return needed;
        }
        for pod in numbers(voters) {
            if !self.is_hidden(target, pod) {
                needed |= bit(self.home(pod).namespace);
            } else if !self.has(Defect::SkipsClusterLease) {
                needed |= bit(self.namespaces().try_into().unwrap());
            }
        }
        needed
    }
}
