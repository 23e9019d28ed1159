//! What a survey finds of a cluster of which nobody wants to delete anything.

use crate::support::{
    guarded_cluster::{GuardedCluster, START_LIMIT, Setup},
    process_node::Order,
    wait::until,
};

#[tokio::test]
async fn a_survey_finds_that_a_cluster_has_no_voter_to_spare_and_later_that_it_has_one_again() {
    let etcd = GuardedCluster::start_as(Setup { survey_interval: "1s", ..Setup::default() }).await;
    let name = format!("{}/etcd", etcd.namespace);
    etcd.guard.surveyed(&name, "spare").await;
    let asked = etcd.guard.requests().await;

    let [frozen, _] = etcd.followers().await;
    etcd.order(&frozen, Order::Pause).await;
    etcd.guard.surveyed(&name, "no_spare").await;
    // Of how many clusters is not told here: those of other tests are surveyed, too.
    until("the metric counts it", START_LIMIT, async || {
        etcd.guard.metric("etcd_guard_clusters{state=\"no_spare\"}").await >= 1
    })
    .await;

    etcd.order(&frozen, Order::Resume).await;
    etcd.guard.surveyed(&name, "spare").await;
    assert_eq!(etcd.guard.requests().await, asked, "nobody asked for a verdict");
}
