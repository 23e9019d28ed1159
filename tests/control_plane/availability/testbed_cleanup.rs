//! `scripts/testbed` always removes its processes and its folder.

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

use test_support::{
    processes::{
        child::scoped_command,
        testbed::{self, BUILD_TIMEOUT},
    },
    wait::wait_until,
};

/// An orderly end takes some seconds, and then its cleanup process tries for 20 more to remove the folder.
const END_TIMEOUT: Duration = Duration::from_secs(90);

/// The programs of a control plane on loopback.
const PROGRAMS: [&str; 3] = ["etcd", "kube-apiserver", "kube-controller-manager"];

#[tokio::test]
async fn killed_testbed_leaves_nothing_behind() {
    let mut own = TestTestbed::start().await;
    own.process.start_kill().expect("the testbed runs");
    assert!(!own.end().await.success(), "the testbed was killed");
    own.assert_nothing_left().await;
}

/// A testbed with a folder of its own.
struct TestTestbed {
    process: Child,
    dir: PathBuf,
}

impl TestTestbed {
    /// Returns when the testbed is ready and all of its programs run.
    async fn start() -> Self {
        let mut command = Command::from(scoped_command(testbed::script()));
        command.arg("control-plane").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("scripts/testbed starts");
        let mut lines = BufReader::new(process.stdout.take().expect("stdout is a pipe")).lines();
        let mut dir = None;
        loop {
            let line = timeout(BUILD_TIMEOUT, lines.next_line()).await.expect("the testbed is ready in time");
            let line = line.expect("lines of text").expect("the testbed is ready");
            match line.split_once('=') {
                Some(("TESTBED_DIR", value)) => dir = Some(PathBuf::from(value)),
                _ if line == "ready" => break,
                _ => {}
            }
        }
        let own = Self { process, dir: dir.expect("scripts/testbed prints TESTBED_DIR") };
        let running = processes_with(&own.dir);
        for program in PROGRAMS {
            assert!(
                running.iter().any(|process| process.contains(program)),
                "no {program} among {running:#?}"
            );
        }
        assert!(own.dir.join("etcd-data").is_dir(), "{}", own.dir.display());
        own
    }

    async fn end(&mut self) -> ExitStatus {
        timeout(END_TIMEOUT, self.process.wait())
            .await
            .expect("the testbed ends in time")
            .expect("its status")
    }

    async fn assert_nothing_left(&self) {
        wait_until("no process names the folder", END_TIMEOUT, async || processes_with(&self.dir).is_empty())
            .await;
        wait_until("the folder is removed", END_TIMEOUT, async || !self.dir.exists()).await;
    }
}

/// Returns the command lines of running processes that contain this folder, as those of a testbed and its cleanup
/// process do.
fn processes_with(dir: &Path) -> Vec<String> {
    let dir = dir.to_str().expect("a path in UTF-8");
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let command_line = |process: std::fs::DirEntry| std::fs::read(process.path().join("cmdline")).ok();
    processes
        .filter_map(command_line)
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(dir))
        .collect()
}
