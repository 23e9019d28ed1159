//! Callers that observe the ready replicas and the trusted bundle with a delay, as an API server does.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use kube::Client;
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep},
};

use super::{
    RECOVERY_TIMEOUT,
    setup::{Setup, bundle},
};
use test_support::{
    guard::review::{deletion_review, pod_without_etcd},
    http_client::{self, Connection, RequestError},
    wait::wait_until,
};

/// The number of callers, and the interval of each: 50 requests per second together.
const CALLERS: usize = 10;
const CALL_INTERVAL: Duration = Duration::from_millis(200);

/// The number of requests on one connection.
const MAX_REQUESTS_PER_CONNECTION: usize = 20;

/// The delay with which API servers and Services learn of a change.
const PROPAGATION_DELAY: Duration = Duration::from_millis(200);

/// The age up to which the observed state counts as current: the guard allows three seconds for a new CA to
/// propagate, and serves for five seconds after it has become unready.
const MAX_AGE: Duration = Duration::from_secs(2);

/// The last observed value of something that changes.
struct Observed<T> {
    value: T,
    /// The time of the observation.
    at: Instant,
}

/// The delayed state that an API server and a Service observe.
struct ObservedState {
    bundle: Mutex<Observed<String>>,
    ready: Mutex<Observed<Vec<SocketAddr>>>,
    stop: AtomicBool,
    answered: AtomicUsize,
}

impl ObservedState {
    fn now(&self) -> (String, Vec<SocketAddr>, Instant) {
        let (bundle, ready) = (self.bundle.lock().unwrap(), self.ready.lock().unwrap());
        (bundle.value.clone(), ready.value.clone(), bundle.at.min(ready.at))
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Callers that use only ready replicas and trust only the bundle, as an API server does.
pub(crate) struct Callers {
    state: Arc<ObservedState>,
    callers: JoinSet<Calls>,
}

/// The results of one caller.
#[derive(Default)]
struct Calls {
    failed: Vec<RequestError>,
    /// Failures with observed state that was older than the guard allows for.
    too_late: usize,
}

impl Callers {
    pub(crate) async fn start(setup: &Setup) -> Self {
        let now = Instant::now();
        let state = Arc::new(ObservedState {
            bundle: Mutex::new(Observed { value: setup.bundle().await.unwrap(), at: now }),
            ready: Mutex::new(Observed { value: Vec::new(), at: now }),
            stop: AtomicBool::new(false),
            answered: AtomicUsize::new(0),
        });
        let addresses: Vec<_> =
            setup.replicas.iter().map(|replica| (replica.http(), replica.https())).collect();
        tokio::spawn(watch_bundle(setup.client.clone(), Arc::clone(&state)));
        tokio::spawn(watch_readiness(addresses, Arc::clone(&state)));
        wait_until("a replica is known to be ready", RECOVERY_TIMEOUT, async || !state.now().1.is_empty())
            .await;
        let callers = (0..CALLERS).map(|number| call(number, Arc::clone(&state))).collect();
        Self { state, callers }
    }

    pub(crate) fn answered(&self) -> usize {
        self.state.answered.load(Ordering::Relaxed)
    }

    /// Stops the callers, and returns the number of answered requests. Every request must be answered.
    pub(crate) async fn end(self) -> usize {
        let answered = self.answered();
        self.state.stop.store(true, Ordering::Relaxed);
        let calls = self.callers.join_all().await;
        let failed: Vec<_> = calls.iter().flat_map(|calls| &calls.failed).collect();
        let too_late: usize = calls.iter().map(|calls| calls.too_late).sum();
        eprintln!("{answered} calls answered; {too_late} repeated, because the caller was delayed");
        assert!(failed.is_empty(), "{} failed, {answered} answered: {failed:?}", failed.len());
        answered
    }
}

async fn watch_bundle(client: Client, state: Arc<ObservedState>) {
    while !state.is_stopped() {
        let at = Instant::now();
        if let Some(value) = bundle(&client).await {
            *state.bundle.lock().unwrap() = Observed { value, at };
        }
        sleep(PROPAGATION_DELAY).await;
    }
}

async fn watch_readiness(replicas: Vec<(SocketAddr, SocketAddr)>, state: Arc<ObservedState>) {
    while !state.is_stopped() {
        let at = Instant::now();
        let mut value = Vec::new();
        for (http, https) in &replicas {
            if http_client::get(*http, "/readyz").await.is_ok_and(|response| response.status.is_success()) {
                value.push(*https);
            }
        }
        *state.ready.lock().unwrap() = Observed { value, at };
        sleep(PROPAGATION_DELAY).await;
    }
}

/// One caller. It reuses its connection like an API server, until the bundle changes, the replica is no longer ready,
/// or the server closes it. After some requests it reconnects, to test handshakes.
async fn call(number: usize, state: Arc<ObservedState>) -> Calls {
    let mut calls = Calls::default();
    let mut ticks = interval(CALL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut reused: Option<ReusedConnection> = None;
    let mut round = number;
    while !state.is_stopped() {
        ticks.tick().await;
        round += 1;
        let (bundle, ready, known_at) = state.now();
        let usable = |connection: &ReusedConnection| {
            ready.contains(&connection.address)
                && connection.bundle == bundle
                && connection.requests < MAX_REQUESTS_PER_CONNECTION
        };
        let answer = match reused.take().filter(usable) {
            Some(reused) => Ok(reused),
            None => ReusedConnection::open(ready.get(round % ready.len().max(1)), bundle).await,
        };
        let answer = match answer {
            Ok(mut connection) => connection.send().await.map(|closes| {
                if !closes {
                    reused = Some(connection);
                }
            }),
            Err(error) => Err(error),
        };
        match answer {
            Ok(()) => drop(state.answered.fetch_add(1, Ordering::Relaxed)),
            // After a pause of the machine, the observed state was outdated, and the request is repeated with
            // current state. A timeout is always a failure.
            Err(error) if known_at.elapsed() > MAX_AGE && !error.is_timeout() => calls.too_late += 1,
            Err(error) => calls.failed.push(error),
        }
    }
    calls
}

/// A reused connection.
pub(crate) struct ReusedConnection {
    address: SocketAddr,
    bundle: String,
    connection: Connection,
    requests: usize,
}

impl ReusedConnection {
    pub(crate) async fn open(address: Option<&SocketAddr>, bundle: String) -> Result<Self, RequestError> {
        let address = *address.ok_or_else(|| RequestError(String::from("no replica is ready")))?;
        let connection = Connection::tls(address, &bundle).await?;
        Ok(Self { address, bundle, connection, requests: 0 })
    }

    /// Sends a review, and returns whether the server closes the connection.
    pub(crate) async fn send(&mut self) -> Result<bool, RequestError> {
        self.requests += 1;
        let answer =
            self.connection.post("/validate?timeout=10s", deletion_review(&pod_without_etcd())).await?;
        if answer.status == 200 { Ok(answer.closes) } else { Err(RequestError(answer.body)) }
    }
}
