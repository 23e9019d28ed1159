//! The division of surveys between replicas, on a control plane of its own: the guards of other tests would take shares.

use std::time::Duration;

use test_support::{
    etcd::fleet::Fleet,
    guard::process::{GuardProcess, POD_NAME, SURVEY_INTERVAL},
    kubernetes::control_plane::ControlPlane,
    wait::wait_until,
};

/// The number of namespaces, each with one cluster. That a replica has no share of them is improbable (1 in 2048).
const CLUSTERS: usize = 12;

/// Several surveys, and the time after which a replica counts as ended.
const TIMEOUT: Duration = Duration::from_secs(120);

async fn start(control_plane: &ControlPlane, pod: &str) -> GuardProcess {
    let files = control_plane.dir.join(pod);
    std::fs::create_dir_all(&files).unwrap();
    std::fs::write(files.join(POD_NAME), pod).unwrap();
    std::fs::write(files.join(SURVEY_INTERVAL), "1s").unwrap();
    GuardProcess::start(&control_plane.guard_kubeconfig(), &files).await
}

async fn surveyed(guard: &GuardProcess) -> u64 {
    guard.metric(r#"etcd_guard_clusters{state="spare"}"#).await
}

#[tokio::test]
async fn replicas_divide_the_clusters_and_take_over() {
    let control_plane = ControlPlane::start(&[]);
    control_plane.grant_guard_permissions();
    let mut fleet = Fleet::start(control_plane.client().await).await;
    fleet.grow(CLUSTERS).await;
    let all = u64::try_from(CLUSTERS).unwrap();
    let first = start(&control_plane, "guard-a").await;
    wait_until("the only replica surveys all clusters", TIMEOUT, async || surveyed(&first).await == all)
        .await;

    let mut second = start(&control_plane, "guard-b").await;
    wait_until("two replicas divide the clusters", TIMEOUT, async || {
        let numbers = [surveyed(&first).await, surveyed(&second).await];
        numbers.iter().all(|number| (1..all).contains(number)) && numbers.iter().sum::<u64>() == all
    })
    .await;

    second.kill();
    wait_until("the other replica surveys all clusters", TIMEOUT, async || surveyed(&first).await == all)
        .await;
}
