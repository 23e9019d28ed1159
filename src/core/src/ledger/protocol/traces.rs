//! Comparison of recorded runs with the model: every run of the replicas must be a run of the model.
//!
//! `tests/support/src/protocol_trace.rs` describes the format of a trace. A trace contains effects: writes of the ledger, changes of
//! pods, and approvals. It does not contain reads, probes, denials or the ledgers of the replicas. The comparison therefore
//! searches for an evaluation of the model that explains each new reservation: the evaluation begins after the last write, reads
//! values of its time, probes the members at some moment, and writes the same reservation.
//!
//! The model is the more permissive side in each case that the trace leaves open:
//!
//! - One replica of the model represents all replicas, and reads each ledger at the time of its write in the trace.
//! - The model advances by one step at each multiple of [`STEP`], so that a reservation expires up to one step early.
//! - A member serves while its container runs. If no evaluation with these members explains a reservation, the comparison repeats
//!   the search with members that start within a moment, and without members that are not ready at that time: the guard approves
//!   the deletion of a stopped member if the quorum is lost.

mod search;
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::ledger::protocol::{Action, Pod, PodState, Request, RequestStage, STEP, State, Uid, World};
use stateright::Model;

/// Maximum delay of the status of a pod after a change of its container.
const STATUS_LAG_MILLIS: u64 = 5_000;

/// Maximum delay of a reservation in the trace after its approval. In a stress test, a proxy records approvals, and a watch reports
/// reservations, also after a restart of the API server.
const WATCH_LAG_MILLIS: u64 = 15_000;

/// Time from the begin of an evaluation to its write, at most.
const EVALUATION_MILLIS: u64 = 10_000;

/// Time after which an approval has no further effect: the lifetime of a reservation.
const APPROVAL_MILLIS: u64 = 60_000;

/// The first line of a trace.
#[derive(Deserialize)]
struct Header {
    voters: Vec<String>,
    learners: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Line {
    ms: u64,
    #[serde(flatten)]
    event: Event,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Event {
    #[serde(rename = "record")]
    Ledger(Vec<Entry>),
    Created {
        pod: String,
        uid: String,
    },
    Running(String),
    Stopped(String),
    Terminating(String),
    Ready(String),
    Unready(String),
    Gone(String),
    Approved(String),
}

/// A reservation: the uid of the pod, and the time of the approval.
type Entry = (String, String);

/// Number of events that the model explains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Compared {
    pub reservations: u32,
    pub deletions: u32,
}

/// A trace that is no run of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Difference {
    /// The trace cannot be read.
    Invalid(String),
    /// The model does not contain an event.
    Run(String),
}

/// A run of the model that follows a trace.
struct Run {
    world: World,
    /// The names of the pods by number.
    names: Vec<String>,
    uids: BTreeMap<String, Uid>,
    state: State,
    /// The states since the last write of the ledger with their times, the current one included.
    moments: Vec<(u64, State)>,
    /// The time of the current event in milliseconds.
    now: u64,
    /// The reservations of the last ledger.
    ledger: Vec<Entry>,
    /// The times of approvals.
    approved: BTreeMap<String, u64>,
    /// Pods that are not ready, and those that became ready with the time of this change.
    unready: BTreeMap<Uid, Option<u64>>,
    /// Approvals whose reservation has not appeared, with their times.
    pending: Vec<(u64, String)>,
    steps: u64,
    compared: Compared,
}

/// Compares a trace with the model. Returns the first difference as an error.
pub(super) fn compare(trace: &str) -> Result<Compared, Difference> {
    let mut lines = trace.lines();
    let parse = |error: serde_json::Error| Difference::Invalid(error.to_string());
    let header: Header = serde_json::from_str(lines.next().unwrap_or_default()).map_err(parse)?;
    let events: Result<Vec<Line>, Difference> =
        lines.map(|line| serde_json::from_str(line).map_err(parse)).collect();
    let events = events?;
    let mut run = Run::new(&header);
    for (place, line) in events.iter().enumerate() {
        run.advance(line.ms);
        let applied =
            run.apply(line, &events[place + 1..]).and_then(|()| run.explain_late_approvals(line.ms));
        applied.map_err(|cause| Difference::Run(format!("line {}: {cause}\n{line:?}", place + 2)))?;
    }
    run.explain_late_approvals(u64::MAX).map_err(Difference::Run)?;
    Ok(run.compared)
}

// === impl Run ===

impl Run {
    fn new(header: &Header) -> Self {
        let count = |names: &[String]| u8::try_from(names.len()).unwrap();
        let world = World {
            voters: count(&header.voters),
            learners: count(&header.learners),
            replicas: 1,
            requests: u8::MAX,
            crashes: u8::MAX,
            restarts: 0,
            leadership: false,
            cut: false,
            cascades: 0,
            defect: None,
        };
        let mut state = world.init_states().remove(0);
        for pod in &mut state.pods {
            pod.state = PodState::Down;
        }
        Self {
            world,
            names: header.voters.iter().chain(&header.learners).cloned().collect(),
            uids: BTreeMap::new(),
            moments: vec![(0, state.clone())],
            now: 0,
            state,
            ledger: Vec::new(),
            approved: BTreeMap::new(),
            unready: BTreeMap::new(),
            pending: Vec::new(),
            steps: 0,
            compared: Compared::default(),
        }
    }

    /// Advances the time of the model.
    fn advance(&mut self, millis: u64) {
        self.now = millis;
        // An evaluation can continue during a step.
        let current = self.moments.len() - 1;
        let is_recent = |time: u64| time + EVALUATION_MILLIS >= millis;
        let mut place = 0;
        self.moments.retain(|(time, _)| {
            place += 1;
            // A state lasts until the next one.
            is_recent(*time) || place > current
        });
        let steps = millis / u64::try_from(STEP.as_millis()).unwrap();
        while self.steps < steps {
            self.steps += 1;
            self.step(Action::Tick);
            for (_, moment) in &mut self.moments {
                *moment = self.world.step(moment, Action::Tick).expect("time advances");
            }
        }
    }

    /// Explains the approvals whose reservation has not appeared in time.
    fn explain_late_approvals(&mut self, millis: u64) -> Result<(), String> {
        let is_late = |approved_at: u64| approved_at.saturating_add(WATCH_LAG_MILLIS) < millis;
        let (late, pending): (Vec<_>, Vec<_>) =
            self.pending.drain(..).partition(|(approved_at, _)| is_late(*approved_at));
        self.pending = pending;
        late.iter().try_for_each(|(_, uid)| self.approve_without_reservation(uid))
    }

    fn apply(&mut self, line: &Line, following: &[Line]) -> Result<(), String> {
        match &line.event {
            Event::Ledger(entries) => return self.write(entries, following),
            Event::Approved(uid) => self.approve(uid),
            Event::Created { pod, uid } => return self.create(pod, uid),
            Event::Running(uid) => {
                if let Some(Uid { pod, .. }) = self.current(uid, PodState::Down) {
                    self.step(Action::Serve(pod));
                }
            }
            Event::Stopped(uid) => {
                if let Some(Uid { pod, .. }) = self.current(uid, PodState::Serving) {
                    self.step(Action::Crash(pod));
                    self.state.crashes = 0;
                }
            }
            Event::Ready(uid) => drop(self.uids.get(uid).map(|uid| self.unready.insert(*uid, Some(line.ms)))),
            Event::Unready(uid) => drop(self.uids.get(uid).map(|uid| self.unready.insert(*uid, None))),
            Event::Terminating(uid) => return self.delete(uid),
            Event::Gone(uid) => return self.remove(uid),
        }
        self.remember();
        Ok(())
    }

    /// Adds the current state to the moments.
    fn remember(&mut self) {
        self.moments.push((self.now, self.state.clone()));
    }

    /// Assigns the uid of a new pod. A watch can report its former pod as gone later.
    fn create(&mut self, name: &str, uid: &str) -> Result<(), String> {
        let number = self.names.iter().position(|known| known == name).ok_or("an unknown pod was created")?;
        let number = u8::try_from(number).unwrap();
        let former = self.uids.iter().find(|(_, known)| **known == self.state.uid(number));
        if let Some(former) = former.map(|(uid, _)| uid.clone()) {
            self.remove(&former)?;
        }
        self.uids.insert(uid.to_owned(), self.state.uid(number));
        Ok(())
    }

    /// Removes a pod, and creates its successor in the model.
    fn remove(&mut self, uid: &str) -> Result<(), String> {
        if self.current(uid, PodState::Serving).or(self.current(uid, PodState::Down)).is_some() {
            self.delete(uid)?;
        }
        if let Some(Uid { pod, .. }) = self.current(uid, PodState::Terminating) {
            self.step(Action::Stop(pod));
        }
        self.remember();
        Ok(())
    }

    fn step(&mut self, action: Action) {
        self.state = self.world.step(&self.state, action).expect("a possible action");
    }

    /// Returns the pod with this uid, if it exists and has this state.
    fn current(&self, uid: &str, state: PodState) -> Option<Uid> {
        let known = *self.uids.get(uid)?;
        let pod = Pod { incarnation: known.incarnation, state };
        (self.state.pods[usize::from(known.pod)] == pod).then_some(known)
    }

    /// Returns the approved request for a pod.
    fn approved_request(&self, uid: Uid) -> Option<usize> {
        let is_approved = |request: &Request| request.uid == uid && request.stage == RequestStage::Approved;
        self.state.requests.iter().position(is_approved)
    }

    /// Executes a deletion. If the model has no approval, first searches for one without a reservation.
    fn delete(&mut self, uid: &str) -> Result<(), String> {
        let Some(&known) = self.uids.get(uid) else { return Err(String::from("an unknown pod was deleted")) };
        if self.state.uid(known.pod) != known {
            return Ok(());
        }
        if self.approved_request(known).is_none() {
            self.pending.retain(|(_, pending)| pending != uid);
            self.approve_without_reservation(uid)?;
        }
        let request =
            self.approved_request(known).ok_or("a pod was deleted without an approval of the model")?;
        self.step(Action::Delete(request));
        self.remember();
        self.compared.deletions += 1;
        Ok(())
    }

    fn approve(&mut self, uid: &str) {
        self.approved.insert(uid.to_owned(), self.now);
        let has_request = self.uids.get(uid).is_none_or(|uid| self.approved_request(*uid).is_some());
        if !has_request {
            self.pending.push((self.now, uid.to_owned()));
        }
    }

    /// Explains an approval without a reservation: its pod is deleted already, or runs no voter.
    fn approve_without_reservation(&mut self, uid: &str) -> Result<(), String> {
        let Some(&known) = self.uids.get(uid) else { return Ok(()) };
        let is_deleted = self.state.uid(known.pod) != known
            || self.state.pods[usize::from(known.pod)].state == PodState::Terminating;
        if is_deleted || self.approved_request(known).is_some() {
            return Ok(());
        }
        let explained = self
            .search(known, &self.states(), |world, state, request| world.step(&state, Action::Fail(request)));
        self.state = explained.ok_or("the deletion was approved without a reservation")?;
        self.moments = vec![(self.now, self.state.clone())];
        Ok(())
    }

    /// Returns the states of the moments.
    fn states(&self) -> Vec<State> {
        self.moments.iter().map(|(_, state)| state.clone()).collect()
    }

    /// Explains a write of the ledger.
    fn write(&mut self, entries: &[Entry], following: &[Line]) -> Result<(), String> {
        let known: BTreeSet<&Entry> = self.ledger.iter().collect();
        let mut new: Vec<&Entry> = entries.iter().filter(|entry| !known.contains(entry)).collect();
        new.sort_by_key(|(_, at)| at);
        for (uid, _) in new {
            self.reserve(uid, following)?;
        }
        let is_kept = |uid: &Uid| entries.iter().any(|(entry, _)| self.uids.get(entry) == Some(uid));
        let active = self.state.replicas[0].active(&self.world, &self.state.ledger);
        let mut withdrawn = Vec::new();
        for removed in self.state.ledger.iter().filter(|reserved| !is_kept(&reserved.uid)) {
            // The guard and the model remove reservations of replaced pods at different times.
            if self.state.uid(removed.uid.pod) != removed.uid || !active.contains(removed) {
                continue;
            }
            let is_approved = |(uid, at): (&String, &u64)| {
                self.uids.get(uid) == Some(&removed.uid) && at + APPROVAL_MILLIS > self.now
            };
            if self.approved.iter().any(is_approved) {
                return Err(format!("the active reservation of pod {} was removed", removed.uid));
            }
            // The transfer of leadership failed, and the deletion was denied.
            withdrawn.push(removed.uid);
        }
        let kept: Vec<_> =
            self.state.ledger.iter().copied().filter(|reserved| is_kept(&reserved.uid)).collect();
        self.state.ledger = kept.clone();
        self.state.requests.retain(|request| !withdrawn.contains(&request.uid));
        self.state.replicas[0].observe(&self.world, &kept);
        self.moments = vec![(self.now, self.state.clone())];
        self.ledger = entries.to_vec();
        Ok(())
    }

    /// Explains a new reservation.
    fn reserve(&mut self, uid: &str, following: &[Line]) -> Result<(), String> {
        let known = *self.uids.get(uid).ok_or("a reservation of an unknown pod")?;
        let write = |world: &World, state: State, request: usize| {
            let next = world.step(&state, Action::Write(request))?;
            (!next.violated).then_some(next)
        };
        let (starting, silent) = (self.starting(following), self.silent(known));
        let variants: [(&[Uid], &[Uid]); 4] =
            [(&[], &[]), (&starting, &[]), (&[], &silent), (&starting, &silent)];
        let explained = variants.into_iter().find_map(|(starting, silent)| {
            let mut moments = self.states();
            for moment in &mut moments {
                set_state(moment, starting, PodState::Down, PodState::Serving);
                set_state(moment, silent, PodState::Serving, PodState::Down);
            }
            self.search(known, &moments, write)
        });
        let pods = self.state.pods.clone();
        self.state = explained
            .ok_or_else(|| format!("no evaluation of the model reserves pod {known}: {:?}", self.state))?;
        self.state.pods = pods;
        self.state.replicas[0].observe(&self.world, &self.state.ledger.clone());
        self.moments = vec![(self.now, self.state.clone())];
        self.compared.reservations += 1;
        Ok(())
    }

    /// Returns the other pods that were not ready during the evaluation.
    fn silent(&self, target: Uid) -> Vec<Uid> {
        let is_recent = |ready: &Option<u64>| ready.is_none_or(|at| at + EVALUATION_MILLIS >= self.now);
        let silent = self.unready.iter().filter(|(uid, ready)| **uid != target && is_recent(ready));
        silent.map(|(uid, _)| *uid).collect()
    }

    /// Returns the pods whose containers are reported as running within [`STATUS_LAG_MILLIS`].
    fn starting(&self, following: &[Line]) -> Vec<Uid> {
        let soon = following.iter().take_while(|line| line.ms <= self.now + STATUS_LAG_MILLIS);
        soon.filter_map(|line| match &line.event {
            Event::Running(uid) => self.uids.get(uid).copied(),
            _ => None,
        })
        .collect()
    }
}

/// Changes the state of these pods, if they exist and have the state `from`.
fn set_state(moment: &mut State, pods: &[Uid], from: PodState, to: PodState) {
    for Uid { pod, incarnation } in pods {
        let known = &mut moment.pods[usize::from(*pod)];
        if *known == (Pod { incarnation: *incarnation, state: from }) {
            known.state = to;
        }
    }
}
