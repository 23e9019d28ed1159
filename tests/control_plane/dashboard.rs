//! The dashboard of a guard that has decided: every panel has something to show.

use serde_json::Value;

use crate::support::{
    guarded_cluster::{GuardedCluster, START_LIMIT, Setup},
    prometheus::{Prometheus, panels},
    wait::until,
};

/// Panels that a guard fills which is asked about nothing but etcd's pods, and nothing went wrong: what would fill the others.
const EMPTY: [(&str, &str); 1] =
    [("etcd_guard_injections_total", "a new pod, for which no webhook asks here")];

#[tokio::test]
async fn after_denials_allows_a_transfer_and_a_survey_every_panel_of_the_dashboard_shows_a_series() {
    let etcd = GuardedCluster::start_as(Setup { survey_interval: "1s", ..Setup::default() }).await;
    let folder = tempfile::tempdir().unwrap();
    let prometheus = Prometheus::scraping(etcd.guard.http(), folder.path()).await;
    prometheus.wait_for_series("etcd_guard_leader_transfers_total").await;

    let leader = etcd.leader().await;
    let [follower, _] = etcd.followers().await;
    assert!(!etcd.kubectl(&["delete", "pod", &leader]).await.success);
    let uid = etcd.uid(&follower).await;
    let delete = ["delete", "pod", &follower, "--wait=false"];
    until("a follower goes", START_LIMIT, async || etcd.kubectl(&delete).await.success).await;
    etcd.wait_until_back(&follower, &uid).await;
    let said = etcd.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/leader=transfer"]).await;
    assert!(said.success, "{said:?}");
    let delete = ["delete", "pod", &leader, "--wait=false"];
    until("leadership is moved", START_LIMIT, async || etcd.kubectl(&delete).await.success).await;
    etcd.wait_until_whole().await;

    for (title, query) in panels() {
        eprintln!("{title}: {query}");
        if EMPTY.iter().any(|(metric, _)| query.contains(metric)) {
            assert_eq!(prometheus.query(&query).await, [Value::Null; 0], "{title} has something to show");
        } else {
            prometheus.wait_for_series(&query).await;
        }
    }
    // They show what happened, and not only that there is a guard.
    for query in [
        "sum(etcd_guard_admission_requests_total{verdict=\"denied\",reason=\"LeaderProtected\"}) > 0",
        "sum(etcd_guard_admission_requests_total{verdict=\"allowed\",reason=\"SafeToDelete\"}) > 0",
        "sum(increase(etcd_guard_leader_transfers_total{result=\"moved\"}[1h])) > 0",
        "max(etcd_guard_clusters{state=\"spare\"}) > 0",
        "sum(etcd_guard_ready) == 1",
    ] {
        prometheus.wait_for_series(query).await;
    }
}
