//! Approvals with a fresh probe and a reservation, requested repeatedly on one connection.

use std::{
    net::SocketAddr,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;

use crate::{from_environment, mtls_cluster::MutualTls, reference, webhook::PATH};
use test_support::bench_table::{Row, Times, median_and_p99, ms};
use test_support::{
    guard::review::{deletion_review, dry_run_review, verdict},
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    http_client::Connection,
    plot_data::Figure,
    wait::wait_until,
};

/// The number of measured approvals, unless the variable `BENCH_ALLOWS` is set.
const ALLOWS: usize = 1000;

/// Approvals that are not measured: the first one connects, reads the cluster id and waits for the watch of claims.
const WARM_UP: usize = 20;

/// The promised 99th percentile for clusters with mutual TLS.
const BAR: Duration = Duration::from_millis(50);

pub(crate) async fn plain(etcd: &GuardedCluster) -> [Row; 2] {
    let follower = etcd.pods.get(&etcd.followers().await[0]).await.unwrap();
    let times = measure(etcd.guard.https(), &etcd.guard.ca_pem, &follower).await;
    let urls: Vec<String> =
        GuardedCluster::names().iter().map(|name| etcd.member(name).url().to_owned()).collect();
    let rounds = rounds(&[], &urls);
    let calls = calls(etcd);
    let figure = Figure::distribution("Fresh approval, plain etcd").times("bare etcd round", &rounds);
    let figure =
        figure.times("reads of the API server", &calls.reads).times("write of the Lease", &calls.write);
    figure.times("approval by the guard", &times).write("fresh-approval");
    let sum: Duration =
        [&calls.reads, &rounds, &calls.write].map(|times| times.percentile(50)).into_iter().sum();
    let parts = Row {
        quantity: String::from("fresh approval, plain etcd"),
        figure: median_and_p99(&times),
        reference: String::from("its calls without the guard, sum of the medians"),
        reference_figure: format!(
            "{}: reads {}, round {}, write {}",
            ms(sum),
            ms(calls.reads.percentile(50)),
            ms(rounds.percentile(50)),
            ms(calls.write.percentile(50))
        ),
        bar: None,
    };
    [row("fresh approval, plain etcd", &times, &rounds, None), parts]
}

pub(crate) async fn mtls(etcd: &GuardedCluster) -> Row {
    let cluster = MutualTls::start(etcd.control_plane).await;
    let follower = cluster.follower().await;
    let times = measure(cluster.guard.https(), &cluster.guard.ca_pem, &follower).await;
    let rounds = rounds(&cluster.tls_arguments(), &cluster.urls());
    plot("fresh-approval-mtls", "Fresh approval, etcd with mTLS", &times, &rounds);
    let row = row("fresh approval, etcd with mTLS", &times, &rounds, Some(BAR));
    drop(cluster);
    row
}

/// Measures the time of each approval, from the request to the response.
async fn measure(guard: SocketAddr, ca_pem: &str, pod: &Pod) -> Times {
    let mut connection = Connection::tls(guard, ca_pem).await.unwrap();
    wait_until("the deletion is approved", START_TIMEOUT, async || {
        verdict(&connection.post(PATH, dry_run_review(pod)).await.unwrap().body).0
    })
    .await;
    let count = WARM_UP + from_environment("BENCH_ALLOWS").unwrap_or(ALLOWS);
    let mut times = Vec::new();
    for _ in 0..count {
        let review = deletion_review(pod);
        let started = Instant::now();
        let answer = connection.post(PATH, review).await.unwrap();
        times.push(started.elapsed());
        let (allowed, message) = verdict(&answer.body);
        assert!(allowed, "{message}");
    }
    Times::new(times.split_off(WARM_UP))
}

/// Durations of the API calls of an approval, made by the reference program.
struct Calls {
    reads: Times,
    write: Times,
}

/// Runs the bare probe rounds of the reference program: the same client with the same build settings, and no
/// evaluation.
fn rounds(tls: &[String], urls: &[String]) -> Times {
    let lines = run_reference("rounds", &[tls, urls].concat());
    Times::new(lines.iter().map(|line| micros(line)).collect())
}

/// Runs the mode `calls` of the reference program.
fn calls(etcd: &GuardedCluster) -> Calls {
    let kubeconfig = etcd.control_plane.guard_kubeconfig().to_string_lossy().into_owned();
    let names = GuardedCluster::names().map(str::to_owned);
    let lines = run_reference("calls", &[&[kubeconfig, etcd.namespace.clone()][..], &names].concat());
    let (reads, writes) = lines
        .iter()
        .map(|line| {
            let (reads, write) = line.split_once(' ').expect("two durations");
            (micros(reads), micros(write))
        })
        .unzip();
    Calls { reads: Times::new(reads), write: Times::new(writes) }
}

/// Runs a mode of the reference program. Returns its lines.
fn run_reference(mode: &str, arguments: &[String]) -> Vec<String> {
    let count = from_environment("BENCH_ALLOWS").unwrap_or(ALLOWS).to_string();
    let output = Command::new(reference())
        .args([mode, &count])
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("the reference program starts");
    assert!(output.status.success(), "reference {mode}: {}", output.status);
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn micros(text: &str) -> Duration {
    Duration::from_micros(text.parse().expect("microseconds"))
}

fn plot(name: &str, title: &str, times: &Times, rounds: &Times) {
    let figure = Figure::distribution(title).times("bare etcd round", rounds);
    figure.times("approval by the guard", times).write(name);
}

fn row(quantity: &str, times: &Times, rounds: &Times, bar: Option<Duration>) -> Row {
    Row {
        quantity: quantity.to_owned(),
        figure: median_and_p99(times),
        reference: String::from("bare etcd round"),
        reference_figure: median_and_p99(rounds),
        bar: bar.map(|bar| (format!("p99 <= {} ms", bar.as_millis()), times.percentile(99) <= bar)),
    }
}
