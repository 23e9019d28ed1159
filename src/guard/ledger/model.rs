//! The protocol of reservations as a model, every run of which is searched: replicas that read the record and the pods, each
//! at a moment of its own, look at the members, and write the record if nobody wrote meanwhile; an apiserver that is slow,
//! carries a yes out late or never, and loses answers; replicas that restart; pods that die by themselves.
//!
//! What replicas do in it is the product's own [`Ledger`] and [`assess`](crate::guard::assess). What is the model's is the
//! world around them, and the order of steps that `guard/decision.rs` keeps. docs/decisions/0039-a-model-of-reservations.md
//! tells what it leaves out.

mod law;
mod look;
mod replica;
mod searches;
mod steps;
mod symmetry;

use std::time::Duration;

use stateright::{Model, Property};

use self::{look::Look, replica::Replica};
use super::{Ledger, Living, RESERVATION_LIFE, Reservation};

/// Time goes in steps of this: the longest that divides a reservation's life and leaves the apiserver's limit below it.
/// What takes some seconds, like a read, takes no step.
const STEP: Duration = Duration::from_secs(20);

/// The life of a reservation in steps.
const LIFE: u8 = 3;
const _: () = assert!(STEP.as_secs() * 3 == RESERVATION_LIFE.as_secs());

/// The oldest that a call may be when its deletion arrives, in steps: the apiserver gives up after 34 s.
const OLDEST_CALL: u8 = 2;

/// A guard that was built wrongly, to see that the search finds it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// A record that another replica wrote meanwhile is written over: nobody reads it again after a conflict.
    IgnoresConflicts,
    /// The last look at the cluster may say yes as well as no.
    CachesYes,
    /// A pod whose deletion was accepted counts for as long as it serves.
    CountsTerminating,
    /// A reservation ends before the apiserver gives up.
    ForgetsEarly,
    /// Learners count as voters.
    CountsLearners,
    /// A deletion that costs no vote at the moment goes on where it cannot be reserved.
    LetsIdleGoUnreserved,
    /// Each time that a replica reads the record it counts the lives in it anew.
    CountsAnew,
    /// The reads of a decision may lie any time apart.
    ReadsForLong,
}

/// A cluster, its guards, and what may happen to them.
#[derive(Clone, Debug)]
struct World {
    voters: u8,
    learners: u8,
    replicas: u8,
    /// Deletions that are asked for, all at once if they like.
    calls: u8,
    /// How often a pod may die by itself, and a replica restart.
    deaths: u8,
    restarts: u8,
    mistake: Option<Mistake>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct State {
    /// Pods from this on run learners.
    voters: u8,
    pods: Vec<Pod>,
    record: Vec<Held>,
    replicas: Vec<Replica>,
    /// Those that may still come to something.
    calls: Vec<Call>,
    asked: u8,
    deaths: u8,
    restarts: u8,
    /// A yes was given that broke the law.
    broken: bool,
}

/// A pod's place: its name stays, its incarnations change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Pod {
    incarnation: u8,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Phase {
    Serving,
    /// Its deletion was accepted; it serves until it stops.
    Terminating,
    /// Its container does not run.
    Down,
}

/// One incarnation of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Uid {
    pod: u8,
    incarnation: u8,
}

/// A reservation: of which pod, by which call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Held {
    uid: Uid,
    call: u8,
}

/// A deletion that somebody asks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Call {
    number: u8,
    uid: Uid,
    replica: u8,
    /// In steps.
    age: u8,
    /// Somebody wrote the record since this call read it.
    stale: bool,
    stage: Stage,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    /// Somebody wrote meanwhile: record and pods are to be read anew.
    StartingOver,
    /// Record and pods are read side by side, each at a moment of its own. This is what each has been since the first of these
    /// moments may have come: in the end any of it may have been read, whatever was read of the others.
    Reading { records: Vec<Vec<Held>>, pods: Vec<Vec<Pod>> },
    /// The record may be newer than the list: pods are to be listed once more.
    Relisting { record: Vec<Held>, held: Vec<Held> },
    /// The members are to be looked at. Of the record, this may be on its way out.
    Looking { record: Vec<Held>, held: Vec<Held>, listed: Vec<Pod> },
    /// The look says yes; the record is to be written.
    Ready(Ready),
    /// The replica gave up or restarted while its write was under way. It may arrive; nobody hears of it.
    Adrift { record: Vec<Held> },
    /// The apiserver may carry it out.
    Allowed,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Ready {
    record: Vec<Held>,
    listed: Vec<Pod>,
    /// The yes says that the pod serves nothing, and that was true when the members were looked at.
    idle: bool,
    /// It goes on where it cannot be reserved.
    goes_unreserved: bool,
    /// Pods that served then and have died by themselves since.
    died: Vec<u8>,
}

/// Calls by their place in the state's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// A replica that has no decision under way begins one, and its reads.
    Ask {
        pod: u8,
        replica: u8,
    },
    /// The same, where the last look may say yes.
    AskLastLook {
        pod: u8,
        replica: u8,
    },
    StartOver(usize),
    /// All was read: of what each has been meanwhile, the choice of this number.
    Read(usize, usize),
    /// The pods are listed once more, as they are at this moment.
    List(usize),
    Look(usize),
    /// The record is written and the answer given.
    Write(usize),
    /// Writing failed, and the replica knows. Where it says no, that is as if nobody had asked.
    Fail(usize),
    /// Writing took too long; the replica says no.
    GiveUp(usize),
    /// What was given up is written all the same.
    WriteLate(usize),
    /// The apiserver carries out what was allowed.
    Delete(usize),
    /// A terminating pod ends, and its successor is there.
    Stop(u8),
    /// A member is up and has caught up.
    Serve(u8),
    Die(u8),
    Restart(u8),
    Tick,
}

// === impl World ===

impl World {
    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
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

    fn asks(&self, state: &State, actions: &mut Vec<Action>) {
        if state.asked == self.calls {
            return;
        }
        // One decision at a time per replica; whoever waits for its turn has not begun.
        for replica in (0..self.replicas).filter(|replica| !state.is_busy(*replica)) {
            for pod in 0..self.pods() {
                actions.push(Action::Ask { pod, replica });
                if state.replicas[usize::from(replica)].last_look.is_some() {
                    actions.push(Action::AskLastLook { pod, replica });
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
            pods: vec![Pod { incarnation: 0, phase: Phase::Serving }; usize::from(self.pods())],
            record: Vec::new(),
            replicas: vec![Replica::default(); usize::from(self.replicas)],
            calls: Vec::new(),
            asked: 0,
            deaths: 0,
            restarts: 0,
            broken: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken {
            return;
        }
        self.asks(state, actions);
        for (n, call) in state.calls.iter().enumerate() {
            match &call.stage {
                Stage::StartingOver => actions.push(Action::StartOver(n)),
                Stage::Reading { records, pods } => {
                    let choices = pods.iter().map(Vec::len).product::<usize>() * records.len();
                    actions.extend((0..choices).map(|choice| Action::Read(n, choice)));
                }
                Stage::Relisting { .. } => actions.push(Action::List(n)),
                Stage::Looking { .. } => actions.push(Action::Look(n)),
                Stage::Ready(_) => actions.extend([Action::Write(n), Action::Fail(n), Action::GiveUp(n)]),
                Stage::Adrift { .. } => actions.push(Action::WriteLate(n)),
                Stage::Allowed => actions.push(Action::Delete(n)),
            }
        }
        for (pod, n) in state.pods.iter().zip(0..) {
            match pod.phase {
                Phase::Serving if state.deaths < self.deaths => actions.push(Action::Die(n)),
                Phase::Serving => {}
                Phase::Terminating => actions.push(Action::Stop(n)),
                Phase::Down => actions.push(Action::Serve(n)),
            }
        }
        if state.restarts < self.restarts {
            actions.extend((0..self.replicas).map(Action::Restart));
        }
        if self.makes(Mistake::ReadsForLong) || !state.calls.iter().any(Call::is_between_reads) {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        self.step(last, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        law::properties()
    }
}

// === impl State ===

impl State {
    /// Reads begin.
    fn start(&self) -> Stage {
        let pods = self.pods.iter().map(|pod| vec![*pod]).collect();
        Stage::Reading { records: vec![self.record.clone()], pods }
    }

    /// What is now, those who read may read.
    fn show(&mut self) {
        for call in &mut self.calls {
            let Stage::Reading { records, pods } = &mut call.stage else { continue };
            if !records.contains(&self.record) {
                records.push(self.record.clone());
            }
            for (had, pod) in pods.iter_mut().zip(&self.pods) {
                if let Err(place) = had.binary_search(pod) {
                    had.insert(place, *pod);
                }
            }
        }
    }

    fn ask(&mut self, pod: u8, replica: u8, stage: Stage) {
        let uid = Uid { pod, incarnation: self.pods[usize::from(pod)].incarnation };
        self.calls.push(Call { number: self.asked, uid, replica, age: 0, stale: false, stage });
        self.asked += 1;
    }

    /// From now on no write succeeds that rests on an older record.
    fn store(&mut self, record: Vec<Held>) {
        self.record = record;
        for call in &mut self.calls {
            call.stale = !matches!(call.stage, Stage::Allowed | Stage::StartingOver | Stage::Reading { .. });
        }
        // Nobody hears that these fail.
        self.calls.retain(|call| !matches!(call.stage, Stage::Adrift { .. }));
    }

    fn is_busy(&self, replica: u8) -> bool {
        self.calls.iter().any(|call| call.replica == replica && call.is_at_work())
    }
}

// === impl Call ===

impl Call {
    fn is_at_work(&self) -> bool {
        !matches!(self.stage, Stage::Adrift { .. } | Stage::Allowed)
    }

    /// Each read takes three seconds at the most.
    fn is_between_reads(&self) -> bool {
        matches!(self.stage, Stage::Reading { .. } | Stage::Relisting { .. })
    }
}
