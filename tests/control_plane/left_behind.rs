//! `scripts/testbed` leaves nothing behind: no process, no folder, however it ended.

use std::{
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

use crate::support::{
    child::mortal,
    testbed::{BUILD_LIMIT, TESTBED},
    wait::until,
};

/// An orderly end takes some seconds, and then its reaper tries for 20 more to take the folder away.
const END_LIMIT: Duration = Duration::from_secs(90);

/// What a control plane on loopback consists of.
const PROGRAMS: [&str; 3] = ["etcd", "kube-apiserver", "kube-controller-manager"];

#[tokio::test]
async fn a_testbed_that_is_killed_leaves_nothing_behind() {
    let mut own = OwnTestbed::start().await;
    own.process.start_kill().expect("it runs");
    assert!(!own.end().await.success(), "it was killed");
    own.nothing_is_left().await;
}

#[tokio::test]
async fn a_testbed_whose_caller_is_through_leaves_nothing_behind() {
    let mut own = OwnTestbed::start().await;
    drop(own.process.stdin.take());
    let status = own.end().await;
    assert!(status.success(), "{status}");
    own.nothing_is_left().await;
}

/// A testbed of a test's own, in a folder of the testbed's own.
struct OwnTestbed {
    process: Child,
    dir: PathBuf,
}

impl OwnTestbed {
    /// Returns once it is ready, and seen to run all of its programs.
    async fn start() -> Self {
        let mut command = Command::from(mortal(TESTBED));
        command.arg("control-plane").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("scripts/testbed starts");
        let mut lines = BufReader::new(process.stdout.take().expect("stdout is a pipe")).lines();
        let mut dir = None;
        loop {
            let line = timeout(BUILD_LIMIT, lines.next_line()).await.expect("the testbed gets ready in time");
            let line = line.expect("lines of text").expect("the testbed gets ready");
            match line.split_once('=') {
                Some(("TESTBED_DIR", value)) => dir = Some(PathBuf::from(value)),
                _ if line == "ready" => break,
                _ => {}
            }
        }
        let own = Self { process, dir: dir.expect("scripts/testbed prints TESTBED_DIR") };
        let running = processes_of(&own.dir);
        for program in PROGRAMS {
            assert!(running.iter().any(|it| it.contains(program)), "no {program} among {running:#?}");
        }
        assert!(own.dir.join("etcd-data").is_dir(), "{}", own.dir.display());
        own
    }

    async fn end(&mut self) -> ExitStatus {
        timeout(END_LIMIT, self.process.wait()).await.expect("the testbed ends in time").expect("its status")
    }

    async fn nothing_is_left(&self) {
        until("no process names the folder", END_LIMIT, async || processes_of(&self.dir).is_empty()).await;
        until("the folder is gone", END_LIMIT, async || !self.dir.exists()).await;
    }
}

/// The command lines of living processes that name this folder, as every program of a testbed does, and its reaper.
fn processes_of(dir: &Path) -> Vec<String> {
    let dir = dir.to_str().expect("a path in UTF-8");
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let command_line = |it: std::fs::DirEntry| std::fs::read(it.path().join("cmdline")).ok();
    processes
        .filter_map(command_line)
        .map(|words| String::from_utf8_lossy(&words).replace('\0', " "))
        .filter(|words| words.contains(dir))
        .collect()
}
