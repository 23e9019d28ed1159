//! A yes that rests on a round of its own and writes a reservation, asked for again and again on one connection.

use std::{
    net::SocketAddr,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;

use crate::{
    from_environment,
    mtls::MutualTls,
    reference,
    rows::{Row, Times, median_and_p99},
    support::{
        guarded_cluster::{GuardedCluster, START_LIMIT},
        http_client::Connection,
        review::{deletion_of, dry_run_of, verdict},
        wait::until,
    },
};

pub(crate) const PATH: &str = "/validate?timeout=10s";

/// How many are asked for; the variable says otherwise.
const ALLOWS: usize = 1000;

/// A first yes connects, reads the cluster's id and waits for the watch of claims.
const WARM_UP: usize = 20;

/// What is promised of clusters with mutual TLS, in 99 of 100.
const BAR: Duration = Duration::from_millis(50);

pub(crate) async fn plain(etcd: &GuardedCluster) -> Row {
    let follower = etcd.pods.get(&etcd.followers().await[0]).await.unwrap();
    let times = ask(etcd.guard.https(), &etcd.guard.ca_pem, &follower).await;
    let urls: Vec<String> =
        GuardedCluster::names().iter().map(|name| etcd.member(name).url().to_owned()).collect();
    row("fresh allow, plain etcd", &times, &rounds(&[], &urls), None)
}

pub(crate) async fn mtls(etcd: &GuardedCluster) -> Row {
    let cluster = MutualTls::start(etcd.control_plane).await;
    let follower = cluster.follower().await;
    let times = ask(cluster.guard.https(), &cluster.guard.ca_pem, &follower).await;
    let row =
        row("fresh allow, etcd with mTLS", &times, &rounds(&cluster.tls_words(), &cluster.urls()), Some(BAR));
    drop(cluster);
    row
}

/// How long each yes takes, from the request to the answer.
async fn ask(guard: SocketAddr, ca_pem: &str, pod: &Pod) -> Times {
    let mut connection = Connection::tls(guard, ca_pem).await.unwrap();
    until("the pod may go", START_LIMIT, async || {
        verdict(&connection.post(PATH, dry_run_of(pod)).await.unwrap().body).0
    })
    .await;
    let count = WARM_UP + from_environment("BENCH_ALLOWS").unwrap_or(ALLOWS);
    let mut times = Vec::new();
    for _ in 0..count {
        let review = deletion_of(pod);
        let began = Instant::now();
        let answer = connection.post(PATH, review).await.unwrap();
        times.push(began.elapsed());
        let (allowed, message) = verdict(&answer.body);
        assert!(allowed, "{message}");
    }
    Times::new(times.split_off(WARM_UP))
}

/// The bare rounds of the reference program: the same client, built alike, with nothing around it.
fn rounds(tls: &[String], urls: &[String]) -> Times {
    let count = from_environment("BENCH_ALLOWS").unwrap_or(ALLOWS).to_string();
    let output = Command::new(reference())
        .args(["rounds", &count])
        .args(tls)
        .args(urls)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("the reference program starts");
    assert!(output.status.success(), "reference rounds: {}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    Times::new(text.lines().map(|line| Duration::from_micros(line.parse().unwrap())).collect())
}

fn row(what: &str, times: &Times, rounds: &Times, bar: Option<Duration>) -> Row {
    Row {
        what: what.to_owned(),
        figure: median_and_p99(times),
        reference: String::from("bare etcd round"),
        reference_figure: median_and_p99(rounds),
        bar: bar.map(|bar| (format!("p99 <= {} ms", bar.as_millis()), times.percentile(99) <= bar)),
    }
}
