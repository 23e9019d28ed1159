//! Callers that know what an apiserver would: replicas that are ready, and the bundle to trust, both some moments late.

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
    RECOVERY,
    stage::{Stage, bundle},
};
use crate::support::{
    http_client::{self, Connection, NoAnswer},
    review::{deletion_of, pod_without_etcd},
    wait::until,
};

/// Callers, and what each waits between two requests: 50 requests a second.
const CALLERS: usize = 10;
const PERIOD: Duration = Duration::from_millis(200);

/// After so many requests a caller takes a new connection.
const FRESH_AFTER: usize = 20;

/// How late apiservers and Services learn of a change.
const LATE: Duration = Duration::from_millis(200);

/// Until when what a caller knows counts as fresh: the guard gives apiservers three seconds to learn of a new CA, and serves
/// on for five after it has failed its readiness.
const TIMELY: Duration = Duration::from_secs(2);

/// Something that changes, as its watcher saw it last.
struct Known<T> {
    value: T,
    /// When it was asked for.
    at: Instant,
}

/// What an apiserver and a Service would know, some moments late.
struct Knowledge {
    bundle: Mutex<Known<String>>,
    ready: Mutex<Known<Vec<SocketAddr>>>,
    stop: AtomicBool,
    answered: AtomicUsize,
}

impl Knowledge {
    fn now(&self) -> (String, Vec<SocketAddr>, Instant) {
        let (bundle, ready) = (self.bundle.lock().unwrap(), self.ready.lock().unwrap());
        (bundle.value.clone(), ready.value.clone(), bundle.at.min(ready.at))
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Call as an apiserver does: ready replicas only, trusting the bundle alone.
pub(super) struct Callers {
    knowledge: Arc<Knowledge>,
    callers: JoinSet<Calls>,
}

/// What one caller got.
#[derive(Default)]
struct Calls {
    failed: Vec<NoAnswer>,
    /// Failures of callers that knew less than the guard may expect of them.
    too_late: usize,
}

impl Callers {
    pub(super) async fn start(stage: &Stage) -> Self {
        let now = Instant::now();
        let knowledge = Arc::new(Knowledge {
            bundle: Mutex::new(Known { value: stage.bundle().await.unwrap(), at: now }),
            ready: Mutex::new(Known { value: Vec::new(), at: now }),
            stop: AtomicBool::new(false),
            answered: AtomicUsize::new(0),
        });
        let addresses: Vec<_> = stage.replicas.iter().map(|it| (it.http(), it.https())).collect();
        tokio::spawn(watch_bundle(stage.client.clone(), Arc::clone(&knowledge)));
        tokio::spawn(watch_readiness(addresses, Arc::clone(&knowledge)));
        until("a replica is known to be ready", RECOVERY, async || !knowledge.now().1.is_empty()).await;
        let callers = (0..CALLERS).map(|number| call(number, Arc::clone(&knowledge))).collect();
        Self { knowledge, callers }
    }

    pub(super) fn answered(&self) -> usize {
        self.knowledge.answered.load(Ordering::Relaxed)
    }

    /// How many were answered; all must be.
    pub(super) async fn end(self) -> usize {
        let answered = self.answered();
        self.knowledge.stop.store(true, Ordering::Relaxed);
        let calls = self.callers.join_all().await;
        let failed: Vec<_> = calls.iter().flat_map(|it| &it.failed).collect();
        let too_late: usize = calls.iter().map(|it| it.too_late).sum();
        eprintln!("{answered} calls answered; {too_late} tried again, because the caller was held up");
        assert!(failed.is_empty(), "{} failed, {answered} answered: {failed:?}", failed.len());
        answered
    }
}

async fn watch_bundle(client: Client, knowledge: Arc<Knowledge>) {
    while !knowledge.is_over() {
        let at = Instant::now();
        if let Some(value) = bundle(&client).await {
            *knowledge.bundle.lock().unwrap() = Known { value, at };
        }
        sleep(LATE).await;
    }
}

async fn watch_readiness(replicas: Vec<(SocketAddr, SocketAddr)>, knowledge: Arc<Knowledge>) {
    while !knowledge.is_over() {
        let at = Instant::now();
        let mut value = Vec::new();
        for (http, https) in &replicas {
            if http_client::get(*http, "/readyz").await.is_ok_and(|it| it.status.is_success()) {
                value.push(*https);
            }
        }
        *knowledge.ready.lock().unwrap() = Known { value, at };
        sleep(LATE).await;
    }
}

/// One caller: keeps its connection as an apiserver does, until the bundle changes, the replica is no longer ready, or the
/// server says that it closes. Now and then it takes a new one without need, for the handshake's sake.
async fn call(number: usize, knowledge: Arc<Knowledge>) -> Calls {
    let mut calls = Calls::default();
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut kept: Option<Kept> = None;
    let mut turn = number;
    while !knowledge.is_over() {
        ticks.tick().await;
        turn += 1;
        let (bundle, ready, known_at) = knowledge.now();
        let usable =
            |it: &Kept| ready.contains(&it.address) && it.bundle == bundle && it.requests < FRESH_AFTER;
        let answer = match kept.take().filter(usable) {
            Some(kept) => Ok(kept),
            None => Kept::open(ready.get(turn % ready.len().max(1)), bundle).await,
        };
        let answer = match answer {
            Ok(mut connection) => connection.ask().await.map(|closes| {
                if !closes {
                    kept = Some(connection);
                }
            }),
            Err(error) => Err(error),
        };
        match answer {
            Ok(()) => drop(knowledge.answered.fetch_add(1, Ordering::Relaxed)),
            // On a machine that stood still, what it knew was old when it called; it calls again with what is true now. A
            // call that hangs is no such thing.
            Err(error) if known_at.elapsed() > TIMELY && !error.is_timeout() => calls.too_late += 1,
            Err(error) => calls.failed.push(error),
        }
    }
    calls
}

/// A connection that is kept.
pub(super) struct Kept {
    address: SocketAddr,
    bundle: String,
    connection: Connection,
    requests: usize,
}

impl Kept {
    pub(super) async fn open(address: Option<&SocketAddr>, bundle: String) -> Result<Self, NoAnswer> {
        let address = *address.ok_or_else(|| NoAnswer(String::from("no replica is ready")))?;
        let connection = Connection::tls(address, &bundle).await?;
        Ok(Self { address, bundle, connection, requests: 0 })
    }

    /// Whether the server closes after its answer.
    pub(super) async fn ask(&mut self) -> Result<bool, NoAnswer> {
        self.requests += 1;
        let answer = self.connection.post("/validate?timeout=10s", deletion_of(&pod_without_etcd())).await?;
        if answer.status == 200 { Ok(answer.closes) } else { Err(NoAnswer(answer.body)) }
    }
}
