//! A model of the reservation protocol with several clusters and namespaces, for exhaustive search with stateright.
//!
//! The ledger of a namespace is read before the probe, and written after it with the version that was read. An evaluation lists
//! the pods and reads the ledgers one after another, in steps of their own. The API server executes an approval late or never.
//! [`protocol`](super::protocol) has the same steps for one cluster and one ledger, with the shipped assessment, leadership,
//! cascades and lost responses; here the assessment is arithmetic. Both run the shipped arithmetic of reservations.
//!
//! Each rule is necessary: without it, the search finds an approval that costs the quorum. `searches.rs` has one test for each.
//!
//! | rule | mutation | found in a search with |
//! | --- | --- | --- |
//! | A write succeeds only with the version that was read. | `OverwritesConflicts` | two deletions |
//! | A repeated write keeps what the other evaluation wrote. | `RepeatsWithOldContent` | two clusters in one namespace |
//! | Without a cluster id, a conflict starts the evaluation again. | `RepeatsWithoutOwnId` | members that nobody reaches at first |
//! | A changed reservation of a pod of one of our voters does so, too. | `RepeatsForOwnPods` | the same; two deletions; a restore under another id |
//! | Reservations count by pod, whatever cluster id they carry. | `CountsOwnIdOnly` | a restore under another id |
//! | An approval without a cluster id is reserved. | `SkipsReservationWithoutId` | members that nobody reaches at first |
//! | The ledgers of all namespaces of the cluster's voters are read. | `ReadsOwnNamespaceOnly` | a cluster over two namespaces |
//! | All of them are written. | `WritesOwnNamespaceOnly` | a cluster over two namespaces |
//! | They are read before the probe that the approval rests on. | `SkipsSecondProbe` | a cluster over two namespaces |
//! | So is the ledger of a voter that joins between two rounds. | `IgnoresNewVoters` | a learner in a third namespace |
//! | After a conflict at a later ledger, the evaluation starts again. | `ApprovesAfterPartialWrite` | two namespaces, members that nobody reaches at first |
//! | A withdrawal restores the earlier reservation of the pod. | `WithdrawsEarlierEntries` | a second request for a pod of two namespaces |
//! | Voters whose pods are not found: the ledger of the cluster is read and written. | `SkipsClusterLease` | pods that other namespaces do not find |
//! | A replica keeps the reservations of a Lease that was deleted. | `ForgetsDeletedLease` | a deleted Lease |
//! | An eviction without a uid reserves the name. | `ForgetsNames` | an eviction by name, and a pod that is replaced |
//! | So does one that is approved because the pod is terminating. | `ForgetsEndedNames` | an eviction by name after a deletion |
//! | Its reservation ends only with its lifetime. | `RemovesNames` | the same, five voters |
//! | A successor that has not served yet is leaving like its predecessor. | `IgnoresSilentSuccessors` | a forced deletion: the process continues |
//! | A reservation is removed only after the successor has served. | `RemovesSilentSuccessors` | the same, beside another cluster |
//! | If a ledger reserves an unlisted pod, the pods are listed again. | `SkipsRelist` | a successor at the same address |
//! | A reservation outlives its request. | `ExpiresEarly` | two deletions |
//! | What was active at the read counts until the end of the evaluation. | `ExpiresDuringEvaluation` | two deletions |
//!
//! Two rules of the first proposal are not necessary beside these: that the cluster ids of this evaluation and of a changed
//! reservation differ (the pods decide), and that a reservation remains for 10 s after its pod was missed (the successor must
//! have served, and the list after the read of the ledger proves that the pod is gone). The order of writes and the withdrawal
//! after a conflict serve progress, not safety.
//!
//! Three limits remain, each with a counterexample:
//!
//! - One replica approves a deletion, the Lease is deleted, and a replica that never read it approves another deletion
//!   (`finds_limit_of_deleted_leases`). This requires rights in the namespace of the guard.
//! - A crashed pod is reserved while nobody reports the cluster id, serves again, and members in other namespaces cannot find it
//!   (`finds_limit_of_hidden_pods_without_id`).
//! - A pod that members in other namespaces cannot find terminates for longer than its reservation lives.

#![allow(clippy::disallowed_types)]

mod probe;
mod replica;
mod requests;
mod searches;
mod symmetry;

use std::time::Duration;

use stateright::{Model, Property};

use self::replica::Replica;
use crate::ledger::RESERVATION_TTL;

/// Time step of the model: the longest that divides the lifetime of a reservation and is shorter than the request timeout of the
/// API server. Operations of a few seconds, such as a read, take no step.
const STEP: Duration = Duration::from_secs(20);

/// Lifetime of a reservation in steps.
const LIFETIME: u8 = 3;
const _: () = assert!(STEP.as_secs() * 3 == RESERVATION_TTL.as_secs());

/// Maximum age of a request, in steps, at which its deletion can still arrive: the API server cancels it after 34 s.
const MAX_REQUEST_AGE: u8 = 2;

const SAFETY: &str = "no approval costs the quorum";
const PROGRESS: &str = "a deletion is approved";

/// A rule that the guard leaves out. The search must find a violation for each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    OverwritesConflicts,
    RepeatsWithOldContent,
    RepeatsWithoutOwnId,
    RepeatsForOwnPods,
    CountsOwnIdOnly,
    ReadsOwnNamespaceOnly,
    WritesOwnNamespaceOnly,
    IgnoresNewVoters,
    SkipsSecondProbe,
    ApprovesAfterPartialWrite,
    WithdrawsEarlierEntries,
    SkipsClusterLease,
    ForgetsDeletedLease,
    ForgetsNames,
    ForgetsEndedNames,
    IgnoresSilentSuccessors,
    RemovesSilentSuccessors,
    RemovesNames,
    SkipsRelist,
    ExpiresEarly,
    ExpiresDuringEvaluation,
    SkipsReservationWithoutId,
}

/// A pod: its namespace, its cluster, and whether its member votes at the start.
#[derive(Clone, Copy, Debug)]
struct Home {
    namespace: u8,
    cluster: u8,
    votes: bool,
}

/// The clusters, the requests and the faults of a search.
#[derive(Clone, Debug)]
struct World {
    pods: Vec<Home>,
    /// Pods whose deletion is requested.
    targets: Vec<u8>,
    replicas: u8,
    limits: Counts,
    /// Whether all members of the first cluster are down at the start.
    starts_down: bool,
    /// Whether a pod has the address of its predecessor (host network).
    keeps_address: bool,
    /// Whether evaluations of other namespaces find the pods of this one only as external members.
    hidden_namespace: Option<u8>,
    defect: Option<Defect>,
}

/// Numbers of events: the limits of a search, or those that occurred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Counts {
    requests: u8,
    /// Requests for pods whose deletion was requested before.
    repeated_requests: u8,
    /// Writes by clusters that are not in the model.
    other_writes: u8,
    evictions_by_name: u8,
    crashes: u8,
    restarts: u8,
    promotions: u8,
    restores: u8,
    forced: u8,
    /// Pods that fail and are replaced without an evaluation, such as after an eviction by a kubelet.
    replaced: u8,
    deleted_leases: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct State {
    pods: Vec<Pod>,
    /// The id of each cluster. A restore changes it.
    ids: Vec<u8>,
    /// The Lease of each namespace, and then that of the first cluster.
    leases: Vec<Lease>,
    replicas: Vec<Replica>,
    requests: Vec<Request>,
    /// The pods whose deletion was requested, as a bit set.
    requested: u8,
    counts: Counts,
    violated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Pod {
    incarnation: u8,
    votes: bool,
    process: Process,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Process {
    Serves,
    /// The pod is terminating; its process serves until it stops.
    Terminating,
    Down,
    /// The process of the predecessor continues after a forced deletion. The container of this pod does not run.
    OfPredecessor {
        is_old: bool,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Lease {
    uid: Option<u8>,
    held: Vec<Reserved>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Reserved {
    pod: u8,
    incarnation: u8,
    id: Option<u8>,
    by_name: bool,
    request: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Request {
    number: u8,
    pod: u8,
    incarnation: u8,
    replica: u8,
    /// Age in steps.
    age: u8,
    by_name: bool,
    /// The Leases that the evaluation reads, as a bit set, and those of them that changed since.
    leases: u8,
    stale: u8,
    /// Whether the evaluation has started again because it needed further Leases.
    is_extended: bool,
    stage: Stage,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    /// The pods were listed. The Leases are read one after another.
    Reading {
        listed: Vec<Pod>,
        read: Vec<Lease>,
    },
    /// A Lease reserves an unlisted pod. The pods are listed again.
    Relisting {
        read: Vec<Lease>,
        active: Vec<Reserved>,
    },
    Probing {
        listed: Vec<Pod>,
        read: Vec<Lease>,
        active: Vec<Reserved>,
    },
    Writing(Writing),
    Approved,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Writing {
    listed: Vec<Pod>,
    read: Vec<Lease>,
    /// The id of the cluster, if a member reported it.
    id: Option<u8>,
    /// The voters during the probe, and those of them that passed it, as bit sets.
    voters: u8,
    healthy: u8,
    /// Whether the target costs no vote, because it does not serve or is no voter.
    is_free: bool,
    /// Whether another deletion was approved since, because this target serves.
    overtaken: bool,
    crashed: u8,
    /// The Leases to write, and those that were written.
    needed: u8,
    written: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Evaluate { pod: u8, replica: u8, by_name: bool },
    Read(usize),
    List(usize),
    Probe(usize),
    Write(usize),
    Delete { request: usize, forced: bool },
    Stop(u8),
    Serve(u8),
    Crash(u8),
    Replace(u8),
    Restart(u8),
    Promote(u8),
    Restore,
    DeleteLease(usize),
    WriteOther(usize),
    Tick,
}

// === impl World ===

impl World {
    fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    fn namespaces(&self) -> usize {
        self.pods.iter().map(|home| usize::from(home.namespace) + 1).max().unwrap_or(0)
    }

    fn home(&self, pod: u8) -> Home {
        self.pods[usize::from(pod)]
    }

    /// Returns the voters of a cluster as a bit set.
    fn voters(&self, state: &State, cluster: u8) -> u8 {
        set(self.pods.iter().zip(&state.pods).map(|(home, pod)| home.cluster == cluster && pod.votes))
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let is_down = |home: &Home| self.starts_down && home.cluster == 0;
        let pod = |home: &Home| Pod {
            incarnation: 0,
            votes: home.votes,
            process: if is_down(home) { Process::Down } else { Process::Serves },
        };
        let clusters = self.pods.iter().map(|home| home.cluster + 1).max().unwrap_or(0);
        vec![State {
            pods: self.pods.iter().map(pod).collect(),
            ids: (0..clusters).map(|cluster| cluster * 10).collect(),
            leases: vec![Lease::default(); self.namespaces() + 1],
            replicas: vec![Replica::new(self.namespaces() + 1); usize::from(self.replicas)],
            requests: Vec::new(),
            requested: 0,
            counts: Counts::default(),
            violated: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.violated {
            return;
        }
        let (counts, limits) = (&state.counts, &self.limits);
        if counts.requests < limits.requests {
            // A replica evaluates one request of a cluster at a time.
            let is_busy = |replica: u8| {
                state.requests.iter().any(|known| known.replica == replica && known.stage != Stage::Approved)
            };
            for replica in (0..self.replicas).filter(|replica| !is_busy(*replica)) {
                let may_request = |pod: &u8| {
                    !contains(state.requested, *pod) || counts.repeated_requests < limits.repeated_requests
                };
                for pod in self.targets.iter().copied().filter(may_request) {
                    actions.push(Action::Evaluate { pod, replica, by_name: false });
                    if counts.evictions_by_name < limits.evictions_by_name {
                        actions.push(Action::Evaluate { pod, replica, by_name: true });
                    }
                }
            }
        }
        for (n, request) in state.requests.iter().enumerate() {
            match &request.stage {
                Stage::Reading { .. } => actions.push(Action::Read(n)),
                Stage::Relisting { .. } => actions.push(Action::List(n)),
                Stage::Probing { .. } => actions.push(Action::Probe(n)),
                Stage::Writing(_) => actions.push(Action::Write(n)),
                Stage::Approved => {
                    actions.push(Action::Delete { request: n, forced: false });
                    if counts.forced < limits.forced && request.age < MAX_REQUEST_AGE {
                        actions.push(Action::Delete { request: n, forced: true });
                    }
                }
            }
        }
        for (pod, n) in state.pods.iter().zip(0..) {
            match pod.process {
                Process::Serves => {
                    if counts.crashes < limits.crashes {
                        actions.push(Action::Crash(n));
                    }
                    if counts.replaced < limits.replaced {
                        actions.push(Action::Replace(n));
                    }
                }
                Process::Terminating | Process::OfPredecessor { .. } => actions.push(Action::Stop(n)),
                Process::Down => actions.push(Action::Serve(n)),
            }
            if !pod.votes && counts.promotions < limits.promotions && pod.process == Process::Serves {
                actions.push(Action::Promote(n));
            }
        }
        if counts.restarts < limits.restarts {
            actions.extend((0..self.replicas).map(Action::Restart));
        }
        if counts.restores < limits.restores {
            actions.push(Action::Restore);
        }
        if counts.deleted_leases < limits.deleted_leases {
            let exists = |n: &usize| state.leases[*n].uid.is_some();
            actions.extend((0..state.leases.len()).filter(exists).map(Action::DeleteLease));
        }
        // Only a conflict at a later Lease withdraws anything.
        if counts.other_writes < limits.other_writes {
            actions.extend((1..self.namespaces()).map(Action::WriteOther));
        }
        // Reads take seconds. The process of a forcibly deleted pod ends before the reservation does.
        let is_reading =
            |request: &Request| matches!(request.stage, Stage::Reading { .. } | Stage::Relisting { .. });
        // So does that of a pod which others cannot find.
        let is_old = |pod: &Pod| {
            pod.process == Process::OfPredecessor { is_old: true }
                || (self.hidden_namespace.is_some() && pod.process == Process::Terminating)
        };
        if !state.requests.iter().any(is_reading) && !state.pods.iter().any(is_old) {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let slot = usize::from;
        match action {
            Action::Evaluate { pod, replica, by_name } => self.evaluate(&mut state, pod, replica, by_name),
            Action::Read(n) => self.read(&mut state, n),
            Action::List(n) => state.list(n),
            Action::Probe(n) => self.probe(&mut state, n),
            Action::Write(n) => self.write(&mut state, n),
            Action::Delete { request, forced } => {
                let request = state.requests.remove(request);
                let pod = &mut state.pods[slot(request.pod)];
                if request.by_name || pod.incarnation == request.incarnation {
                    match pod.process {
                        Process::Serves if forced => {
                            pod.incarnation += 1;
                            pod.process = Process::OfPredecessor { is_old: false };
                            state.counts.forced += 1;
                        }
                        Process::Serves => pod.process = Process::Terminating,
                        Process::Down => pod.incarnation += 1,
                        Process::Terminating | Process::OfPredecessor { .. } => {}
                    }
                }
            }
            Action::Stop(pod) => {
                let pod = &mut state.pods[slot(pod)];
                pod.incarnation += u8::from(pod.process == Process::Terminating);
                pod.process = Process::Down;
            }
            Action::Serve(pod) => state.pods[slot(pod)].process = Process::Serves,
            Action::Crash(pod) => {
                state.crash(pod);
                state.counts.crashes += 1;
            }
            Action::Replace(pod) => {
                state.crash(pod);
                state.pods[slot(pod)].incarnation += 1;
                state.counts.replaced += 1;
            }
            Action::Restart(replica) => {
                state.replicas[slot(replica)] = Replica::new(state.leases.len());
                state.counts.restarts += 1;
                state.requests.retain(|known| known.replica != replica || known.stage == Stage::Approved);
            }
            Action::Promote(pod) => {
                state.pods[slot(pod)].votes = true;
                state.counts.promotions += 1;
            }
            Action::Restore => {
                state.ids[0] += 1;
                state.counts.restores += 1;
            }
            Action::DeleteLease(lease) => {
                state.counts.deleted_leases += 1;
                state.store(lease, Lease::default());
            }
            Action::WriteOther(lease) => {
                state.counts.other_writes += 1;
                let uid = state.leases[lease].uid.or(Some(state.counts.deleted_leases));
                let held = state.leases[lease].held.clone();
                state.store(lease, Lease { uid, held });
            }
            Action::Tick => {
                for request in &mut state.requests {
                    request.age += 1;
                }
                state.requests.retain(|request| request.age <= MAX_REQUEST_AGE);
                state.replicas.iter_mut().for_each(Replica::age);
                for pod in &mut state.pods {
                    if let Process::OfPredecessor { is_old } = &mut pod.process {
                        *is_old = true;
                    }
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(SAFETY, |_, state: &State| !state.violated),
            Property::sometimes(PROGRESS, |_, state: &State| {
                state.requests.iter().any(|request| request.stage == Stage::Approved)
            }),
        ]
    }
}

fn bit(n: u8) -> u8 {
    1 << n
}

fn contains(set: u8, n: u8) -> bool {
    set & bit(n) != 0
}

fn set(all: impl Iterator<Item = bool>) -> u8 {
    all.zip(0..).filter(|(is_in, _)| *is_in).map(|(_, n)| bit(n)).sum()
}

// === impl State ===

impl State {
    fn crash(&mut self, pod: u8) {
        self.pods[usize::from(pod)].process = Process::Down;
        for request in &mut self.requests {
            if let Stage::Writing(writing) = &mut request.stage {
                writing.crashed |= bit(pod);
            }
        }
    }

    /// Stores a Lease. Writes that are based on an older version fail from now on.
    fn store(&mut self, n: usize, lease: Lease) {
        self.leases[n] = lease;
        for request in &mut self.requests {
            let has_read = match &request.stage {
                Stage::Reading { read, .. } => n < read.len(),
                Stage::Approved => false,
                Stage::Relisting { .. } | Stage::Probing { .. } | Stage::Writing(_) => true,
            };
            if has_read {
                request.stale |= bit(n.try_into().unwrap());
            }
        }
    }
}
