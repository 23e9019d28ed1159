//! Restarts that end early: killed, aborted, and resumed.

use std::process::{Output, Stdio};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{process::Child, time::timeout};

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

/// Starts a restart, sends this signal to the process when the first member is replaced, and asserts that the same command
/// restarts the other members. Returns the output of the process.
async fn resume_after(signal: Signal) -> Output {
    let etcd = GuardedCluster::start().await;
    etcd.make_leader("etcd-0").await;
    let before = uids(&etcd).await;
    let child = spawn(&etcd);
    wait_until("the first member is replaced", START_TIMEOUT, async || {
        etcd.pods.get("etcd-2").await.is_ok_and(|pod| pod.metadata.uid.as_ref() != Some(&before[2]))
    })
    .await;
    kill(pid(&child), signal).unwrap();
    let interrupted = timeout(START_TIMEOUT, child.wait_with_output()).await.unwrap().unwrap();
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
    interrupted
}

fn spawn(etcd: &GuardedCluster) -> Child {
    let mut program = tokio::process::Command::from(cli::program(etcd, "restart", &["statefulset/etcd"]));
    program.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap()
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap())
}

#[tokio::test]
async fn restart_resumes_after_the_process_is_killed() {
    let output = resume_after(Signal::SIGKILL).await;
    assert_eq!(output.status.code(), None, "{output:?}");
}

#[tokio::test]
#[ignore = "another way of the same interruption; scripts/prove tests runs it"]
async fn restart_resumes_after_ctrl_c() {
    let output = resume_after(Signal::SIGINT).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let message = "aborted: interrupted; the update strategy remains OnDelete, so that the StatefulSet controller \
                   replaces no pod. Continue: kubectl etcd-guard restart ";
    let last = stdout.lines().last().unwrap_or_default();
    assert!(last.contains(message) && last.ends_with(" statefulset/etcd --abort"), "{stdout}");
}

/// The guard does not answer, so that the command still reads the state of the cluster.
#[tokio::test]
async fn ctrl_c_before_the_first_change_changes_nothing() {
    let etcd = GuardedCluster::start().await;
    let before = uids(&etcd).await;
    etcd.guard.signal(Signal::SIGSTOP);
    let child = spawn(&etcd);
    wait_until("the command handles Ctrl-C", START_TIMEOUT, async || handles_interrupts(&child)).await;
    kill(pid(&child), Signal::SIGINT).unwrap();
    let output = timeout(START_TIMEOUT, child.wait_with_output()).await.unwrap().unwrap();
    etcd.guard.signal(Signal::SIGCONT);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("aborted: interrupted; nothing was changed"), "{stdout}");
    assert_eq!((uids(&etcd).await, strategy(&etcd).await), (before, restored()));
}

/// Whether the process has installed a handler of SIGINT.
fn handles_interrupts(child: &Child) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid(child))).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or_default();
    let caught = u64::from_str_radix(caught.trim(), 16).unwrap_or_default();
    // SIGINT has the number 2, and the first bit stands for the number 1.
    caught & 0b10 != 0
}

async fn cordon(etcd: &GuardedCluster, verb: &str) {
    let output = etcd.kubectl_everywhere().run(&[verb, CLOSED_NODE]).await;
    assert!(output.success, "{output:?}");
}

/// The successor of the first member cannot be scheduled.
#[tokio::test]
async fn aborted_restart_restores_strategy_unless_it_starts_the_controller() {
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
    let arguments =
        ["statefulset/etcd", "--timeout", "8s", "--no-backup", "--image", "quay.io/coreos/etcd:v3.6.17"];
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
