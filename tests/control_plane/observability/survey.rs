//! Surveys find the state of a cluster without any request.

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    process_node::ProcessAction,
    wait::wait_until,
};

#[tokio::test]
async fn survey_follows_number_of_spare_voters() {
    let etcd = GuardedCluster::start_as(Setup { survey_interval: "1s", ..Setup::default() }).await;
    let name = format!("{}/etcd", etcd.namespace);
    etcd.guard.wait_for_survey(&name, "spare").await;
    let calls = etcd.guard.request_count().await;

    let [frozen, _] = etcd.followers().await;
    etcd.apply(&frozen, ProcessAction::Pause).await;
    etcd.guard.wait_for_survey(&name, "no_spare").await;
    // The exact number is unknown, because the clusters of other tests are surveyed, too.
    wait_until("the metric counts the cluster", START_TIMEOUT, async || {
        etcd.guard.metric("etcd_guard_clusters{state=\"no_spare\"}").await >= 1
    })
    .await;

    etcd.apply(&frozen, ProcessAction::Resume).await;
    etcd.guard.wait_for_survey(&name, "spare").await;
    assert_eq!(etcd.guard.request_count().await, calls, "a survey causes no verdict");
}
