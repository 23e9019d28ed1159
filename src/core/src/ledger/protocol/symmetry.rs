//! Symmetry reduction: of the states that differ only in the numbers of pods, replicas and requests, one is searched. The
//! same applies to states that differ only in data that no later step reads.

use std::slice;

use stateright::Representative;

use crate::ledger::protocol::{
    Pod, PodState, Ready, Replica, Request, RequestStage, Reserved, State, Uid, observation::Answer,
};

/// A renumbering: the new number of each pod and each replica, and the request for each index of the list.
struct Numbering {
    pods: Vec<u8>,
    replicas: Vec<u8>,
    requests: Vec<usize>,
}

impl Representative for State {
    fn representative(&self) -> Self {
        let mut state = self.clone();
        state.remove_unused_data();
        state.number_by_rank();
        let numbered = state.orders().into_iter().map(|(replicas, requests)| {
            let pods = state.order_of_pods(&replicas, &requests);
            state.renumbered(&Numbering { pods, replicas, requests })
        });
        numbered.min().unwrap()
    }
}

/// Returns all permutations of `len` elements.
fn permutations(len: usize) -> Vec<Vec<usize>> {
    let Some(last) = len.checked_sub(1) else { return vec![Vec::new()] };
    let places = |shorter: Vec<usize>| {
        (0..len).map(move |place| {
            let mut longer = shorter.clone();
            longer.insert(place, last);
            longer
        })
    };
    permutations(last).into_iter().flat_map(places).collect()
}

/// Returns the index of a value.
fn rank<T: PartialEq>(all: &[T], value: &T) -> u8 {
    all.iter().position(|other| other == value).and_then(|place| u8::try_from(place).ok()).unwrap()
}

fn sorted<T: Ord>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = all.collect();
    all.sort_unstable();
    all
}

/// Returns the list with each element at its new index.
fn moved<T: Clone>(all: &[T], places: &[u8]) -> Vec<T> {
    (0..).take(all.len()).map(|place: u8| all[usize::from(rank(places, &place))].clone()).collect()
}

// === impl State ===

impl State {
    /// Removes data that no later step reads: knowledge about reservations that no ledger contains, and listed pods that
    /// the ledger does not name.
    fn remove_unused_data(&mut self) {
        for (replica, number) in self.replicas.iter_mut().zip(0..) {
            let own = self.requests.iter().filter(|request| request.replica == number);
            let own = own.flat_map(|request| request.stage.ledgers()).flatten();
            let known: Vec<&Reserved> = self.ledger.iter().chain(own).collect();
            replica.first_seen.retain(|(held, _)| known.contains(&held));
        }
        for request in &mut self.requests {
            let RequestStage::Ready(Ready { ledger, listed, .. }) = &mut request.stage else { continue };
            for ((pod, current), n) in listed.iter_mut().zip(&self.pods).zip(0..) {
                let is_held = ledger.iter().any(|held| held.uid.pod == n);
                if !is_held {
                    *pod = Pod { incarnation: current.incarnation, state: PodState::Serving };
                }
            }
        }
    }

    /// Replaces incarnations, and the numbers of requests for one pod, by their ranks.
    fn number_by_rank(&mut self) {
        let mut all: Vec<Reserved> = self.held_mut().map(|held| *held).collect();
        all.extend(
            self.requests.iter().map(|request| Reserved { uid: request.uid, request: request.number }),
        );
        all.sort_unstable();
        all.dedup();
        let uids: Vec<Uid> = all.iter().map(|held| held.uid).collect();
        let call_of = |held: Reserved| rank(&all, &held) - rank(&uids, &held.uid);
        let incarnations: Vec<Vec<u8>> =
            (0..).take(self.pods.len()).map(|pod| self.incarnations(pod, &all)).collect();
        let incarnation_of = |uid: Uid| rank(&incarnations[usize::from(uid.pod)], &uid.incarnation);
        let numbered = |held: Reserved| Reserved {
            uid: Uid { incarnation: incarnation_of(held.uid), ..held.uid },
            request: call_of(held),
        };
        for held in self.held_mut() {
            *held = numbered(*held);
        }
        for request in &mut self.requests {
            Reserved { uid: request.uid, request: request.number } =
                numbered(Reserved { uid: request.uid, request: request.number });
        }
        for (n, pod) in self.listed_mut() {
            pod.incarnation = incarnation_of(Uid { pod: n, incarnation: pod.incarnation });
        }
    }

    /// Returns the incarnations of a pod that occur in the state.
    fn incarnations(&self, pod: u8, held: &[Reserved]) -> Vec<u8> {
        let uids = held.iter().map(|reserved| reserved.uid).filter(|uid| uid.pod == pod);
        let cached = self.replicas.iter().filter_map(|replica| replica.cached.as_ref());
        let observed = cached
            .map(|observation| observation.listed[usize::from(pod)])
            .chain([self.pods[usize::from(pod)]]);
        let listed =
            self.requests.iter().flat_map(|request| request.stage.listed(pod)).copied().chain(observed);
        let mut all = sorted(uids.map(|uid| uid.incarnation).chain(listed.map(|pod| pod.incarnation)));
        all.dedup();
        all
    }

    /// Returns the orders of replicas and requests in which both are sorted by their data without numbers, except that
    /// requests are sorted by their replica.
    fn orders(&self) -> Vec<(Vec<u8>, Vec<usize>)> {
        let is_sorted = |order: &Vec<usize>| order.iter().map(|n| self.replica_profile(*n)).is_sorted();
        let replicas = permutations(self.replicas.len()).into_iter().filter(is_sorted);
        let replicas = replicas.map(|order| (0..order.len()).map(|n| rank(&order, &n)).collect::<Vec<u8>>());
        let requests = permutations(self.requests.len());
        replicas
            .flat_map(|replicas| {
                let is_sorted = |order: &&Vec<usize>| {
                    order.iter().map(|n| self.requests[*n].unnumbered(&replicas)).is_sorted()
                };
                let sorted: Vec<Vec<usize>> = requests.iter().filter(is_sorted).cloned().collect();
                sorted.into_iter().map(move |requests| (replicas.clone(), requests))
            })
            .collect()
    }

    /// Returns properties of a replica that do not depend on numbers.
    fn replica_profile(&self, n: usize) -> (usize, u8, usize) {
        let Replica { first_seen, .. } = &self.replicas[n];
        let own = self.requests.iter().filter(|request| usize::from(request.replica) == n);
        (first_seen.len(), first_seen.iter().map(|(_, age)| age).sum(), own.count())
    }

    /// Returns the new numbers of the pods, in the order of all data about each pod.
    fn order_of_pods(&self, replicas: &[u8], requests: &[usize]) -> Vec<u8> {
        let about = |n: u8| (self.pod_profile(n, replicas, requests), n);
        let order = sorted((0..).take(self.pods.len()).map(about));
        let order: Vec<u8> = order.into_iter().map(|(_, n)| n).collect();
        (0..).take(order.len()).map(|n| rank(&order, &n)).collect()
    }

    fn pod_profile(&self, n: u8, replicas: &[u8], requests: &[usize]) -> Vec<u8> {
        const END: u8 = u8::MAX;
        let is_named = |pod: Option<u8>| u8::from(pod == Some(n));
        let pod_data = |pod: Pod| {
            [
                pod.incarnation,
                u8::from(pod.state != PodState::Serving) + u8::from(pod.state == PodState::Down),
            ]
        };
        let record_data = |held: &[Reserved], all: &mut Vec<u8>| {
            all.extend(
                held.iter()
                    .filter(|reserved| reserved.uid.pod == n)
                    .flat_map(|reserved| [reserved.uid.incarnation, reserved.request]),
            );
            all.push(END);
        };
        let is_cut = self.cut.is_some_and(|(one, other)| n == one || n == other);
        let mut all = vec![u8::from(n >= self.voters), is_named(self.leader), u8::from(is_cut)];
        all.extend(pod_data(self.pods[usize::from(n)]));
        record_data(&self.ledger, &mut all);
        for replica in moved(&self.replicas.iter().collect::<Vec<_>>(), replicas) {
            let first_seen = replica.first_seen.iter().filter(|(reserved, _)| reserved.uid.pod == n);
            all.extend(
                first_seen.flat_map(|(reserved, age)| [reserved.uid.incarnation, reserved.request, *age]),
            );
            all.push(END);
            if let Some(observation) = &replica.cached {
                all.extend(pod_data(observation.listed[usize::from(n)]));
                all.push(u8::from(observation.answers[usize::from(n)] == Answer::Serves));
                all.push(is_named(observation.leader));
                record_data(&observation.held, &mut all);
            }
        }
        for request in requests.iter().map(|n| &self.requests[*n]) {
            if request.uid.pod == n {
                all.extend([request.uid.incarnation, request.number]);
            }
            all.push(END);
            for ledger in request.stage.ledgers() {
                record_data(ledger, &mut all);
            }
            record_data(request.stage.held(), &mut all);
            all.extend(request.stage.listed(n).iter().copied().flat_map(pod_data));
            all.push(END);
            if let RequestStage::Ready(ready) = &request.stage {
                all.push(u8::from(ready.crashed.contains(&n)));
                all.extend([is_named(ready.leader), u8::from(ready.candidates.contains(&n))]);
            }
            if let RequestStage::Transferring { candidates } = &request.stage {
                all.push(u8::from(candidates.contains(&n)));
            }
        }
        all
    }

    fn renumbered(&self, numbering: &Numbering) -> Self {
        let mut state = self.clone();
        for held in state.held_mut() {
            held.uid.pod = numbering.pods[usize::from(held.uid.pod)];
        }
        for request in &mut state.requests {
            request.uid.pod = numbering.pods[usize::from(request.uid.pod)];
            request.replica = numbering.replicas[usize::from(request.replica)];
            request.stage.rename(&numbering.pods);
        }
        state.requests = numbering.requests.iter().map(|n| state.requests[*n].clone()).collect();
        for replica in &mut state.replicas {
            if let Some(observation) = &mut replica.cached {
                observation.listed = moved(&observation.listed, &numbering.pods);
                observation.answers = moved(&observation.answers, &numbering.pods);
                observation.held.sort_unstable();
                observation.leader = observation.leader.map(|pod| numbering.pods[usize::from(pod)]);
            }
            replica.first_seen.sort_unstable();
        }
        let new = |pod: u8| numbering.pods[usize::from(pod)];
        state.leader = state.leader.map(new);
        state.cut = state.cut.map(|(one, other)| (new(one).min(new(other)), new(one).max(new(other))));
        state.pods = moved(&state.pods, &numbering.pods);
        state.replicas = moved(&state.replicas, &numbering.replicas);
        state.ledger.sort_unstable();
        state
    }

    /// Returns all reservations in the state.
    fn held_mut(&mut self) -> impl Iterator<Item = &mut Reserved> {
        let requests = self.requests.iter_mut().flat_map(|request| request.stage.held_mut());
        let known = self.replicas.iter_mut().flat_map(|replica| {
            let seen = replica.first_seen.iter_mut().map(|(held, _)| held);
            seen.chain(replica.cached.iter_mut().flat_map(|observation| &mut observation.held))
        });
        self.ledger.iter_mut().chain(requests).chain(known)
    }

    /// Returns the pods and all copies of them, with their numbers.
    fn listed_mut(&mut self) -> impl Iterator<Item = (u8, &mut Pod)> {
        let cached = self.replicas.iter_mut().filter_map(|replica| replica.cached.as_mut());
        let observed = cached.flat_map(|observation| (0..).zip(&mut observation.listed));
        let read = self.requests.iter_mut().flat_map(|request| request.stage.listed_mut());
        read.chain(observed).chain((0..).zip(&mut self.pods))
    }
}

// === impl Request ===

impl Request {
    /// Returns the data of the request that does not depend on the numbers of pods.
    fn unnumbered(&self, replicas: &[u8]) -> (u8, u8, [bool; 3], usize) {
        let stage = match &self.stage {
            RequestStage::Relisting { .. } => 0,
            RequestStage::Probing { .. } => 1,
            RequestStage::Ready(ready) => {
                2 + usize::from(ready.idle) + 2 * usize::from(ready.proceeds_unreserved)
            }
            RequestStage::WriteAbandoned { .. } => 6,
            RequestStage::Approved => 7,
            RequestStage::Retrying => 8,
            RequestStage::Transferring { .. } => 9,
            RequestStage::Reading { ledgers, pods } => {
                10 + ledgers.len() + pods.iter().map(Vec::len).sum::<usize>()
            }
        };
        (replicas[usize::from(self.replica)], self.age, [self.stale, self.is_cascade, self.moved], stage)
    }
}

// === impl RequestStage ===

impl RequestStage {
    /// Returns the ledgers that the stage contains.
    fn ledgers(&self) -> &[Vec<Reserved>] {
        match self {
            Self::Reading { ledgers, .. } => ledgers,
            Self::Relisting { ledger, .. }
            | Self::Probing { ledger, .. }
            | Self::Ready(Ready { ledger, .. })
            | Self::WriteAbandoned { ledger } => slice::from_ref(ledger),
            Self::Retrying | Self::Transferring { .. } | Self::Approved => &[],
        }
    }

    /// Returns the active reservations that the stage contains.
    fn held(&self) -> &[Reserved] {
        match self {
            Self::Relisting { held, .. } | Self::Probing { held, .. } => held,
            _ => &[],
        }
    }

    /// Returns the copies of a pod that the stage contains.
    fn listed(&self, pod: u8) -> &[Pod] {
        match self {
            Self::Reading { pods, .. } => &pods[usize::from(pod)],
            Self::Probing { listed, .. } | Self::Ready(Ready { listed, .. }) => {
                slice::from_ref(&listed[usize::from(pod)])
            }
            Self::Retrying
            | Self::Relisting { .. }
            | Self::Transferring { .. }
            | Self::WriteAbandoned { .. }
            | Self::Approved => &[],
        }
    }

    fn held_mut(&mut self) -> impl Iterator<Item = &mut Reserved> {
        let (ledgers, held): (&mut [Vec<Reserved>], &mut [Reserved]) = match self {
            Self::Reading { ledgers, .. } => (ledgers, &mut []),
            Self::Relisting { ledger, held } | Self::Probing { ledger, held, .. } => {
                (slice::from_mut(ledger), held)
            }
            Self::Ready(Ready { ledger, .. }) | Self::WriteAbandoned { ledger } => {
                (slice::from_mut(ledger), &mut [])
            }
            Self::Retrying | Self::Transferring { .. } | Self::Approved => (&mut [], &mut []),
        };
        ledgers.iter_mut().flatten().chain(held)
    }

    fn listed_mut(&mut self) -> impl Iterator<Item = (u8, &mut Pod)> {
        let (several, one): (&mut [Vec<Pod>], &mut [Pod]) = match self {
            Self::Reading { pods, .. } => (pods, &mut []),
            Self::Probing { listed, .. } | Self::Ready(Ready { listed, .. }) => (&mut [], listed),
            Self::Retrying
            | Self::Relisting { .. }
            | Self::Transferring { .. }
            | Self::WriteAbandoned { .. }
            | Self::Approved => (&mut [], &mut []),
        };
        let several = (0..).zip(several).flat_map(|(n, pods)| pods.iter_mut().map(move |pod| (n, pod)));
        several.chain((0..).zip(one))
    }

    /// Renumbers the pods except in reservations, which are renumbered already, and sorts the lists.
    fn rename(&mut self, pods: &[u8]) {
        match self {
            Self::Reading { ledgers, pods: values } => {
                for ledger in ledgers {
                    ledger.sort_unstable();
                }
                *values = moved(values, pods);
            }
            Self::Relisting { ledger, held } => {
                ledger.sort_unstable();
                held.sort_unstable();
            }
            Self::Probing { ledger, held, listed } => {
                ledger.sort_unstable();
                held.sort_unstable();
                *listed = moved(listed, pods);
            }
            Self::Ready(Ready { ledger, listed, crashed, leader, candidates, .. }) => {
                ledger.sort_unstable();
                *listed = moved(listed, pods);
                *crashed = sorted(crashed.iter().map(|n| pods[usize::from(*n)]));
                *leader = leader.map(|n| pods[usize::from(n)]);
                *candidates = sorted(candidates.iter().map(|n| pods[usize::from(*n)]));
            }
            Self::Transferring { candidates } => {
                *candidates = sorted(candidates.iter().map(|n| pods[usize::from(*n)]));
            }
            Self::WriteAbandoned { ledger } => ledger.sort_unstable(),
            Self::Retrying | Self::Approved => {}
        }
    }
}
