//! Restarts that end early: killed, aborted, and resumed.

use std::process::Stdio;

use test_support::{
    guard::cli,
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    kubernetes::control_plane::CLOSED_NODE,
    wait::wait_until,
};

use super::{evicted, restored, strategy, uids};

/// The state of a StatefulSet during a restart.
fn in_progress() -> (String, bool) {
    (String::from("OnDelete"), true)
}

/// Edge case 158.
#[tokio::test]
async fn restart_resumes_after_the_process_is_killed() {
    let _requests = super::REQUESTS.read().await;
    let etcd = GuardedCluster::start().await;
    etcd.make_leader("etcd-0").await;
    let before = uids(&etcd).await;
    let mut program = cli::program(&etcd, "restart", &["statefulset/etcd"]);
    program.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = program.spawn().unwrap();
    wait_until("the first member is replaced", START_TIMEOUT, async || {
        etcd.pods.get("etcd-2").await.is_ok_and(|pod| pod.metadata.uid.as_ref() != Some(&before[2]))
    })
    .await;
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(strategy(&etcd).await, in_progress());
    etcd.wait_until_healthy().await;
    let between = uids(&etcd).await;

    let output = cli::run(&etcd, "restart", &["statefulset/etcd"]).await;
    assert_eq!(output.status, Some(0), "{output:?}");
    assert!(output.stdout.contains("Resumed restart"), "{}", output.stdout);
    let resumed = evicted(&output.stdout);
    assert!(!resumed.contains(&String::from("etcd-2")), "a member is restarted once: {}", output.stdout);
    let after = uids(&etcd).await;
    assert_eq!(after[2], between[2]);
    assert!(after.iter().zip(&before).all(|(after, before)| after != before));
    assert_eq!(strategy(&etcd).await, restored());
}

async fn cordon(etcd: &GuardedCluster, verb: &str) {
    let output = etcd.kubectl_everywhere().run(&[verb, CLOSED_NODE]).await;
    assert!(output.success, "{output:?}");
}

/// The successor of the first member cannot be scheduled.
#[tokio::test]
async fn aborted_restart_restores_strategy_unless_it_starts_the_controller() {
    let _requests = super::REQUESTS.read().await;
    let etcd = GuardedCluster::start_on(&[CLOSED_NODE]).await;
    etcd.make_leader("etcd-0").await;
    cordon(&etcd, "cordon").await;
    let output = cli::run(&etcd, "restart", &["statefulset/etcd", "--timeout", "8s"]).await;
    assert_eq!(output.status, Some(1), "{output:?}");
    assert_eq!(evicted(&output.stdout), ["etcd-2"]);
    assert!(output.stdout.contains("the timeout of 8s expired. Members: "), "{}", output.stdout);
    assert!(output.stdout.contains("etcd-2 is not ready"), "{}", output.stdout);
    assert_eq!(strategy(&etcd).await, restored());
    cordon(&etcd, "uncordon").await;
    etcd.wait_until_healthy().await;

    // With a new image, the controller would replace etcd-1 while etcd-2 is missing.
    cordon(&etcd, "cordon").await;
    let arguments = ["statefulset/etcd", "--timeout", "8s", "--image", "quay.io/coreos/etcd:v3.6.17"];
    let output = cli::run(&etcd, "restart", &arguments).await;
    assert_eq!(output.status, Some(1), "{output:?}");
    assert!(output.stdout.contains("the update strategy remains OnDelete"), "{}", output.stdout);
    assert_eq!(strategy(&etcd).await, in_progress());
    let other = ["statefulset/etcd", "--image", "quay.io/coreos/etcd:v3.6.18"];
    let refused = cli::run(&etcd, "restart", &other).await;
    assert_eq!(refused.status, Some(2), "{refused:?}");
    cordon(&etcd, "uncordon").await;
    etcd.wait_until_healthy().await;
    let output = cli::run(&etcd, "restart", &["statefulset/etcd", "--abort"]).await;
    assert_eq!(output.status, Some(0), "{output:?}");
    assert!(output.stdout.contains("from the highest ordinal down"), "{}", output.stdout);
    assert_eq!(strategy(&etcd).await, restored());
}
