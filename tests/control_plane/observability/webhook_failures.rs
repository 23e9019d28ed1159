//! The metrics of the API server that the alerts about failing webhooks query.

use serde_json::json;

use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    kubernetes::webhook,
    project,
    wait::{wait_for, wait_until},
};

/// Returns the labels of the first increased series of this metric that has all of `labels`.
async fn series(etcd: &GuardedCluster, metric: &str, labels: &[&str]) -> String {
    wait_for(metric, START_TIMEOUT, async || {
        let page = etcd.kubectl(&["get", "--raw", "/metrics"]).await.stdout;
        let mut lines =
            page.lines().filter(|line| line.starts_with(&format!("{metric}{{")) && !line.ends_with(" 0"));
        lines.find(|line| labels.iter().all(|label| line.contains(label))).map(str::to_owned)
    })
    .await
}

#[tokio::test]
async fn api_server_counts_failed_calls_as_the_alerts_expect() {
    let mut etcd = GuardedCluster::start().await;
    let rules =
        std::fs::read_to_string(project::path("deploy/components/monitoring/prometheus-rule.yaml")).unwrap();
    let dry_run = ["delete", "pod", "etcd-0", "--dry-run=server"];

    etcd.guard.kill();
    let output = etcd.kubectl(&dry_run).await;
    assert!(!output.success && output.stderr.contains("failed calling webhook"), "{output:?}");
    let (metric, cause) = ("apiserver_admission_webhook_rejection_count", "calling_webhook_error");
    assert!(rules.contains(&format!("{metric}{{name=~\"(.+[.])?etcd-guard[.]io\"")) && rules.contains(cause));
    let labels =
        ["name=\"guard.etcd-guard.io\"", "error_type=\"calling_webhook_error\"", "operation=\"DELETE\""];
    series(&etcd, metric, &labels).await;

    webhook::register(&etcd.client, &etcd.namespace, &etcd.guard, |webhook| {
        webhook["failurePolicy"] = json!("Ignore");
    })
    .await;
    wait_until("the API server admits requests without the guard", START_TIMEOUT, async || {
        etcd.kubectl(&dry_run).await.success
    })
    .await;
    let metric = "apiserver_admission_webhook_fail_open_count";
    assert!(rules.contains(&format!("{metric}{{name=~\"(.+[.])?etcd-guard[.]io\"")));
    series(&etcd, metric, &["name=\"guard.etcd-guard.io\"", "type=\"validating\""]).await;
}
