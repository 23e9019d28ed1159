//! Surveys find the state of a cluster without any request.

use serde_json::json;
use test_support::{
    guard::cli,
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    kubernetes::pods::{create_pod_with, new_namespace},
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

/// Returns the texts of the gaps of a namespace, as `status` prints them in JSON.
async fn gaps(etcd: &GuardedCluster, namespace: &str) -> Vec<String> {
    let (_, survey) = cli::json(etcd, "status", &["-A"]).await;
    let gaps = survey["gaps"].as_array().unwrap_or_else(|| panic!("no gaps: {survey}"));
    let of_namespace = gaps.iter().filter(|gap| gap["namespace"] == namespace);
    of_namespace.map(|gap| gap["text"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn survey_reports_namespaces_and_pods_without_member() {
    let etcd = GuardedCluster::start_as(Setup { survey_interval: "1s", ..Setup::default() }).await;
    let client = etcd.control_plane.client().await;
    let empty = new_namespace(&client, true).await;
    let container = json!({"name": "db", "image": "example/db:1", "ports": [{"containerPort": 2379}]});
    create_pod_with(&etcd.pods, "listener", json!({"containers": [container]})).await;
    wait_until("status reports both gaps", START_TIMEOUT, async || {
        let (of_empty, of_listener) = (gaps(&etcd, &empty).await, gaps(&etcd, &etcd.namespace).await);
        let command = format!("kubectl label namespace {empty} etcd-guard.io/guard-");
        matches!(&of_empty[..], [text] if text.ends_with(&command))
            && matches!(&of_listener[..], [text] if text.contains("pod listener etcd-guard.io/member=db. "))
    })
    .await;
    // The namespaces of other tests are surveyed, too.
    for gap in ["no_member", "port"] {
        let metric = format!("etcd_guard_recognition_gaps{{gap=\"{gap}\"}}");
        wait_until(&metric, START_TIMEOUT, async || etcd.guard.metric(&metric).await >= 1).await;
    }
    let table = cli::run(&etcd, "status", &["-A"]).await;
    assert!(table.stdout.contains(&format!("namespace {empty} is guarded, but no pod in it")), "{table:?}");

    // The remedies of the texts.
    let output =
        etcd.kubectl(&["annotate", "--overwrite", "pod", "listener", "etcd-guard.io/member=false"]).await;
    assert!(output.success, "{output:?}");
    let output = etcd.kubectl_everywhere().run(&["label", "namespace", &empty, "etcd-guard.io/guard-"]).await;
    assert!(output.success, "{output:?}");
    wait_until("status reports no gap", START_TIMEOUT, async || {
        gaps(&etcd, &empty).await.is_empty() && gaps(&etcd, &etcd.namespace).await.is_empty()
    })
    .await;
}
