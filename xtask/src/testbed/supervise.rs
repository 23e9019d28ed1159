//! The supervisor of a testbed.

use std::{
    cmp::Reverse,
    ffi::OsString,
    fs,
    io::{self, IsTerminal},
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Result};
use clap::Args;
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, FdFlag, OFlag, fcntl},
    sys::{
        prctl,
        signal::{SigSet, Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, pipe2},
};

use crate::process;

/// Environment variable of the body: process id of the supervisor, for `xtask start`.
pub(crate) const SUPERVISOR: &str = "TESTBED_SUPERVISOR";

/// Environment variable of the body: directory of the testbed.
const RUN_DIR: &str = "RUN_DIR";

/// Environment variable of the body: file descriptor of the reaper's pipe, which the caller's command must not hold.
const REAPER_FD: &str = "REAPER_FD";

/// File of a node's directory with the process id, outside, of the first process inside. It ends the node on SIGTERM;
/// `unshare`, its parent, does not forward signals.
const INSIDE: &str = "inside";

/// Time that processes have to end on SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// Time that the supervisor waits for the reaper; its attempts take 20 s.
const REAPER_TIMEOUT: Duration = Duration::from_secs(25);

/// Time that a process may have an empty command line; kernel threads always have one.
const EXEC_TIMEOUT: Duration = Duration::from_millis(200);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs a command in a testbed's directory and removes the rest of the testbed.
#[derive(Args)]
pub(crate) struct Options {
    /// Directory of the testbed, which stays; otherwise a temporary one is removed at the end.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Remove the cgroup `etcd-guard-PID` at the end; the body reads its name from `TESTBED_CGROUP`.
    #[arg(long)]
    cgroup: bool,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Runs a command as the first process of a PID namespace.
#[derive(Args)]
pub(crate) struct InitOptions {
    /// File that receives the process id by which processes outside know this one.
    #[arg(long)]
    pid_file: PathBuf,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// The end of a body: its exit status, or the signal that the supervisor received.
enum End {
    Body(u8),
    Signal(Signal),
}

impl Options {
    /// Runs the testbed and returns its exit status.
    pub(crate) fn run(self) -> Result<u8> {
        // Before the directory exists, so that a signal cannot leave it behind.
        let signals = block_signals()?;
        let (directory, is_temporary) = match self.dir {
            Some(directory) => {
                let create = || -> io::Result<PathBuf> {
                    fs::create_dir_all(&directory)?;
                    fs::canonicalize(&directory)
                };
                (create().with_context(|| format!("cannot create {}", directory.display()))?, false)
            }
            None => (temporary_directory()?, true),
        };
        let cgroup = self.cgroup.then(|| format!("etcd-guard-{}", std::process::id()));
        prctl::set_child_subreaper(true).context("cannot become a subreaper")?;
        let (pipe, mut reaper) = start_reaper(is_temporary.then_some(&directory), cgroup.as_deref())?;

        let mut body = body(&self.command);
        body.env(RUN_DIR, &directory).env(REAPER_FD, pipe.as_raw_fd().to_string());
        if let Some(cgroup) = &cgroup {
            body.env("TESTBED_CGROUP", cgroup);
        }
        let body = body.spawn().context("cannot start the testbed")?;
        let body = pid_of(&body)?;
        let end = wait_for(body, &signals);

        if matches!(end, End::Signal(_)) {
            stop(&[inside(&directory).unwrap_or(body)]);
        }
        let children = children(&directory, &[body, pid_of(&reaper)?]);
        if is_temporary {
            // Files that an orderly end would write are removed anyway.
            kill_all(&children);
        } else {
            stop(&children);
        }
        drop(pipe);
        // A program that the body left behind may still hold the pipe; then the reaper continues alone.
        let deadline = Instant::now() + REAPER_TIMEOUT;
        while is_running(&mut reaper) && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL);
        }
        Ok(end.status())
    }
}

impl InitOptions {
    /// Runs the command and returns its exit status. All processes of the namespace end with this one.
    pub(crate) fn run(self) -> Result<u8> {
        let signals = block_signals()?;
        // /proc still belongs to the outer namespace.
        let outside = fs::read_link("/proc/self").context("cannot read /proc/self")?;
        fs::write(&self.pid_file, format!("{}\n", outside.display()))
            .with_context(|| format!("cannot write {}", self.pid_file.display()))?;
        let body = body(&self.command).spawn().context("cannot start the command")?;
        let body = pid_of(&body)?;
        let end = wait_for(body, &signals);
        if matches!(end, End::Signal(_)) {
            stop(&[body]);
        }
        Ok(end.status())
    }
}

impl End {
    fn status(&self) -> u8 {
        match *self {
            Self::Body(status) => status,
            Self::Signal(Signal::SIGHUP) => 129,
            Self::Signal(Signal::SIGINT) => 130,
            Self::Signal(_) => 143,
        }
    }
}

/// Blocks the signals that [`wait_for`] receives.
fn block_signals() -> Result<SigSet> {
    let signals = SigSet::from_iter([Signal::SIGCHLD, Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM]);
    signals.thread_block().context("cannot block signals")?;
    Ok(signals)
}

fn temporary_directory() -> Result<PathBuf> {
    let directory = tempfile::Builder::new().prefix("etcd-guard-testbed.").tempdir();
    let directory = directory.context("cannot create a temporary directory")?.keep();
    fs::canonicalize(&directory).with_context(|| format!("cannot read {}", directory.display()))
}

/// Starts the reaper. The returned end of its pipe is inherited by all further children.
fn start_reaper(directory: Option<&PathBuf>, cgroup: Option<&str>) -> Result<(OwnedFd, Child)> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC).context("cannot create a pipe")?;
    let mut reaper = process::this_program();
    reaper.arg("reap").stdin(read).stdout(Stdio::null()).stderr(Stdio::null());
    if let Some(directory) = directory {
        reaper.arg("--directory").arg(directory);
    }
    if let Some(cgroup) = cgroup {
        reaper.args(["--cgroup", cgroup]);
    }
    let reaper = reaper.spawn().context("cannot start the reaper")?;
    fcntl(&write, FcntlArg::F_SETFD(FdFlag::empty())).context("cannot share the pipe of the reaper")?;
    Ok((write, reaper))
}

/// Prepares the body: a child that dies with this process. Background processes of a shell ignore SIGINT and SIGQUIT,
/// also the supervisor if a script started it there; the body does not.
fn body(command: &[OsString]) -> std::process::Command {
    let own_pid = std::process::id().to_string();
    let mut words: Vec<OsString> =
        ["env", "--default-signal=INT", "--default-signal=QUIT"].map(OsString::from).to_vec();
    words.extend_from_slice(command);
    let mut body = process::launch(&["--parent", &own_pid], &words);
    body.env(SUPERVISOR, own_pid);
    body
}

/// Waits for the end of the body or for a signal, and collects the status of all other children.
fn wait_for(body: Pid, signals: &SigSet) -> End {
    // On a terminal Ctrl-C belongs to the body, which may be a shell and receives it as well.
    let is_terminal = io::stdin().is_terminal();
    loop {
        match signals.wait() {
            Ok(Signal::SIGINT) if is_terminal => {}
            Ok(Signal::SIGCHLD) => {
                if let Some(status) = collect(body) {
                    return End::Body(status);
                }
            }
            Ok(signal) => return End::Signal(signal),
            Err(_) => {}
        }
    }
}

/// Collects children that have ended; returns the status of the body if it is among them, as a shell reports it: 128
/// and the signal for a killed process.
fn collect(body: Pid) -> Option<u8> {
    let mut found = None;
    loop {
        let (pid, status) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) => (pid, code),
            #[allow(
                clippy::as_conversions,
                reason = "nix offers no other conversion of a signal to its number"
            )]
            Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, 128 + signal as i32),
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return found,
            _ => continue,
        };
        if pid == body {
            found = Some(u8::try_from(status).unwrap_or(1));
        }
    }
}

fn pid_of(child: &Child) -> Result<Pid> {
    Ok(Pid::from_raw(i32::try_from(child.id()).context("a process id is too large")?))
}

fn is_running(child: &mut Child) -> bool {
    matches!(child.try_wait(), Ok(None))
}

/// Process id of a node's first process.
fn inside(directory: &Path) -> Option<Pid> {
    fs::read_to_string(directory.join(INSIDE)).ok()?.trim().parse().ok().map(Pid::from_raw)
}

/// Programs of the testbed, the last started first: those that their pid files name, also restarted ones, and further
/// children of this process. Only a command line that names the testbed's directory counts, since the number in a pid
/// file may belong to another process by now.
fn children(directory: &Path, except: &[Pid]) -> Vec<Pid> {
    let marker = format!("{}/", directory.display());
    let mut children = started_by_pid_file(directory);
    for pid in all_processes() {
        let is_known = children.iter().any(|(_, known)| *known == pid);
        if !is_known && process::parent(pid) == Some(Pid::this()) {
            children.push((SystemTime::now(), pid));
        }
    }
    children.sort_by_key(|(started, _)| Reverse(*started));
    children
        .into_iter()
        .map(|(_, pid)| pid)
        .filter(|pid| !except.contains(pid) && names(*pid, &marker))
        .collect()
}

/// Processes of the pid files `NAME.pid` and `NAME/pid`, with the time of their start.
fn started_by_pid_file(directory: &Path) -> Vec<(SystemTime, Pid)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = entries.filter_map(|path| match path.extension().and_then(|extension| extension.to_str()) {
        Some("pid") => Some(path),
        _ => Some(path.join("pid")).filter(|file| file.is_file()),
    });
    let read = |file: PathBuf| -> Option<(SystemTime, Pid)> {
        let started = fs::metadata(&file).ok()?.modified().ok()?;
        let pid = fs::read_to_string(&file).ok()?.trim().parse().ok()?;
        Some((started, Pid::from_raw(pid)))
    };
    files.filter_map(read).filter(|(_, pid)| pid.as_raw() > 1).collect()
}

fn all_processes() -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).map(Pid::from_raw).collect()
}

/// Whether the command line of a process contains a text. While a process starts another program, its command line is
/// empty for a moment; then this reads again.
fn names(pid: Pid, text: &str) -> bool {
    let deadline = Instant::now() + EXEC_TIMEOUT;
    loop {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if !words.is_empty() || !process::is_alive(pid) || Instant::now() >= deadline {
            return String::from_utf8_lossy(&words).contains(text);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Sends SIGTERM to all processes, and SIGKILL to those that run after [`STOP_TIMEOUT`].
fn stop(processes: &[Pid]) {
    signal(processes, Signal::SIGTERM);
    if !have_ended(processes) {
        kill_all(processes);
    }
}

/// Sends SIGKILL to all processes and waits until they have ended.
fn kill_all(processes: &[Pid]) {
    signal(processes, Signal::SIGKILL);
    have_ended(processes);
}

/// Waits until all processes have ended; returns false after [`STOP_TIMEOUT`].
fn have_ended(processes: &[Pid]) -> bool {
    let deadline = Instant::now() + STOP_TIMEOUT;
    while processes.iter().any(|pid| process::is_alive(*pid)) {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(POLL_INTERVAL);
    }
    true
}

fn signal(processes: &[Pid], signal: Signal) {
    for pid in processes.iter().filter(|pid| process::is_alive(**pid)) {
        // It may have ended since.
        let _ = kill(*pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn process_that_starts_another_program_is_recognized() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("again.sh");
        fs::write(&script, "exec sh \"$0\"\n").unwrap();
        let mut child = Command::new("sh").arg(&script).spawn().unwrap();
        let pid = pid_of(&child).unwrap();
        let missed = (0..5000).filter(|_| !names(pid, script.to_str().unwrap())).count();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(missed, 0);
    }
}
