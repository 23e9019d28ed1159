//! A deletion as its user waits for it: the whole DELETE, with the guard in its way and without one.

use std::time::{Duration, Instant};

use crate::{
    from_environment,
    rows::{Row, Times, ms},
    support::{
        guarded_cluster::{GuardedCluster, START_LIMIT},
        wait::until,
    },
};

/// How many of each kind; a member needs some seconds to come back.
const DELETIONS: usize = 20;

/// From now on nobody guards these.
pub(crate) async fn leave_unguarded(etcd: &GuardedCluster) {
    let label = ["label", "namespace", &etcd.namespace, "etcd-guard.io/guard-"];
    let said = etcd.kubectl_everywhere().run(&label).await;
    assert!(said.success, "{said:?}");
    let leader = ["delete", "pod", &etcd.leader().await, "--dry-run=server"];
    until("the leader may go", START_LIMIT, async || etcd.kubectl(&leader).await.success).await;
}

pub(crate) async fn compare(guarded: &GuardedCluster, unguarded: &GuardedCluster) -> Row {
    let count = from_environment("BENCH_DELETIONS").unwrap_or(DELETIONS);
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for run in 1..=count {
        eprintln!("deletion {run} of {count}");
        with.push(delete_a_follower(guarded).await);
        without.push(delete_a_follower(unguarded).await);
    }
    let (with, without) = (Times::new(with), Times::new(without));
    let figure = |times: &Times| format!("{}, longest {}", ms(times.percentile(50)), ms(times.longest()));
    Row {
        what: String::from("deletion of a follower, as its user waits"),
        figure: figure(&with),
        reference: String::from("unguarded"),
        reference_figure: figure(&without),
        bar: None,
    }
}

/// Returns when its successor serves; what is told is how long the DELETE took.
async fn delete_a_follower(etcd: &GuardedCluster) -> Duration {
    etcd.wait_until_whole().await;
    // The one that an earlier part of this run reserved, if it did.
    let [follower, _] = etcd.followers().await;
    let dry_run = ["delete", "pod", &follower, "--dry-run=server"];
    until("the follower may go", START_LIMIT, async || etcd.kubectl(&dry_run).await.success).await;
    let uid = etcd.uid(&follower).await;
    let began = Instant::now();
    etcd.delete(&follower).await.unwrap();
    let took = began.elapsed();
    etcd.wait_until_back(&follower, &uid).await;
    took
}
