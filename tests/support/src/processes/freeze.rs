//! SIGSTOP with confirmation: a busy process continues for a moment after the signal was sent.

use std::{fs, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::time::{Instant, sleep};

/// The longest time until all threads of a process are stopped, on a busy machine.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Stops a process, and returns when none of its threads runs.
pub async fn freeze(pid: Pid) {
    kill(pid, Signal::SIGSTOP).expect("the process runs");
    let end = Instant::now() + STOP_TIMEOUT;
    while !is_stopped(pid) {
        assert!(Instant::now() < end, "process {pid} does not stop");
        sleep(Duration::from_millis(1)).await;
    }
}

fn is_stopped(pid: Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    threads.flatten().all(|thread| {
        // A thread that has ended in the meantime counts as stopped.
        let status = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the name, which is in parentheses.
        !matches!(status.rsplit(") ").next().and_then(|rest| rest.chars().next()), Some('R' | 'S' | 'D'))
    })
}
