//! A model of the reservation protocol for exhaustive search with stateright.
//!
//! Replicas read the ledger and the pods at separate moments, probe the members, and write the ledger by compare-and-swap.
//! The API server executes an approval late or never and loses responses. Replicas restart, and pods crash. In some
//! searches a voter leads, so that its deletion requires a transfer, a link between two voters is cut, or owners of pods
//! are deleted.
//!
//! The replicas run the shipped [`Sightings`] and [`assess`](crate::assess). The model contains the environment and the
//! order of steps of one evaluation. Decision 32 lists the omissions.

// The results of the searches do not depend on the order of hash maps and hash sets.
#![allow(clippy::disallowed_types)]

mod leadership;
mod observation;
mod properties;
mod replica;
mod searches;
mod symmetry;
mod traces;
mod transitions;

use std::time::Duration;

use stateright::{Model, Property};

use self::{observation::Observation, replica::Replica};
use crate::{
    ledger::{RESERVATION_TTL, Sightings},
    reservation::{LivePod, Reservation},
};

/// Time step of the model: the longest that divides the lifetime of a reservation and is shorter than the request timeout
/// of the API server. Operations of a few seconds, such as a read, take no step.
const STEP: Duration = Duration::from_secs(20);

/// Lifetime of a reservation in steps.
const LIFETIME: u8 = 3;
const _: () = assert!(STEP.as_secs() * 3 == RESERVATION_TTL.as_secs());

/// Maximum age of a request, in steps, at which its deletion can still arrive: the API server cancels it after 34 s.
const MAX_REQUEST_AGE: u8 = 2;

/// A defect that is seeded into the guard. The search must find each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    /// A replica overwrites a ledger that another replica changed since the read.
    IgnoresConflicts,
    /// The cached snapshot approves deletions.
    ApprovesFromCache,
    /// A terminating pod counts as healthy while it serves.
    CountsTerminating,
    /// A reservation expires before the API server cancels the request.
    ExpiresEarly,
    /// Learners count as voters.
    CountsLearners,
    /// The deletion of a pod that does not serve proceeds without a reservation.
    SkipsReservationOfIdlePods,
    /// A replica restarts the lifetime of every reservation at each read.
    RestartsLifetimes,
    /// The reads of one evaluation can be arbitrarily far apart.
    ReadsFarApart,
    /// The deletion of a leader is approved without a transfer.
    SkipsTransfer,
    /// The deletion of a leader is approved after the transfer, without a second probe.
    SkipsSecondProbe,
    /// An approval can rest on a leader that is leaving.
    AcceptsLeavingLeader,
    /// The accepted deletion of an owner does not reserve the pod.
    SkipsReservationOfCascades,
}

/// Parameters of a search: the cluster, the replicas, and the number of requests and faults.
#[derive(Clone, Debug)]
struct World {
    voters: u8,
    learners: u8,
    replicas: u8,
    /// Number of deletion requests, which can be concurrent.
    requests: u8,
    /// Maximum number of crashes of pods.
    crashes: u8,
    /// Maximum number of restarts of replicas.
    restarts: u8,
    /// Whether a voter leads, which the deletion of this voter has to transfer. Otherwise any serving voter counts as the
    /// leader.
    leadership: bool,
    /// Whether two of the voters cannot reach each other. Requires `leadership`.
    cut: bool,
    /// Maximum number of requests that are accepted deletions of owners.
    cascades: u8,
    defect: Option<Defect>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct State {
    /// Number of voters. Pods with higher numbers run learners.
    voters: u8,
    pods: Vec<Pod>,
    ledger: Vec<Reserved>,
    replicas: Vec<Replica>,
    /// Requests that can still change the state.
    requests: Vec<Request>,
    started: u8,
    crashes: u8,
    restarts: u8,
    cascades: u8,
    /// The voter that leads; `None` during an election and in searches without leadership.
    leader: Option<u8>,
    /// Two voters that cannot reach each other.
    cut: Option<(u8, u8)>,
    /// Whether an approval violated the safety invariant.
    violated: bool,
    /// Whether an approval rested on a leader that is leaving.
    misled: bool,
}

/// A pod of the StatefulSet. The name is stable; each successor is another incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Pod {
    incarnation: u8,
    state: PodState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum PodState {
    /// The container runs and the pod is not terminating.
    Serving,
    /// The deletion was accepted. The pod serves until it stops.
    Terminating,
    /// The container does not run.
    Down,
}

/// One incarnation of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Uid {
    pod: u8,
    incarnation: u8,
}

/// A reservation: the pod and the request that created it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Reserved {
    uid: Uid,
    request: u8,
}

/// A deletion request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Request {
    number: u8,
    uid: Uid,
    replica: u8,
    /// Age in steps.
    age: u8,
    /// Whether the ledger changed since this request read it.
    stale: bool,
    /// Whether the request follows from an accepted deletion of the pod's owner, which is approved in any case.
    is_cascade: bool,
    /// Whether leadership was transferred for this request.
    moved: bool,
    stage: RequestStage,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum RequestStage {
    /// A conflict occurred. The replica reads the ledger and the pods again.
    Retrying,
    /// The replica reads the ledger and each pod at separate moments. The lists contain every value since the first possible
    /// moment. Each read can return any value of its list, independently of the other reads.
    Reading { ledgers: Vec<Vec<Reserved>>, pods: Vec<Vec<Pod>> },
    /// The ledger can be newer than the list of pods. The replica lists the pods again.
    Relisting { ledger: Vec<Reserved>, held: Vec<Reserved> },
    /// The replica probes the members. `held` contains the active reservations of the ledger.
    Probing { ledger: Vec<Reserved>, held: Vec<Reserved>, listed: Vec<Pod> },
    /// The assessment approves the deletion. The replica writes the ledger.
    Ready(Ready),
    /// The target is reserved. The replica transfers leadership to one of these voters.
    Transferring { candidates: Vec<u8> },
    /// The replica abandoned its write. The write can still arrive, without a response.
    WriteAbandoned { ledger: Vec<Reserved> },
    /// The deletion is approved. The API server can execute it.
    Approved,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Ready {
    ledger: Vec<Reserved>,
    listed: Vec<Pod>,
    /// Whether the reason of the approval is that the pod does not serve, and the probe confirmed it.
    idle: bool,
    /// Whether the approval is returned even if the write fails.
    proceeds_unreserved: bool,
    /// Pods that served during the probe and crashed since.
    crashed: Vec<u8>,
    /// The leader during the probe.
    leader: Option<u8>,
    /// The voters to one of which leadership is transferred before the approval. Empty if no transfer is required.
    candidates: Vec<u8>,
}

/// A transition. Requests are identified by their index in the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// An idle replica begins an evaluation and its reads.
    Evaluate {
        pod: u8,
        replica: u8,
    },
    /// An idle replica evaluates a request from its cached snapshot.
    EvaluateFromCache {
        pod: u8,
        replica: u8,
    },
    /// The deletion of the pod's owner is accepted.
    DeleteOwner {
        pod: u8,
        replica: u8,
    },
    Retry(usize),
    /// All reads return. The second number selects one combination of the possible values.
    Read(usize, usize),
    /// The replica lists the pods in their current state.
    List(usize),
    Probe(usize),
    /// The replica writes the ledger and returns the approval.
    Write(usize),
    /// The write fails with a response. A denial leaves the state unchanged and is not modelled.
    Fail(usize),
    /// The write times out, and the replica returns a denial.
    Abandon(usize),
    /// An abandoned write arrives.
    WriteLate(usize),
    /// The replica transfers leadership to this voter and evaluates the deletion again.
    Transfer(usize, u8),
    /// The voters elect a leader.
    Elect(u8),
    /// The API server executes an approved deletion.
    Delete(usize),
    /// A terminating pod ends, and its successor exists.
    Stop(u8),
    /// A member has started and caught up.
    Serve(u8),
    Crash(u8),
    Restart(u8),
    Tick,
}

// === impl World ===

impl World {
    fn has_defect(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    fn is_voter(&self, pod: u8) -> bool {
        pod < self.voters
    }

    fn pods(&self) -> u8 {
        self.voters + self.learners
    }

    fn quorum(&self) -> usize {
        usize::from(self.voters / 2 + 1)
    }

    fn evaluations(&self, state: &State, actions: &mut Vec<Action>) {
        if state.started == self.requests {
            return;
        }
        // A replica evaluates one request at a time. Waiting requests have not begun.
        for replica in (0..self.replicas).filter(|replica| !state.is_busy(*replica)) {
            for pod in 0..self.pods() {
                actions.push(Action::Evaluate { pod, replica });
                if state.replicas[usize::from(replica)].cached.is_some() {
                    actions.push(Action::EvaluateFromCache { pod, replica });
                }
                if state.cascades < self.cascades {
                    actions.push(Action::DeleteOwner { pod, replica });
                }
            }
        }
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            voters: self.voters,
            pods: vec![Pod { incarnation: 0, state: PodState::Serving }; usize::from(self.pods())],
            ledger: Vec::new(),
            replicas: vec![Replica::default(); usize::from(self.replicas)],
            requests: Vec::new(),
            started: 0,
            crashes: 0,
            restarts: 0,
            cascades: 0,
            // The leader reaches all voters.
            leader: self.leadership.then(|| self.voters - 1),
            cut: self.cut.then_some((0, 1)),
            violated: false,
            misled: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.violated || state.misled {
            return;
        }
        self.evaluations(state, actions);
        for (n, request) in state.requests.iter().enumerate() {
            match &request.stage {
                RequestStage::Retrying => actions.push(Action::Retry(n)),
                RequestStage::Reading { ledgers, pods } => {
                    let choices = pods.iter().map(Vec::len).product::<usize>() * ledgers.len();
                    actions.extend((0..choices).map(|choice| Action::Read(n, choice)));
                }
                RequestStage::Relisting { .. } => actions.push(Action::List(n)),
                RequestStage::Probing { .. } => actions.push(Action::Probe(n)),
                RequestStage::Ready(_) => {
                    actions.extend([Action::Write(n), Action::Fail(n), Action::Abandon(n)]);
                }
                RequestStage::Transferring { candidates } => {
                    actions.extend(candidates.iter().map(|pod| Action::Transfer(n, *pod)));
                }
                RequestStage::WriteAbandoned { .. } => actions.push(Action::WriteLate(n)),
                RequestStage::Approved => actions.push(Action::Delete(n)),
            }
        }
        for (pod, n) in state.pods.iter().zip(0..) {
            match pod.state {
                PodState::Serving if state.crashes < self.crashes => actions.push(Action::Crash(n)),
                PodState::Serving => {}
                PodState::Terminating => actions.push(Action::Stop(n)),
                PodState::Down => actions.push(Action::Serve(n)),
            }
        }
        if self.leadership && state.leader.is_none() {
            actions.extend((0..self.voters).filter(|pod| self.can_lead(state, *pod)).map(Action::Elect));
        }
        if state.restarts < self.restarts {
            actions.extend((0..self.replicas).map(Action::Restart));
        }
        if self.has_defect(Defect::ReadsFarApart) || !state.requests.iter().any(Request::is_reading) {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        self.step(last, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::properties()
    }
}

// === impl State ===

impl State {
    /// Returns the stage in which the reads begin.
    fn begin_reads(&self) -> RequestStage {
        let pods = self.pods.iter().map(|pod| vec![*pod]).collect();
        RequestStage::Reading { ledgers: vec![self.ledger.clone()], pods }
    }

    /// Adds the current values to the possible results of all reads in progress.
    fn extend_reads(&mut self) {
        for request in &mut self.requests {
            let RequestStage::Reading { ledgers, pods } = &mut request.stage else { continue };
            if !ledgers.contains(&self.ledger) {
                ledgers.push(self.ledger.clone());
            }
            for (values, pod) in pods.iter_mut().zip(&self.pods) {
                if let Err(place) = values.binary_search(pod) {
                    values.insert(place, *pod);
                }
            }
        }
    }

    fn begin(&mut self, pod: u8, replica: u8, stage: RequestStage) {
        let uid = Uid { pod, incarnation: self.pods[usize::from(pod)].incarnation };
        let (number, is_cascade, moved) = (self.started, false, false);
        self.requests.push(Request { number, uid, replica, age: 0, stale: false, is_cascade, moved, stage });
        self.started += 1;
    }

    /// Stores the ledger. Writes that are based on an older ledger fail from now on.
    fn store(&mut self, ledger: Vec<Reserved>) {
        self.ledger = ledger;
        for request in &mut self.requests {
            request.stale = !matches!(
                request.stage,
                RequestStage::Approved
                    | RequestStage::Retrying
                    | RequestStage::Transferring { .. }
                    | RequestStage::Reading { .. }
            );
        }
        // Abandoned writes fail without an effect.
        self.requests.retain(|request| !matches!(request.stage, RequestStage::WriteAbandoned { .. }));
    }

    fn is_busy(&self, replica: u8) -> bool {
        self.requests.iter().any(|request| request.replica == replica && request.is_in_progress())
    }
}

// === impl Request ===

impl Request {
    fn is_in_progress(&self) -> bool {
        !matches!(self.stage, RequestStage::WriteAbandoned { .. } | RequestStage::Approved)
    }

    /// A read takes at most three seconds, which is less than one step.
    fn is_reading(&self) -> bool {
        matches!(self.stage, RequestStage::Reading { .. } | RequestStage::Relisting { .. })
    }
}
