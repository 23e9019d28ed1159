//! The picture of the dashboard in docs/monitoring.md, from a run in which each panel changes.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::dashboard::inject;
use test_support::{
    guarded_cluster::{GuardedCluster, START_TIMEOUT, Setup},
    kubernetes::control_plane::ControlPlane,
    process_node::ProcessAction,
    project,
    telemetry::{dashboard_picture::draw_dashboard, prometheus::Prometheus},
    wait::wait_until,
};

const PICTURE: &str = "docs/dashboard.svg";

/// Time in each state: several surveys and scrapes, so that the state is visible in the picture.
const SHOWN: Duration = Duration::from_secs(12);

async fn start() -> GuardedCluster {
    // Injections read the labels of namespaces, which requires additional permissions.
    let kubeconfig = Some(ControlPlane::shared().admin_kubeconfig());
    let setup = Setup { survey_interval: "1s", cluster_metrics: true, kubeconfig, ..Setup::default() };
    GuardedCluster::start_as(setup).await
}

/// Requests the deletion of a pod every second for a while, and ignores the verdicts.
async fn request_deletions(etcd: &GuardedCluster, pod: &str, duration: Duration) {
    let started = Instant::now();
    while started.elapsed() < duration {
        etcd.kubectl(&["delete", "pod", pod, "--wait=false", "--dry-run=server"]).await;
        inject(etcd).await;
        sleep(Duration::from_millis(500)).await;
    }
}

/// Deletes a pod as soon as the guard approves the deletion.
async fn replace(etcd: &GuardedCluster, pod: &str) {
    let uid = etcd.uid(pod).await;
    let delete = ["delete", "pod", pod, "--wait=false"];
    wait_until("the deletion is approved", START_TIMEOUT, async || etcd.kubectl(&delete).await.success).await;
    etcd.wait_until_replaced(pod, &uid).await;
    etcd.wait_until_healthy().await;
}

#[tokio::test]
#[ignore = "takes minutes and writes docs/dashboard.svg; scripts/dashboard runs it"]
async fn draws_the_dashboard_of_a_run() {
    let (first, second) = (start().await, start().await);
    let folder = tempfile::tempdir().unwrap();
    let guards = [first.guard.http(), second.guard.http()];
    let prometheus = Prometheus::start_with_targets(&guards, folder.path()).await;
    let started = Instant::now();

    let leader = first.leader().await;
    request_deletions(&first, &leader, SHOWN).await;
    replace(&first, &first.followers().await[0]).await;
    let output = first.kubectl(&["annotate", "statefulset/etcd", "etcd-guard.io/leader=transfer"]).await;
    assert!(output.success, "{output:?}");
    replace(&first, &leader).await;

    let [one, other] = second.followers().await;
    second.apply(&one, ProcessAction::Pause).await;
    request_deletions(&second, &other, SHOWN).await;
    second.apply(&other, ProcessAction::Pause).await;
    request_deletions(&second, &other, SHOWN).await;
    for pod in [&one, &other] {
        second.apply(pod, ProcessAction::Resume).await;
    }
    second.wait_until_healthy().await;
    replace(&first, &first.leader().await).await;
    sleep(SHOWN).await;

    let picture = draw_dashboard(&prometheus, started.elapsed()).await;
    std::fs::write(project::path(PICTURE), picture).unwrap();
}
