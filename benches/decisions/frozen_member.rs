//! The duration of a verdict while one member accepts connections and does not respond.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use tokio::time::sleep;

use crate::webhook::PATH;
use test_support::{
    bench_table::{Row, Times, ms},
    guard::review::{dry_run_review, verdict},
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    http_client::Connection,
    process_node::ProcessAction,
    wait::wait_until,
};

/// The number of verdicts for each of the two followers.
const VERDICTS: usize = 10;

/// Longer than a cached denial is used, so that each verdict needs its own probe.
const PAUSE: Duration = Duration::from_millis(600);

/// The promised upper limit.
const BAR: Duration = Duration::from_millis(1200);

pub(crate) async fn compare(etcd: &GuardedCluster) -> Row {
    etcd.wait_until_healthy().await;
    let [frozen, other] = etcd.followers().await;
    let pods = [etcd.pods.get(&frozen).await.unwrap(), etcd.pods.get(&other).await.unwrap()];
    let mut connection = Connection::tls(etcd.guard.https(), &etcd.guard.ca_pem).await.unwrap();
    wait_until("the deletion of a follower is approved", START_TIMEOUT, async || {
        measure(&mut connection, &pods[1]).await.1
    })
    .await;
    let healthy = measure_all(&mut connection, &pods, [true, true]).await;
    etcd.apply(&frozen, ProcessAction::Pause).await;
    // The frozen member does not serve, so its pod may be deleted; both others are needed.
    let times = measure_all(&mut connection, &pods, [true, false]).await;
    etcd.apply(&frozen, ProcessAction::Resume).await;
    etcd.wait_until_healthy().await;
    Row {
        quantity: String::from("verdict with one member frozen, longest of 20"),
        figure: ms(times.longest()),
        reference: String::from("no member frozen"),
        reference_figure: ms(healthy.longest()),
        bar: Some((format!("<= {} ms", BAR.as_millis()), times.longest() <= BAR)),
    }
}

async fn measure_all(connection: &mut Connection, pods: &[Pod; 2], expected: [bool; 2]) -> Times {
    let mut times = Vec::new();
    for _ in 0..VERDICTS {
        for (pod, expected) in pods.iter().zip(expected) {
            sleep(PAUSE).await;
            let (took, allowed, message) = measure(connection, pod).await;
            assert_eq!(allowed, expected, "{:?}: {message}", pod.metadata.name);
            times.push(took);
        }
    }
    Times::new(times)
}

async fn measure(connection: &mut Connection, pod: &Pod) -> (Duration, bool, String) {
    let review = dry_run_review(pod);
    let started = Instant::now();
    let answer = connection.post(PATH, review).await.unwrap();
    let took = started.elapsed();
    let (allowed, message) = verdict(&answer.body);
    (took, allowed, message)
}
