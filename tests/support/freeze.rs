//! SIGSTOP that has taken effect: a busy process goes on for a moment after the signal was sent.

use std::{fs, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::time::{Instant, sleep};

/// Longest that the threads of a process may take to stop, next to compilers.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Stops a process, and returns when none of its threads runs.
pub async fn freeze(pid: Pid) {
    kill(pid, Signal::SIGSTOP).expect("a process that runs");
    let end = Instant::now() + STOP_LIMIT;
    while !stands_still(pid) {
        assert!(Instant::now() < end, "process {pid} does not stop");
        sleep(Duration::from_millis(1)).await;
    }
}

fn stands_still(pid: Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("a process that runs");
    threads.flatten().all(|thread| {
        // A thread that has ended meanwhile does not run either.
        let status = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the name, which stands in brackets.
        !matches!(status.rsplit(") ").next().and_then(|rest| rest.chars().next()), Some('R' | 'S' | 'D'))
    })
}
