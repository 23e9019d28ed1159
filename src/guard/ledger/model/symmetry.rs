//! Pods are alike, and so are replicas and calls: of states that differ in names alone, one is searched. So it is with
//! what no later step can tell apart.

use std::slice;

use stateright::Representative;

use super::{Call, Held, Phase, Pod, Ready, Replica, Stage, State, Uid, look::Answer};

/// New names: for each pod and each replica its new number, for each place in the list of calls who takes it.
struct Names {
    pods: Vec<u8>,
    replicas: Vec<u8>,
    calls: Vec<usize>,
}

impl Representative for State {
    fn representative(&self) -> Self {
        let mut state = self.clone();
        state.forget_what_is_over();
        state.number_by_rank();
        let named = state.orders().into_iter().map(|(replicas, calls)| {
            let pods = state.order_of_pods(&replicas, &calls);
            state.renamed(&Names { pods, replicas, calls })
        });
        named.min().unwrap()
    }
}

/// All orders of so many things.
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

/// The place of a value among all that occur.
fn rank<T: PartialEq>(all: &[T], value: &T) -> u8 {
    all.iter().position(|it| it == value).and_then(|place| u8::try_from(place).ok()).unwrap()
}

fn sorted<T: Ord>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = all.collect();
    all.sort_unstable();
    all
}

/// A list with each element at its new place.
fn moved<T: Clone>(all: &[T], places: &[u8]) -> Vec<T> {
    (0..).take(all.len()).map(|place: u8| all[usize::from(rank(places, &place))].clone()).collect()
}

// === impl State ===

impl State {
    /// No replica asks any more for what was left out of the record, and a write needs of the listed pods only whether
    /// those that the record names live.
    fn forget_what_is_over(&mut self) {
        for (replica, number) in self.replicas.iter_mut().zip(0..) {
            let own = self.calls.iter().filter(|call| call.replica == number);
            let own = own.flat_map(|call| call.stage.records()).flatten();
            let known: Vec<&Held> = self.record.iter().chain(own).collect();
            replica.first_seen.retain(|(held, _)| known.contains(&held));
            replica.gone.retain(|(uid, _)| known.iter().any(|held| held.uid == *uid));
        }
        for call in &mut self.calls {
            let Stage::Ready(Ready { record, listed, .. }) = &mut call.stage else { continue };
            for ((pod, current), n) in listed.iter_mut().zip(&self.pods).zip(0..) {
                let is_held = record.iter().any(|held| held.uid.pod == n);
                let incarnation = if is_held { pod.incarnation } else { current.incarnation };
                *pod = Pod { incarnation, phase: Phase::Serving };
            }
        }
    }

    /// Of incarnations, and of calls for the same pod, counts which came after which.
    fn number_by_rank(&mut self) {
        let mut all: Vec<Held> = self.held_mut().map(|held| *held).collect();
        all.extend(self.calls.iter().map(|call| Held { uid: call.uid, call: call.number }));
        all.sort_unstable();
        all.dedup();
        let uids: Vec<Uid> = all.iter().map(|held| held.uid).collect();
        let call_of = |held: Held| rank(&all, &held) - rank(&uids, &held.uid);
        let incarnations: Vec<Vec<u8>> =
            (0..).take(self.pods.len()).map(|pod| self.incarnations(pod, &all)).collect();
        let incarnation_of = |uid: Uid| rank(&incarnations[usize::from(uid.pod)], &uid.incarnation);
        let named = |held: Held| Held {
            uid: Uid { incarnation: incarnation_of(held.uid), ..held.uid },
            call: call_of(held),
        };
        for held in self.held_mut() {
            *held = named(*held);
        }
        for (uid, _) in self.replicas.iter_mut().flat_map(|replica| &mut replica.gone) {
            uid.incarnation = incarnation_of(*uid);
        }
        for call in &mut self.calls {
            Held { uid: call.uid, call: call.number } = named(Held { uid: call.uid, call: call.number });
        }
        for (n, pod) in self.listed_mut() {
            pod.incarnation = incarnation_of(Uid { pod: n, incarnation: pod.incarnation });
        }
    }

    /// The incarnations of a pod that anything speaks of.
    fn incarnations(&self, pod: u8, held: &[Held]) -> Vec<u8> {
        let gone = self.replicas.iter().flat_map(|replica| &replica.gone).map(|(uid, _)| *uid);
        let uids = gone.chain(held.iter().map(|it| it.uid)).filter(|uid| uid.pod == pod);
        let looks = self.replicas.iter().filter_map(|replica| replica.last_look.as_ref());
        let looked_at = looks.map(|look| look.listed[usize::from(pod)]).chain([self.pods[usize::from(pod)]]);
        let listed = self.calls.iter().flat_map(|call| call.stage.listed(pod)).copied().chain(looked_at);
        let mut all = sorted(uids.map(|uid| uid.incarnation).chain(listed.map(|pod| pod.incarnation)));
        all.dedup();
        all
    }

    /// The orders of replicas and calls in which both are sorted by what they say without any names, but calls by whose they are.
    fn orders(&self) -> Vec<(Vec<u8>, Vec<usize>)> {
        let is_sorted = |order: &Vec<usize>| order.iter().map(|n| self.about_replica(*n)).is_sorted();
        let replicas = permutations(self.replicas.len()).into_iter().filter(is_sorted);
        let replicas = replicas.map(|order| (0..order.len()).map(|n| rank(&order, &n)).collect::<Vec<u8>>());
        let calls = permutations(self.calls.len());
        replicas
            .flat_map(|replicas| {
                let is_sorted = |order: &&Vec<usize>| {
                    order.iter().map(|n| self.calls[*n].nameless(&replicas)).is_sorted()
                };
                let sorted: Vec<Vec<usize>> = calls.iter().filter(is_sorted).cloned().collect();
                sorted.into_iter().map(move |calls| (replicas.clone(), calls))
            })
            .collect()
    }

    /// Something of a replica that needs no names.
    fn about_replica(&self, n: usize) -> (usize, u8, usize, usize) {
        let Replica { first_seen, gone, .. } = &self.replicas[n];
        let own = self.calls.iter().filter(|call| usize::from(call.replica) == n);
        (first_seen.len(), first_seen.iter().map(|(_, age)| age).sum(), gone.len(), own.count())
    }

    /// New numbers of the pods, by all that is said of each.
    fn order_of_pods(&self, replicas: &[u8], calls: &[usize]) -> Vec<u8> {
        let about = |n: u8| (self.all_about(n, replicas, calls), n);
        let order = sorted((0..).take(self.pods.len()).map(about));
        let order: Vec<u8> = order.into_iter().map(|(_, n)| n).collect();
        (0..).take(order.len()).map(|n| rank(&order, &n)).collect()
    }

    fn all_about(&self, n: u8, replicas: &[u8], calls: &[usize]) -> Vec<u8> {
        const END: u8 = u8::MAX;
        let said_of = |pod: Pod| {
            [pod.incarnation, u8::from(pod.phase != Phase::Serving) + u8::from(pod.phase == Phase::Down)]
        };
        let said_in = |held: &[Held], all: &mut Vec<u8>| {
            all.extend(held.iter().filter(|it| it.uid.pod == n).flat_map(|it| [it.uid.incarnation, it.call]));
            all.push(END);
        };
        let mut all = vec![u8::from(n >= self.voters)];
        all.extend(said_of(self.pods[usize::from(n)]));
        said_in(&self.record, &mut all);
        for replica in moved(&self.replicas.iter().collect::<Vec<_>>(), replicas) {
            let first_seen = replica.first_seen.iter().filter(|(it, _)| it.uid.pod == n);
            all.extend(first_seen.flat_map(|(it, age)| [it.uid.incarnation, it.call, *age]));
            all.push(END);
            let gone = replica.gone.iter().filter(|(it, _)| it.pod == n);
            all.extend(gone.flat_map(|(it, age)| [it.incarnation, *age]));
            all.push(END);
            if let Some(look) = &replica.last_look {
                all.extend(said_of(look.listed[usize::from(n)]));
                all.push(u8::from(look.answers[usize::from(n)] == Answer::Serves));
                said_in(&look.held, &mut all);
            }
        }
        for call in calls.iter().map(|n| &self.calls[*n]) {
            if call.uid.pod == n {
                all.extend([call.uid.incarnation, call.number]);
            }
            all.push(END);
            for record in call.stage.records() {
                said_in(record, &mut all);
            }
            said_in(call.stage.held(), &mut all);
            all.extend(call.stage.listed(n).iter().copied().flat_map(said_of));
            all.push(END);
            if let Stage::Ready(ready) = &call.stage {
                all.push(u8::from(ready.died.contains(&n)));
            }
        }
        all
    }

    fn renamed(&self, names: &Names) -> Self {
        let mut state = self.clone();
        for held in state.held_mut() {
            held.uid.pod = names.pods[usize::from(held.uid.pod)];
        }
        for call in &mut state.calls {
            call.uid.pod = names.pods[usize::from(call.uid.pod)];
            call.replica = names.replicas[usize::from(call.replica)];
            call.stage.rename(&names.pods);
        }
        state.calls = names.calls.iter().map(|n| state.calls[*n].clone()).collect();
        for replica in &mut state.replicas {
            if let Some(look) = &mut replica.last_look {
                look.listed = moved(&look.listed, &names.pods);
                look.answers = moved(&look.answers, &names.pods);
                look.held.sort_unstable();
            }
            for (uid, _) in &mut replica.gone {
                uid.pod = names.pods[usize::from(uid.pod)];
            }
            replica.first_seen.sort_unstable();
            replica.gone.sort_unstable();
        }
        state.pods = moved(&state.pods, &names.pods);
        state.replicas = moved(&state.replicas, &names.replicas);
        state.record.sort_unstable();
        state
    }

    /// All reservations that anything speaks of.
    fn held_mut(&mut self) -> impl Iterator<Item = &mut Held> {
        let calls = self.calls.iter_mut().flat_map(|call| call.stage.held_mut());
        let known = self.replicas.iter_mut().flat_map(|replica| {
            let seen = replica.first_seen.iter_mut().map(|(held, _)| held);
            seen.chain(replica.last_look.iter_mut().flat_map(|look| &mut look.held))
        });
        self.record.iter_mut().chain(calls).chain(known)
    }

    /// All pods as they are, and as anything has them, with their numbers.
    fn listed_mut(&mut self) -> impl Iterator<Item = (u8, &mut Pod)> {
        let looks = self.replicas.iter_mut().filter_map(|replica| replica.last_look.as_mut());
        let looked_at = looks.flat_map(|look| (0..).zip(&mut look.listed));
        let read = self.calls.iter_mut().flat_map(|call| call.stage.listed_mut());
        read.chain(looked_at).chain((0..).zip(&mut self.pods))
    }
}

// === impl Call ===

impl Call {
    /// All that it says without any pod's name.
    fn nameless(&self, replicas: &[u8]) -> (u8, u8, bool, usize) {
        let stage = match &self.stage {
            Stage::Relisting { .. } => 0,
            Stage::Looking { .. } => 1,
            Stage::Ready(ready) => 2 + usize::from(ready.idle) + 2 * usize::from(ready.goes_unreserved),
            Stage::Adrift { .. } => 6,
            Stage::Allowed => 7,
            Stage::StartingOver => 8,
            Stage::Reading { records, pods } => 9 + records.len() + pods.iter().map(Vec::len).sum::<usize>(),
        };
        (replicas[usize::from(self.replica)], self.age, self.stale, stage)
    }
}

// === impl Stage ===

impl Stage {
    /// What was read of the record, or may be, or is to be written.
    fn records(&self) -> &[Vec<Held>] {
        match self {
            Self::Reading { records, .. } => records,
            Self::Relisting { record, .. }
            | Self::Looking { record, .. }
            | Self::Ready(Ready { record, .. })
            | Self::Adrift { record } => slice::from_ref(record),
            Self::StartingOver | Self::Allowed => &[],
        }
    }

    /// What of it may be on its way out.
    fn held(&self) -> &[Held] {
        match self {
            Self::Relisting { held, .. } | Self::Looking { held, .. } => held,
            _ => &[],
        }
    }

    /// What was read of a pod, or may be.
    fn listed(&self, pod: u8) -> &[Pod] {
        match self {
            Self::Reading { pods, .. } => &pods[usize::from(pod)],
            Self::Looking { listed, .. } | Self::Ready(Ready { listed, .. }) => {
                slice::from_ref(&listed[usize::from(pod)])
            }
            Self::StartingOver | Self::Relisting { .. } | Self::Adrift { .. } | Self::Allowed => &[],
        }
    }

    fn held_mut(&mut self) -> impl Iterator<Item = &mut Held> {
        let (records, held): (&mut [Vec<Held>], &mut [Held]) = match self {
            Self::Reading { records, .. } => (records, &mut []),
            Self::Relisting { record, held } | Self::Looking { record, held, .. } => {
                (slice::from_mut(record), held)
            }
            Self::Ready(Ready { record, .. }) | Self::Adrift { record } => (slice::from_mut(record), &mut []),
            Self::StartingOver | Self::Allowed => (&mut [], &mut []),
        };
        records.iter_mut().flatten().chain(held)
    }

    fn listed_mut(&mut self) -> impl Iterator<Item = (u8, &mut Pod)> {
        let (several, one): (&mut [Vec<Pod>], &mut [Pod]) = match self {
            Self::Reading { pods, .. } => (pods, &mut []),
            Self::Looking { listed, .. } | Self::Ready(Ready { listed, .. }) => (&mut [], listed),
            Self::StartingOver | Self::Relisting { .. } | Self::Adrift { .. } | Self::Allowed => {
                (&mut [], &mut [])
            }
        };
        let several = (0..).zip(several).flat_map(|(n, pods)| pods.iter_mut().map(move |pod| (n, pod)));
        several.chain((0..).zip(one))
    }

    /// Gives the pods new names, but for those in reservations, which have them; and sorts what has them.
    fn rename(&mut self, pods: &[u8]) {
        match self {
            Self::Reading { records, pods: had } => {
                for record in records {
                    record.sort_unstable();
                }
                *had = moved(had, pods);
            }
            Self::Relisting { record, held } => {
                record.sort_unstable();
                held.sort_unstable();
            }
            Self::Looking { record, held, listed } => {
                record.sort_unstable();
                held.sort_unstable();
                *listed = moved(listed, pods);
            }
            Self::Ready(Ready { record, listed, died, .. }) => {
                record.sort_unstable();
                *listed = moved(listed, pods);
                *died = sorted(died.iter().map(|n| pods[usize::from(*n)]));
            }
            Self::Adrift { record } => record.sort_unstable(),
            Self::StartingOver | Self::Allowed => {}
        }
    }
}
