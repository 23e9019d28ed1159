//! A supervised testbed leaves no process and no temporary directory, also after SIGKILL.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed step fails the test")]

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

const XTASK: &str = env!("CARGO_BIN_EXE_etcd-guard-xtask");

/// The end of a testbed takes a fraction of a second; this limit only ends a test that fails.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A testbed with one program, `tail`, that waits for the end of its stdin.
struct Testbed {
    supervisor: Child,
    stdout: BufReader<ChildStdout>,
    directory: PathBuf,
    program: Pid,
}

impl Testbed {
    fn start(options: &[&str], then: &str) -> Self {
        let body = format!(
            r#"set -e
            printf '#!/bin/sh\necho $$ >"%s/tail.pid"\nexec tail -f "%s/tail.run"\n' "$RUN_DIR" "$RUN_DIR" >"$RUN_DIR/tail.run"
            chmod +x "$RUN_DIR/tail.run"
            echo "$RUN_DIR"
            '{XTASK}' start "$RUN_DIR/tail"
            {then}"#
        );
        let mut supervisor = Command::new(XTASK)
            .arg("supervise")
            .args(options)
            .args(["--", "bash", "-c", &body])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(supervisor.stdout.take().unwrap());
        let directory = PathBuf::from(line(&mut stdout));
        let program = Pid::from_raw(line(&mut stdout).parse().unwrap());
        until("the program runs", || directory.join("tail.pid").exists());
        Self { supervisor, stdout, directory, program }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.supervisor.id()).unwrap()), signal).unwrap();
    }

    fn assert_nothing_is_left(&self) {
        until("the program has ended", || !is_running(self.program));
        until("the directory is removed", || !self.directory.exists());
    }
}

fn line(stdout: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    line.trim().to_owned()
}

fn is_running(pid: Pid) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with(['X', 'Z']))
}

fn until(condition: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {} s: {condition}", TIMEOUT.as_secs());
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn end_of_the_body_removes_everything() {
    let mut testbed = Testbed::start(&[], "read -r _ || exit 7");
    assert!(is_running(testbed.program) && testbed.directory.exists());
    drop(testbed.supervisor.stdin.take());
    assert_eq!(testbed.supervisor.wait().unwrap().code(), Some(7));
    assert!(!is_running(testbed.program) && !testbed.directory.exists());
}

#[test]
fn killed_supervisor_leaves_nothing_behind() {
    let mut testbed = Testbed::start(&[], "exec sleep 1000");
    testbed.signal(Signal::SIGKILL);
    testbed.supervisor.wait().unwrap();
    testbed.assert_nothing_is_left();
}

#[test]
fn signals_end_the_body_and_set_the_status() {
    for (signal, status) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130), (Signal::SIGHUP, 129)] {
        let mut testbed = Testbed::start(&[], "exec sleep 1000");
        testbed.signal(signal);
        assert_eq!(testbed.supervisor.wait().unwrap().code(), Some(status));
        testbed.assert_nothing_is_left();
    }
}

#[test]
fn body_that_ignores_sigterm_is_killed() {
    let mut testbed = Testbed::start(&[], "trap '' TERM; echo trapped; while :; do sleep 0.1; done");
    assert_eq!(line(&mut testbed.stdout), "trapped");
    testbed.signal(Signal::SIGTERM);
    assert_eq!(testbed.supervisor.wait().unwrap().code(), Some(143));
    testbed.assert_nothing_is_left();
}

#[test]
fn directory_of_the_caller_stays_and_its_programs_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("testbed");
    let mut testbed = Testbed::start(&["--dir", path.to_str().unwrap()], "read -r _ || true");
    drop(testbed.supervisor.stdin.take());
    assert!(testbed.supervisor.wait().unwrap().success());
    assert!(!is_running(testbed.program) && path.join("tail.run").exists());
}

#[test]
fn restarted_program_ends_with_the_testbed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("testbed");
    let mut testbed = Testbed::start(&["--dir", path.to_str().unwrap()], "read -r _ || true");
    kill(testbed.program, Signal::SIGKILL).unwrap();
    until("the program has ended", || !is_running(testbed.program));
    // As a test does: not a child of the supervisor.
    let mut restarted = Command::new(path.join("tail.run")).spawn().unwrap();
    let pid = Pid::from_raw(i32::try_from(restarted.id()).unwrap());
    until("the pid file names the program", || {
        fs::read_to_string(path.join("tail.pid")).is_ok_and(|text| text.trim() == pid.to_string())
    });
    until("the program runs", || {
        fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words.starts_with("tail"))
    });
    drop(testbed.supervisor.stdin.take());
    assert!(testbed.supervisor.wait().unwrap().success());
    assert!(!restarted.wait().unwrap().success());
}

#[test]
fn environment_of_the_supervisor_reaches_the_body() {
    let output = Command::new(XTASK)
        .args(["supervise", "--cgroup", "--", "bash", "-c", "echo $TESTBED_CGROUP $TESTBED_SUPERVISOR $PPID"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    let [cgroup, supervisor, parent] = words[..] else { panic!("{words:?}") };
    assert_eq!(cgroup, format!("etcd-guard-{supervisor}"));
    assert_eq!(supervisor, parent);
}
