//! The dashboard of a guard that has decided: every panel has something to show.

use serde_json::json;

use crate::support::{
    control_plane::ControlPlane,
    guarded_cluster::{GuardedCluster, START_LIMIT, Setup},
    http_client::Connection,
    prometheus::{Prometheus, panels},
    wait::until,
};

#[tokio::test]
async fn after_denials_allows_a_transfer_an_injection_and_a_survey_every_panel_of_the_dashboard_shows_a_series()
 {
    // What injects reads the labels of namespaces, which is a right of its own.
    let kubeconfig = Some(ControlPlane::shared().admin_kubeconfig());
    let setup = Setup { survey_interval: "1s", kubeconfig, ..Setup::default() };
    let etcd = GuardedCluster::start_as(setup).await;
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

    inject(&etcd).await;

    for (title, query) in panels() {
        eprintln!("{title}: {query}");
        prometheus.wait_for_series(&query).await;
    }
    // They show what happened, and not only that there is a guard.
    for query in [
        "sum(etcd_guard_admission_requests_total{verdict=\"denied\",reason=\"LeaderProtected\"}) > 0",
        "sum(etcd_guard_admission_requests_total{verdict=\"allowed\",reason=\"SafeToDelete\"}) > 0",
        "sum(increase(etcd_guard_leader_transfers_total{result=\"moved\"}[1h])) > 0",
        "max(etcd_guard_clusters{state=\"spare\"}) > 0",
        "sum(etcd_guard_injections_total{result=\"injected\"}) > 0",
        "sum(etcd_guard_ready) == 1",
    ] {
        prometheus.wait_for_series(query).await;
    }
}

/// Has the guard change a new pod, as an apiserver asks for it.
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
