//! Approvals of different clusters on one thread and on two threads: one guard in this process.
//!
//! The API server and the members are doubles in the same process and on the same threads, because a real API server and real
//! members would compete for the cores. The figures therefore contain the work of the doubles, and are comparable with each other
//! only. Each approval has the steps of a real one: reads, a probe round, and a conditional write of the cluster's own Lease.
//!
//! The rate on two threads depends on the distance of the two cores, which is measured before and after each of these rates. The
//! target applies to cores that share a cache. A machine with more cores runs the bench on two of them: `taskset --cpu-list 0,1`.

// The compiler verifies that the nested futures of the guard's background tasks are `Send`.
#![recursion_limit = "256"]
// A bench fails by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod api;
mod cores;

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use etcd_guard_core::{
    config::policies::Policies, documentation::Manual, objects::admission::AdmissionRequest,
    opt_in_label::OptInLabel, request::Request, wall_clock::WallClock,
};
use etcd_guard_etcd::Connections;
use etcd_guard_guard::{Deadline, Guard, Sources};
use etcd_guard_kubernetes::{AnnotationCache, ApiReader, ClaimReader, EventRecorder, Leases, SecretReader};
use prometheus_client::registry::Registry;
use test_support::{
    bench_table::{self, Row},
    etcd::fake_member::{FakeFleet, FakeListed, FakeReplies},
};
use tokio::{
    sync::watch,
    task::{JoinSet, yield_now},
    time::sleep,
};

use self::api::ApiServer;

/// Number of clusters, each of which has one decision at a time.
const CLUSTERS: usize = 16;

/// Number of members of each cluster.
const MEMBERS: usize = 3;

/// Number of rounds on cores that share a cache. Each round measures one guard on one thread, then on two, then two guards.
const ROUNDS: usize = 7;

/// Largest number of rounds, also on cores that share no cache.
const MAX_ROUNDS: usize = 20;

/// Duration of a measurement. Longer ones are more likely to contain a move of a core.
const MEASURED: Duration = Duration::from_secs(3);

/// Duration of the approvals before a measurement.
const WARM_UP: Duration = Duration::from_secs(1);

/// Time for the watches of the guard to start.
const START_TIME: Duration = Duration::from_secs(1);

/// Timeout of a review.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

/// The promised ratio of the rates with two threads and with one.
const BAR: f64 = 1.8;

/// The rates of one round, in approvals per second.
struct Round {
    /// One guard on one thread.
    one: u64,
    /// One guard on two threads.
    two: u64,
    /// The distance of the cores, as a round trip, before and after the measurement on two threads.
    distances: [Duration; 2],
    /// Two guards, each with half of the clusters on a thread of its own, right after the measurement on two threads. They share
    /// no lock.
    separate: u64,
}

fn main() {
    let available = std::thread::available_parallelism().expect("the number of cores").get();
    assert_eq!(
        available, 2,
        "this bench needs two cores: on a machine with more, use taskset --cpu-list 0,1"
    );
    let (mut near, mut far) = (Vec::new(), Vec::new());
    while near.len() < ROUNDS && near.len() + far.len() < MAX_ROUNDS {
        let round = Round::measure();
        eprintln!(
            "round {}: {} approvals per second on one thread, {} on two, {} with two guards; round trip {:?} and {:?}",
            near.len() + far.len() + 1,
            round.one,
            round.two,
            round.separate,
            round.distances[0],
            round.distances[1],
        );
        // A round in which a core moved counts as a round without a shared cache.
        let is_near = round.distances.into_iter().all(cores::share_a_cache);
        if is_near { &mut near } else { &mut far }.push(round);
    }
    for (rounds, place) in [(&near, "that share a cache"), (&far, "that share no cache, or moved")] {
        if !rounds.is_empty() {
            bench_table::append(&rows(rounds, place));
        }
    }
    assert_eq!(
        near.len(),
        ROUNDS,
        "the cores shared a cache in too few rounds, so that the target was not measured"
    );
}

/// Returns the rows of rounds on cores of one distance.
fn rows(rounds: &[Round], place: &str) -> [Row; 2] {
    let rate = |value: fn(&Round) -> u64| median(rounds.iter().map(|round| float(value(round))).collect());
    let ratio = |value: fn(&Round) -> (u64, u64)| {
        let of = |round: &Round| {
            let (rate, reference) = value(round);
            float(rate) / float(reference)
        };
        median(rounds.iter().map(of).collect())
    };
    let (by_one, count) = (ratio(|round| (round.two, round.one)), rounds.len());
    let is_near = rounds[0].distances.into_iter().all(cores::share_a_cache);
    let longest = rounds.iter().flat_map(|round| round.distances).max().expect("a round");
    [
        Row {
            quantity: format!("approvals of {CLUSTERS} clusters on two threads, cores {place}"),
            figure: format!("{:.0}/s, {by_one:.2} x (median of {count})", rate(|round| round.two)),
            reference: String::from("on one thread"),
            reference_figure: format!("{:.0}/s", rate(|round| round.one)),
            bar: (is_near && count == ROUNDS).then(|| (format!(">= {BAR} x"), by_one >= BAR)),
        },
        Row {
            quantity: format!("two guards on a thread each, cores {place}"),
            figure: format!(
                "{:.0}/s, {:.2} x (median of {count})",
                rate(|round| round.separate),
                ratio(|round| (round.separate, round.one))
            ),
            reference: String::from("longest round trip of a cache line"),
            reference_figure: format!("{} ns", longest.as_nanos()),
            bar: None,
        },
    ]
}

impl Round {
    fn measure() -> Self {
        let one = measure(1, CLUSTERS);
        let before = cores::round_trip();
        let two = measure(2, CLUSTERS);
        let distances = [before, cores::round_trip()];
        Self { one, two, distances, separate: measure_separate() }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2])
}

fn float(count: u64) -> f64 {
    f64::from(u32::try_from(count).expect("a small number"))
}

/// Returns the approvals per second of two guards, each on one thread.
fn measure_separate() -> u64 {
    let half = || measure(1, CLUSTERS / 2);
    std::thread::scope(|scope| {
        let threads = [scope.spawn(half), scope.spawn(half)];
        threads.map(|thread| thread.join().expect("a rate")).iter().sum()
    })
}

/// Returns the approvals per second of one guard with this number of threads and clusters.
fn measure(threads: usize, clusters: usize) -> u64 {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .expect("a runtime");
    // The thread of `main` only waits.
    runtime.block_on(async { tokio::spawn(approve(clusters)).await.expect("the approvals end") })
}

async fn approve(clusters: usize) -> u64 {
    let members = FakeFleet::start().await;
    for cluster in 0..clusters {
        add_members(&members, cluster);
    }
    let api = ApiServer::new(clusters, MEMBERS, members.port(), address);
    let client = api.client();
    let (_config, config) = watch::channel(Arc::new(Policies::default()));
    let annotations = AnnotationCache::watch(&client, OptInLabel::default());
    let sources = Sources {
        pods: ApiReader::new(client.clone()),
        claims: ClaimReader::watch(&client, annotations.guarded_namespaces()),
        secrets: SecretReader::new(client.clone()),
        annotations,
        config,
        events: EventRecorder::start(client.clone()),
        manual: Manual::default(),
        api_servers: vec![String::from("192.0.2.1:6443")],
        connections: Connections::new(),
        wall_clock: WallClock::default(),
        own_pod: None,
        nodes: None,
    };
    let guard = Arc::new(Guard::new(sources, Leases::new(client, "etcd-guard"), &mut Registry::default()));
    let running = Arc::clone(&guard);
    let background = tokio::spawn(async move { Box::pin(running.run_background_tasks(None)).await });
    sleep(START_TIME).await;
    let (approved, denied) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut clients = JoinSet::new();
    for cluster in 0..clusters {
        let review = api.review(cluster, 1).to_string();
        clients.spawn(delete_repeatedly(
            Arc::clone(&guard),
            review,
            Arc::clone(&approved),
            Arc::clone(&denied),
        ));
    }
    sleep(WARM_UP).await;
    let (before, started) = (approved.load(Ordering::Relaxed), Instant::now());
    denied.store(0, Ordering::Relaxed);
    sleep(MEASURED).await;
    assert_eq!(denied.load(Ordering::Relaxed), 0, "deletions were denied while the rate was measured");
    let rate = u128::from(approved.load(Ordering::Relaxed) - before) * 1000 / started.elapsed().as_millis();
    if let Some(Err(failed)) = clients.try_join_next() {
        panic!("a client failed: {failed}");
    }
    background.abort();
    u64::try_from(rate).expect("a small number")
}

/// Requests the deletion of one pod repeatedly. The bench does not execute the deletion.
async fn delete_repeatedly(
    guard: Arc<Guard>,
    review: String,
    approved: Arc<AtomicU64>,
    denied: Arc<AtomicU64>,
) {
    loop {
        let request: AdmissionRequest<'_> = serde_json::from_str(&review).expect("a request");
        let request = Request::from_admission(&request).expect("a request");
        let verdict = guard.evaluate(&request, Deadline::from_timeout(Some(REVIEW_TIMEOUT))).await;
        // Before the measurement, all clusters open their connections at once, and members can be late.
        let count = if verdict.allows() { &approved } else { &denied };
        count.fetch_add(1, Ordering::Relaxed);
        // A point of cancellation. Evaluations that fail at once have none.
        yield_now().await;
    }
}

fn add_members(fleet: &FakeFleet, cluster: usize) {
    let id = |member: usize| u64::try_from(cluster * MEMBERS + member + 1).expect("64 bits");
    let url = |member: usize, port: u16| format!("http://{}:{port}", address(cluster, member));
    let listed = |member: usize| FakeListed {
        id: id(member),
        name: format!("etcd-{member}"),
        peer_urls: vec![url(member, 2380)],
        client_urls: vec![url(member, fleet.port())],
    };
    for member in 0..MEMBERS {
        let replies = FakeReplies {
            cluster_id: 0xc000_0000 + id(0),
            member_id: id(member),
            leader: id(0),
            term: 7,
            members: (0..MEMBERS).map(listed).collect(),
        };
        fleet.add(IpAddr::V4(address(cluster, member)), replies, None);
    }
}

/// Returns the address of a member, from 127.32.0.1 on.
fn address(cluster: usize, member: usize) -> Ipv4Addr {
    let number = u32::try_from(cluster * MEMBERS + member + 1).expect("fewer than 2^32 members");
    Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 32, 0, 0)) + number)
}
