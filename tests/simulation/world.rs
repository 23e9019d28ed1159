//! The state that all simulated processes share, and the trace of a run.

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::FutureExt;
use tokio::{task::AbortHandle, time::Instant};

use crate::{
    api::store::Store,
    oracle::Oracle,
    raft::{Cluster, Role},
    scenario::Scenario,
};

/// The simulated machines, and at most three replicas.
pub(crate) const PHASES: u64 = 4;

/// The requests that the guard evaluates at the same time, at most. With more of them, verdicts can arrive at the same instant.
const CONCURRENT_REQUESTS: u64 = 20;

/// A simulation, shared by its processes.
#[derive(Clone)]
pub(crate) struct Sim(Arc<Mutex<World>>);

/// The state of the simulated machines.
pub(crate) struct World {
    /// Random numbers of the raft cluster.
    pub(crate) rng: fastrand::Rng,
    pub(crate) scenario: Scenario,
    pub(crate) store: Store,
    pub(crate) cluster: Cluster,
    pub(crate) oracle: Oracle,
    pub(crate) faults: Faults,
    pub(crate) trace: Trace,
    /// The times of approvals in milliseconds, with the uids of the pods.
    pub(crate) approvals: Vec<(u64, String)>,
    /// The members that led at the last event, with their terms.
    leaders: Vec<(usize, u64)>,
    /// The members that run at each address, by the address of the pod.
    pub(crate) addresses: BTreeMap<String, usize>,
    pub(crate) started: Instant,
    /// The number of requests that the guard evaluated.
    requests: u64,
    /// The number of random numbers by name.
    calls: BTreeMap<String, u64>,
    pub(crate) seed: u64,
}

/// The faults that are active now.
#[derive(Default)]
pub(crate) struct Faults {
    /// Calls to the API server fail until then.
    pub(crate) api_down_until: Option<Instant>,
    /// Probability in percent that the response to a write is lost after the write took effect.
    pub(crate) lost_responses: u32,
    /// Probability in percent that a call of the guard takes seconds until the guard receives it.
    pub(crate) slow_calls: u32,
    /// Longest delay of a call to the API server in milliseconds.
    pub(crate) api_delay: u64,
    /// Delay of the watch events of each replica.
    pub(crate) watch_lag: Vec<Duration>,
    /// Members that a replica cannot reach: replica and member.
    pub(crate) unreachable: BTreeSet<(usize, usize)>,
    /// Whether kubelets start crashed processes without a delay.
    pub(crate) restarts_quickly: bool,
    /// Difference of the wall clock of each replica in seconds.
    pub(crate) skew: Vec<i64>,
    /// Number of injected faults by kind.
    pub(crate) injected: BTreeMap<&'static str, u32>,
}

/// Constants of FNV-1a.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

/// The events of a run. The same seed gives the same events, in any order at one instant.
#[derive(Default)]
pub(crate) struct Trace {
    pub(crate) hash: u64,
    pub(crate) events: usize,
    /// The text; only if it is recorded.
    pub(crate) text: Option<String>,
    /// The events of the last instant.
    pending: Vec<String>,
    millis: u128,
}

// === impl Sim ===

impl Sim {
    pub(crate) fn new(world: World) -> Self {
        Self(Arc::new(Mutex::new(world)))
    }

    /// Returns the state. It is never held across an `await`.
    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        // A panic under the lock is reported with its own message.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a task in the background. Its panic is a violation.
    pub(crate) fn spawn(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> AbortHandle {
        let sim = self.clone();
        let task = async move {
            if let Err(panic) = AssertUnwindSafe(task).catch_unwind().await {
                let text = format!("panic in the {name}: {}", panic_text(panic.as_ref()));
                sim.world().oracle.violations.push(text);
            }
        };
        tokio::spawn(task).abort_handle()
    }

    /// Waits for a number of milliseconds that depends on the name and on the time of a call of a replica.
    pub(crate) async fn pause_call(&self, replica: usize, name: &str, millis: RangeInclusive<u64>) {
        let pause = self.world().call_number(name, millis);
        let phase = 1 + u64::try_from(replica).unwrap();
        self.sleep_in_phase(Duration::from_millis(pause), phase, PHASES).await;
    }

    /// Waits until the API server has received the verdict of this request. The guard can complete several evaluations at the
    /// same instant, in any order, so that the requests of a time have an instant each.
    pub(crate) async fn receive(&self, request: u64) {
        let phase = PHASES * (request % CONCURRENT_REQUESTS);
        self.sleep_in_phase(Duration::from_millis(1), phase, PHASES * CONCURRENT_REQUESTS).await;
    }

    /// Waits for a random number of milliseconds, which depends on this name.
    pub(crate) async fn pause(&self, name: &str, millis: RangeInclusive<u64>) {
        let pause = self.world().number(name, millis);
        self.sleep(Duration::from_millis(pause)).await;
    }

    /// Waits for this time, until an instant at which no call of a replica takes effect.
    pub(crate) async fn sleep(&self, time: Duration) {
        self.sleep_in_phase(time, 0, PHASES).await;
    }

    /// Waits for this time, and until the next millisecond of this phase of a cycle. Each replica has a phase, and all simulated
    /// machines have another one: events of different phases have a determined order.
    async fn sleep_in_phase(&self, time: Duration, phase: u64, cycle: u64) {
        let started = self.world().started;
        let millis = u64::try_from((started.elapsed() + time).as_millis()).unwrap();
        let aligned = millis + (phase + cycle - millis % cycle) % cycle;
        tokio::time::sleep_until(started + Duration::from_millis(aligned)).await;
    }
}

// === impl World ===

impl World {
    /// Creates the state at the start of a run.
    pub(crate) fn new(scenario: Scenario, rng: fastrand::Rng, seed: u64, records_text: bool) -> Self {
        Self {
            store: scenario.store(),
            cluster: scenario.cluster(),
            faults: Faults {
                api_delay: 12,
                watch_lag: vec![Duration::from_millis(100); scenario.replicas],
                skew: vec![0; scenario.replicas],
                ..Faults::default()
            },
            oracle: Oracle::default(),
            trace: Trace { text: records_text.then(String::new), ..Trace::default() },
            approvals: Vec::new(),
            leaders: Vec::new(),
            addresses: BTreeMap::new(),
            requests: 0,
            calls: BTreeMap::new(),
            scenario,
            rng,
            seed,
            started: Instant::now(),
        }
    }

    /// Adds an event to the trace.
    pub(crate) fn note(&mut self, event: &str) {
        let millis = self.started.elapsed().as_millis();
        self.trace.add(millis, event);
    }

    /// Returns a random number that depends on the seed, on the name of a task or of a call, and on the number of its random
    /// numbers before. The order of events at the same instant is not determined (tokio wakes the receivers of a watch channel in
    /// random order), and must not influence the run.
    pub(crate) fn number(&mut self, name: &str, range: RangeInclusive<u64>) -> u64 {
        let calls = self.calls.entry(name.to_owned()).or_default();
        *calls += 1;
        random(&format!("{} {calls} {name}", self.seed), range)
    }

    /// Returns a random number for a call of the guard. Equal calls at the same instant have the same number, so that their order
    /// has no influence.
    pub(crate) fn call_number(&self, name: &str, range: RangeInclusive<u64>) -> u64 {
        let millis = self.started.elapsed().as_millis();
        random(&format!("{} {millis} {name}", self.seed), range)
    }

    /// Returns the number of a new request.
    pub(crate) fn new_request(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }

    /// Returns a random index below this length.
    pub(crate) fn index(&mut self, name: &str, length: usize) -> usize {
        let last = u64::try_from(length - 1).unwrap();
        usize::try_from(self.number(name, 0..=last)).unwrap()
    }

    /// Returns a random time of this number of milliseconds.
    pub(crate) fn time(&mut self, name: &str, millis: RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.number(name, millis))
    }

    /// Whether this happens, with a probability in percent.
    pub(crate) fn chance(&mut self, name: &str, percent: u64) -> bool {
        self.number(name, 0..=99) < percent
    }

    /// The seconds of the simulated wall clock since 1970.
    pub(crate) fn wall_clock(&self, replica: usize) -> i64 {
        let elapsed = i64::try_from(self.started.elapsed().as_secs()).unwrap();
        1_800_000_000 + elapsed + self.faults.skew[replica]
    }

    /// Records the progress of the raft cluster until now.
    pub(crate) fn advance(&mut self) {
        let now = Instant::now();
        let Self { cluster, rng, oracle, .. } = self;
        cluster.tick(now, rng);
        oracle.observe(cluster, now);
        let leaders = leaders(cluster);
        if leaders != self.leaders {
            self.note(&format!("raft: leaders {leaders:?}"));
            self.leaders = leaders;
        }
    }
}

/// Returns the members that lead, with their terms.
fn leaders(cluster: &Cluster) -> Vec<(usize, u64)> {
    let members = cluster.members.iter().enumerate();
    members
        .filter(|(_, member)| member.role == Role::Leader)
        .map(|(index, member)| (index, member.term))
        .collect()
}

/// Returns the message of a panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| String::from("no message"))
}

/// Returns a random number that depends on this text.
fn random(text: &str, range: RangeInclusive<u64>) -> u64 {
    fastrand::Rng::with_seed(hash(FNV_OFFSET, text)).u64(range)
}

/// Returns the hash of a text after other ones: FNV-1a.
fn hash(start: u64, text: &str) -> u64 {
    text.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME))
}

// === impl Trace ===

impl Trace {
    fn add(&mut self, millis: u128, event: &str) {
        if millis != self.millis {
            self.flush();
        }
        self.millis = millis;
        self.events += 1;
        self.pending.push(format!("{:>8}.{:03} {event}\n", millis / 1000, millis % 1000));
    }

    /// Adds the events of the last instant, in alphabetical order.
    pub(crate) fn flush(&mut self) {
        self.pending.sort_unstable();
        for line in self.pending.drain(..) {
            self.hash = hash(self.hash ^ FNV_OFFSET, &line);
            if let Some(text) = &mut self.text {
                text.push_str(&line);
            }
        }
    }
}
