//! The duration of a whole DELETE request for its user, with and without the guard.

use std::time::{Duration, Instant};

use crate::from_environment;
use test_support::{
    bench_table::{Row, Times, ms},
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    wait::wait_until,
};

/// The number of deletions of each kind; each member needs some seconds to recover.
const DELETIONS: usize = 20;

/// Removes the guard's label from the namespace.
pub(crate) async fn remove_guard(etcd: &GuardedCluster) {
    let label = ["label", "namespace", &etcd.namespace, "etcd-guard.io/guard-"];
    let output = etcd.kubectl_everywhere().run(&label).await;
    assert!(output.success, "{output:?}");
    let leader = ["delete", "pod", &etcd.leader().await, "--dry-run=server"];
    wait_until("the deletion of the leader is approved", START_TIMEOUT, async || {
        etcd.kubectl(&leader).await.success
    })
    .await;
}

pub(crate) async fn compare(guarded: &GuardedCluster, unguarded: &GuardedCluster) -> Row {
    let count = from_environment("BENCH_DELETIONS").unwrap_or(DELETIONS);
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for run in 1..=count {
        eprintln!("deletion {run} of {count}");
        with.push(delete_follower(guarded).await);
        without.push(delete_follower(unguarded).await);
    }
    let (with, without) = (Times::new(with), Times::new(without));
    let figure = |times: &Times| format!("{}, longest {}", ms(times.percentile(50)), ms(times.longest()));
    Row {
        quantity: String::from("deletion of a follower, whole request"),
        figure: figure(&with),
        reference: String::from("unguarded"),
        reference_figure: figure(&without),
        bar: None,
    }
}

/// Deletes a follower and waits until its successor serves. Returns the duration of the DELETE request.
async fn delete_follower(etcd: &GuardedCluster) -> Duration {
    etcd.wait_until_healthy().await;
    // This is the follower that an earlier part of the run reserved, if there is a reservation.
    let [follower, _] = etcd.followers().await;
    let dry_run = ["delete", "pod", &follower, "--dry-run=server"];
    wait_until("the deletion of the follower is approved", START_TIMEOUT, async || {
        etcd.kubectl(&dry_run).await.success
    })
    .await;
    let uid = etcd.uid(&follower).await;
    let started = Instant::now();
    etcd.delete(&follower).await.unwrap();
    let took = started.elapsed();
    etcd.wait_until_replaced(&follower, &uid).await;
    took
}
