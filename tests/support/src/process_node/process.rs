//! A process that stands for a container.

use std::{
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::Stdio,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::process::{Child, Command};

use super::{hosts::HostsFiles, readiness::Probe, translation::CommandLine};
use crate::processes::{child::prioritized_command, freeze::freeze};

/// The program of a container and its readiness probe.
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) words: CommandLine,
    /// The hosts file, for a program that resolves names.
    pub(super) hosts: Option<HostsFiles>,
    pub(super) probe: Option<Probe>,
}

/// A running process. When it is dropped, it is killed.
pub(super) struct Process {
    child: Child,
}

impl Program {
    /// Starts the program and appends its output to this log file.
    pub(super) fn start(&self, log: &Path) -> Process {
        std::fs::create_dir_all(log.parent().expect("a directory")).expect("the log's directory");
        let log = std::fs::File::options().append(true).create(true).open(log).expect("the log");
        let (program, wrapper) = match &self.hosts {
            Some(hosts) => hosts.wrap(&self.path),
            None => (self.path.clone(), Vec::new()),
        };
        let mut command = prioritized_command(program);
        command.args(wrapper).args(&self.words.arguments).stdin(Stdio::null());
        command.env_clear().envs(self.words.environment.iter().cloned()).env("PATH", "/usr/bin:/bin");
        command.stdout(log.try_clone().expect("the log")).stderr(log);
        let child = Command::from(command).kill_on_drop(true).spawn().expect("setpriv starts");
        Process { child }
    }
}

impl Process {
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            // The process may have ended in the meantime.
            let _ = kill(pid, signal);
        }
    }

    /// Stops the process until SIGCONT.
    pub(super) async fn freeze(&self) {
        if let Some(pid) = self.pid() {
            freeze(pid).await;
        }
    }

    /// Returns `None` after the process was waited for, because its id may belong to another process by then.
    fn pid(&self) -> Option<Pid> {
        let pid = i32::try_from(self.child.id()?).expect("a pid");
        Some(Pid::from_raw(pid))
    }

    /// Waits for the end of the process, and returns its exit code in the convention of container runtimes.
    pub(super) async fn end(&mut self) -> i32 {
        let status = self.child.wait().await.expect("a child that can be waited for");
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
    }
}
