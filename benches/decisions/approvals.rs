//! Approvals with a fresh probe and a reservation, requested repeatedly on one connection.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;

use crate::{from_environment, mtls_cluster::MutualTls, steps, webhook::PATH};
use test_support::{
    bench_table::{self, Row, Times, median_and_p99},
    guard::{
        reference::{Calls, rounds},
        review::{deletion_review, dry_run_review, verdict},
    },
    guarded_cluster::{GuardedCluster, START_TIMEOUT, UNRELATED_POD},
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

/// Appends the rows of a cluster without TLS.
pub(crate) async fn plain(etcd: &GuardedCluster) {
    let follower = etcd.pods.get(&etcd.followers().await[0]).await.unwrap();
    let times = measure(etcd.guard.https(), &etcd.guard.ca_pem, &follower).await;
    let urls: Vec<String> =
        GuardedCluster::names().iter().map(|name| etcd.member(name).url().to_owned()).collect();
    let calls = Calls::measure(
        count(),
        &etcd.control_plane.guard_kubeconfig(),
        std::slice::from_ref(&etcd.namespace),
        &GuardedCluster::names().map(str::to_owned),
        std::slice::from_ref(&urls),
        None,
    );
    let rounds = &rounds(count(), &urls);
    let figure = Figure::distribution("Fresh approval, plain etcd").times("bare etcd round", rounds);
    let figure = figure.times("reads of the API server", &calls.reads);
    let figure = figure.times("write of the Lease", &calls.write).times("all calls", &calls.all);
    figure.times("approval by the guard", &times).write("fresh-approval");
    let parts = Row {
        quantity: String::from("fresh approval, plain etcd"),
        figure: median_and_p99(&times),
        reference: String::from("its calls without the guard"),
        reference_figure: format!("{} (medians: {})", median_and_p99(&calls.all), calls.parts(50)),
        bar: None,
    };
    bench_table::append(&[row("fresh approval, plain etcd", &times, rounds, None), parts]);
    let (kubeconfig, files) = (etcd.control_plane.guard_kubeconfig(), etcd.dir().join("steps"));
    let other = etcd.pods.get(UNRELATED_POD).await.unwrap();
    bench_table::append(&[steps::measure("plain etcd", &kubeconfig, &files, &follower, &other).await]);
}

/// Appends the rows of a cluster with mutual TLS.
pub(crate) async fn mtls(etcd: &GuardedCluster) {
    let cluster = MutualTls::start(etcd.control_plane).await;
    let follower = cluster.follower().await;
    let times = measure(cluster.guard.https(), &cluster.guard.ca_pem, &follower).await;
    let rounds = rounds(count(), &[cluster.tls_arguments(), cluster.urls()].concat());
    plot("fresh-approval-mtls", "Fresh approval, etcd with mTLS", &times, &rounds);
    bench_table::append(&[row("fresh approval, etcd with mTLS", &times, &rounds, Some(BAR))]);
    let (kubeconfig, files) = (etcd.control_plane.guard_kubeconfig(), etcd.dir().join("steps-mtls"));
    let other = etcd.pods.get(UNRELATED_POD).await.unwrap();
    bench_table::append(&[steps::measure("etcd with mTLS", &kubeconfig, &files, &follower, &other).await]);
    drop(cluster);
}

/// Returns the number of measured approvals.
fn count() -> usize {
    from_environment("BENCH_ALLOWS").unwrap_or(ALLOWS)
}

/// Waits until the guard approves the deletion of a pod in a dry run.
pub(crate) async fn wait_until_approved(connection: &mut Connection, pod: &Pod) {
    wait_until("the deletion is approved", START_TIMEOUT, async || {
        verdict(&connection.post(PATH, dry_run_review(pod)).await.unwrap().body).0
    })
    .await;
}

/// Measures the time of each approval, from the request to the response.
async fn measure(guard: SocketAddr, ca_pem: &str, pod: &Pod) -> Times {
    let mut connection = Connection::tls(guard, ca_pem).await.unwrap();
    wait_until_approved(&mut connection, pod).await;
    let count = WARM_UP + count();
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
