//! The dashboard of a guard with verdicts of all kinds: every panel shows a series.

use serde_json::json;

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    http_client::Connection,
    kubernetes::control_plane::ControlPlane,
    telemetry::prometheus::{Prometheus, panels},
    wait::wait_until,
};

#[tokio::test]
async fn every_dashboard_panel_shows_a_series() {
    // Injections read the labels of namespaces, which requires additional permissions.
    let kubeconfig = Some(ControlPlane::shared().admin_kubeconfig());
    let setup = Setup { survey_interval: "1s", cluster_metrics: true, kubeconfig, ..Setup::default() };
    let etcd = GuardedCluster::start_as(setup).await;
    let folder = tempfile::tempdir().unwrap();
    let prometheus = Prometheus::start(etcd.guard.http(), folder.path()).await;
    prometheus.wait_for_series("etcd_guard_leader_transfers_total").await;

    let leader = etcd.leader().await;
    let [follower, _] = etcd.followers().await;
    assert!(!etcd.kubectl(&["delete", "pod", &leader]).await.success);
    let uid = etcd.uid(&follower).await;
    let delete = ["delete", "pod", &follower, "--wait=false"];
    wait_until("the deletion of a follower is approved", START_TIMEOUT, async || {
        etcd.kubectl(&delete).await.success
    })
    .await;
    etcd.wait_until_replaced(&follower, &uid).await;
    let output = etcd.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/leader=transfer"]).await;
    assert!(output.success, "{output:?}");
    let delete = ["delete", "pod", &leader, "--wait=false"];
    wait_until("leadership is moved", START_TIMEOUT, async || etcd.kubectl(&delete).await.success).await;
    etcd.wait_until_healthy().await;

    inject(&etcd).await;

    for (title, query) in panels() {
        eprintln!("{title}: {query}");
        prometheus.wait_for_series(&query).await;
    }
    // The panels show what happened, not only that a guard is running.
    for query in [
        "sum(etcd_guard_admission_requests_total{verdict=\"denied\",reason=\"LeaderProtected\"}) > 0",
        "sum(etcd_guard_admission_requests_total{verdict=\"allowed\",reason=\"SafeToDelete\"}) > 0",
        "sum(increase(etcd_guard_leader_transfers_total{result=\"moved\"}[1h])) > 0",
        "max(etcd_guard_clusters{state=\"spare\"}) > 0",
        "etcd_guard_leader_transfer_duration_seconds_count > 0",
        "max(etcd_guard_cluster_state{cluster=\"etcd\",state=\"spare\"}) == 1",
        "max(etcd_guard_cluster_healthy_voters{cluster=\"etcd\"}) == 3",
        "max(etcd_guard_cluster_term) > 1",
        "time() - etcd_guard_survey_timestamp_seconds < 60",
        "process_resident_memory_bytes > 1e6",
        "process_cpu_seconds_total > 0",
        "time() - process_start_time_seconds < 3600",
        "sum(etcd_guard_injections_total{result=\"injected\"}) > 0",
        "sum(etcd_guard_ready) == 1",
    ] {
        prometheus.wait_for_series(query).await;
    }
}

/// Sends the review of a new pod that the guard mutates.
async fn inject(etcd: &GuardedCluster) {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "annotations": {"sidecar-injector.lxcfs/inject": "true"}},
        "spec": {"containers": [{"name": "app", "image": "app"}]},
    });
    let request = json!({
        "uid": "u",
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": etcd.namespace,
        "name": "web",
        "object": pod,
    });
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
    let mut connection = Connection::tls(etcd.guard.https(), &etcd.guard.ca_pem).await.unwrap();
    let answer = connection.post("/mutate", review.to_string()).await.unwrap();
    assert!(answer.body.contains("\"patch\":"), "{}", answer.body);
}
