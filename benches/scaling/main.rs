//! Approvals of different clusters on one thread and on two threads: one guard in this process.
//!
//! The API server and the members are doubles in the same process and on the same threads, because a real API server and real
//! members would compete for the cores. The figures therefore contain the work of the doubles, and are comparable with each other
//! only. Each approval has the steps of a real one: reads, a probe round, and a conditional write of the cluster's own Lease.

// A bench fails by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod api;

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use etcd_guard::{
    config::Config,
    etcd::Connections,
    guard::{Deadline, Guard, Request, Sources, WallClock},
    k8s::{
        AnnotationCache, ApiReader, ClaimReader, EventRecorder, Leases, OptInLabel, SecretReader,
        admission::AdmissionRequest,
    },
};
use prometheus_client::registry::Registry;
use test_support::{
    bench_table::{self, Row},
    etcd::fake_member::{FakeFleet, FakeListed, FakeReplies},
};
use tokio::{sync::watch, task::JoinSet, time::sleep};

use self::api::ApiServer;

/// Number of clusters, each of which has one decision at a time.
const CLUSTERS: usize = 16;

/// Number of members of each cluster.
const MEMBERS: usize = 3;

/// Number of rounds. Each round measures one thread, then two.
const ROUNDS: usize = 5;

/// Duration of a measurement.
const MEASURED: Duration = Duration::from_secs(5);

/// Duration of the approvals before a measurement.
const WARM_UP: Duration = Duration::from_secs(2);

/// Time for the watches of the guard to start.
const START_TIME: Duration = Duration::from_secs(2);

/// Timeout of a review.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

/// The promised ratio of the rates with two threads and with one.
const BAR: f64 = 1.8;

fn main() {
    let cores = std::thread::available_parallelism().expect("the number of cores").get();
    assert!(cores > 1, "this bench needs two cores");
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        one.push(measure(1));
        two.push(measure(2));
        eprintln!(
            "round {round} of {ROUNDS}: {} and {} approvals per second",
            one[round - 1],
            two[round - 1]
        );
    }
    let ratios: Vec<f64> = one.iter().zip(&two).map(|(one, two)| float(*two) / float(*one)).collect();
    let ratio = median(ratios, f64::total_cmp);
    bench_table::append(&[Row {
        quantity: format!("approvals of {CLUSTERS} clusters on two threads"),
        figure: format!("{}/s, {ratio:.2} x (median of {ROUNDS})", median(two, u64::cmp)),
        reference: String::from("on one thread"),
        reference_figure: format!("{}/s", median(one, u64::cmp)),
        bar: Some((format!(">= {BAR} x"), ratio >= BAR)),
    }]);
}

fn median<T: Copy>(mut values: Vec<T>, compare: impl FnMut(&T, &T) -> std::cmp::Ordering) -> T {
    values.sort_by(compare);
    values[values.len() / 2]
}

fn float(count: u64) -> f64 {
    f64::from(u32::try_from(count).expect("a small number"))
}

/// Returns the approvals per second with this number of threads.
fn measure(threads: usize) -> u64 {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .expect("a runtime");
    // The thread of `main` only waits.
    runtime.block_on(async { tokio::spawn(approve()).await.expect("the approvals end") })
}

async fn approve() -> u64 {
    let members = FakeFleet::start().await;
    for cluster in 0..CLUSTERS {
        add_members(&members, cluster);
    }
    let api = ApiServer::new(CLUSTERS, MEMBERS, members.port(), address);
    let client = api.client();
    let (_config, config) = watch::channel(Arc::new(Config::default()));
    let annotations = AnnotationCache::watch(&client, OptInLabel::default());
    let sources = Sources {
        pods: ApiReader::new(client.clone()),
        claims: ClaimReader::watch(&client, annotations.guarded_namespaces()),
        secrets: SecretReader::new(client.clone()),
        annotations,
        config,
        events: EventRecorder::start(client.clone()),
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
    for cluster in 0..CLUSTERS {
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
        fleet.add(IpAddr::V4(address(cluster, member)), replies);
    }
}

/// Returns the address of a member, from 127.32.0.1 on.
fn address(cluster: usize, member: usize) -> Ipv4Addr {
    let number = u32::try_from(cluster * MEMBERS + member + 1).expect("fewer than 2^32 members");
    Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 32, 0, 0)) + number)
}
