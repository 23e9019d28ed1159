//! The steps of an evaluation before and after the probe.

use super::{Defect, Lease, Process, Request, Reserved, Stage, State, World, Writing, bit, contains};

/// Returns the numbers of a bit set in ascending order.
pub(super) fn numbers(set: u8) -> impl Iterator<Item = u8> {
    (0..8).filter(move |n| contains(set, *n))
}

/// Adds empty places for Leases that the evaluation does not read next.
fn skip_others(read: &mut Vec<Lease>, leases: u8, all: usize) {
    while read.len() < all && !contains(leases, read.len().try_into().unwrap()) {
        read.push(Lease::default());
    }
}

// === impl World ===

impl World {
    pub(super) fn evaluate(&self, state: &mut State, pod: u8, replica: u8, by_name: bool) {
        let request = Request {
            number: state.counts.requests,
            pod,
            incarnation: state.pods[usize::from(pod)].incarnation,
            replica,
            age: 0,
            by_name,
            leases: bit(self.home(pod).namespace),
            stale: 0,
            is_extended: false,
            stage: Stage::Approved,
        };
        state.counts.requests += 1;
        state.counts.repeated_requests += u8::from(contains(state.requested, pod));
        state.requested |= bit(pod);
        state.counts.evictions_by_name += u8::from(by_name);
        state.requests.push(request);
        state.start_again(state.requests.len() - 1);
    }

    /// Reads the next Lease. After the last one, the pods are listed again if a Lease can be newer than the list.
    pub(super) fn read(&self, state: &mut State, n: usize) {
        let request = &mut state.requests[n];
        let (leases, replica) = (request.leases, usize::from(request.replica));
        let Stage::Reading { listed, read } = &mut request.stage else { return };
        let next = read.len();
        let mut lease = state.leases[next].clone();
        lease.held = state.replicas[replica].observe(self, next, &lease);
        read.push(lease);
        skip_others(read, leases, state.leases.len());
        if read.len() < state.leases.len() {
            return;
        }
        let (listed, read) = (std::mem::take(listed), std::mem::take(read));
        let is_unlisted = |held: &Reserved| listed[usize::from(held.pod)].incarnation != held.incarnation;
        let active = state.replicas[replica].all_active(self, &read);
        request.stage = if active.iter().any(is_unlisted) && !self.has(Defect::SkipsRelist) {
            Stage::Relisting { read, active }
        } else {
            Stage::Probing { listed, read, active }
        };
    }

    /// Writes the reservation to the next Lease, and approves the deletion after the last one.
    pub(super) fn write(&self, state: &mut State, n: usize) {
        let request = state.requests[n].clone();
        let Stage::Writing(writing) = request.stage.clone() else { return };
        let Some(next) = numbers(writing.needed & !writing.written).next() else {
            self.approve(state, n, &writing);
            return;
        };
        let place = usize::from(next);
        let mut read = writing.read[place].clone();
        if contains(request.stale, next) && !self.has(Defect::OverwritesConflicts) {
            if self.has(Defect::ApprovesAfterPartialWrite) && writing.written != 0 {
                self.approve(state, n, &writing);
                return;
            }
            let current = state.leases[place].clone();
            let is_single = writing.needed.is_power_of_two();
            if !is_single || !self.repeats(&writing, request.pod, &read, &current) {
                self.withdraw(state, &request, &writing);
                state.start_again(n);
                return;
            }
            let held = state.replicas[usize::from(request.replica)].observe(self, place, &current);
            if !self.has(Defect::RepeatsWithOldContent) {
                read = Lease { uid: current.uid, held };
            }
        }
        let new = Reserved {
            pod: request.pod,
            incarnation: request.incarnation,
            id: writing.id,
            by_name: request.by_name,
            request: request.number,
        };
        let pods = Self::facts(&writing.listed, writing.healthy);
        let replica = &mut state.replicas[usize::from(request.replica)];
        let replaced = replica.active(self, place, &read.held);
        let held = replica.with(self, place, &read.held, new, &pods);
        let uid = state.leases[place].uid.or(Some(state.counts.deleted_leases));
        let lease = Lease { uid, held };
        replica.observe(self, place, &lease);
        state.store(place, lease);
        state.requests[n].stale &= !bit(next);
        if let Stage::Writing(writing) = &mut state.requests[n].stage {
            writing.written |= bit(next);
            writing.read[place].held = replaced;
            if writing.needed == writing.written {
                let writing = writing.clone();
                self.approve(state, n, &writing);
            }
        }
    }

    /// Restores the reservations that an evaluation replaced before a conflict, in Leases that have not changed since.
    fn withdraw(&self, state: &mut State, request: &Request, writing: &Writing) {
        for place in numbers(writing.written & !request.stale).map(usize::from) {
            let mut lease = state.leases[place].clone();
            let is_of_pod =
                |held: &Reserved| held.pod == request.pod && held.incarnation == request.incarnation;
            lease.held.retain(|held| !is_of_pod(held));
            if !self.has(Defect::WithdrawsEarlierEntries) {
                lease.held.extend(writing.read[place].held.iter().filter(|held| is_of_pod(held)));
                lease.held.sort_unstable();
            }
            state.store(place, lease);
        }
    }

    /// Whether only the write is repeated after a conflict.
    fn repeats(&self, writing: &Writing, pod: u8, read: &Lease, current: &Lease) -> bool {
        let added = current.held.iter().filter(|held| !read.held.contains(held));
        let removed = read.held.iter().filter(|held| !current.held.contains(held));
        let voters = if writing.id.is_some() { writing.voters | bit(pod) } else { bit(pod) };
        let is_other = |held: &Reserved| !contains(voters, held.pod) || self.has(Defect::RepeatsForOwnPods);
        (writing.id.is_some() || self.has(Defect::RepeatsWithoutOwnId)) && added.chain(removed).all(is_other)
    }

    fn approve(&self, state: &mut State, n: usize, writing: &Writing) {
        let request = state.requests[n].clone();
        state.violated |= !Self::satisfies_safety(state, &request, writing);
        state.requests[n].stage = Stage::Approved;
        state.requests[n].stale = 0;
        if writing.is_free {
            return;
        }
        for other in &mut state.requests {
            if let Stage::Writing(other_writing) = &mut other.stage
                && self.home(other.pod).cluster == self.home(request.pod).cluster
            {
                other_writing.overtaken = true;
            }
        }
    }

    /// Whether the voters that serve, without the target and all pods that can still be deleted, form a quorum.
    fn satisfies_safety(state: &State, request: &Request, writing: &Writing) -> bool {
        let target = state.pods[usize::from(request.pod)];
        let is_gone = !request.by_name && target.incarnation != request.incarnation;
        // A pod that does not serve costs nothing, unless another approval counts on it since the probe. Later approvals
        // account for it.
        if is_gone || target.process != Process::Serves || (writing.is_free && !writing.overtaken) {
            return true;
        }
        let is_leaving = |pod: u8| {
            state.requests.iter().any(|known| {
                let is_same = known.incarnation == state.pods[usize::from(pod)].incarnation;
                known.stage == Stage::Approved && known.pod == pod && (known.by_name || is_same)
            })
        };
        // A crash after the probe is not the fault of the guard.
        let serves = |pod: &u8| {
            let is_up = state.pods[usize::from(*pod)].process == Process::Serves;
            *pod != request.pod && (is_up || contains(writing.crashed, *pod)) && !is_leaving(*pod)
        };
        let serving = numbers(writing.voters).filter(serves).count();
        serving > usize::try_from(writing.voters.count_ones()).unwrap() / 2
    }
}

// === impl State ===

impl State {
    /// Lists the pods and begins to read the Leases.
    pub(super) fn start_again(&mut self, n: usize) {
        let listed = self.pods.clone();
        let request = &mut self.requests[n];
        request.stale = 0;
        if request.by_name {
            request.incarnation = listed[usize::from(request.pod)].incarnation;
        }
        let mut read = Vec::new();
        skip_others(&mut read, request.leases, self.leases.len());
        request.stage = Stage::Reading { listed, read };
    }

    pub(super) fn list(&mut self, n: usize) {
        let listed = self.pods.clone();
        let request = &mut self.requests[n];
        let Stage::Relisting { read, active } = &mut request.stage else { return };
        request.stage = Stage::Probing { listed, read: std::mem::take(read), active: std::mem::take(active) };
    }
}
