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

use super::{readiness::Probe, translation::Words};
use crate::support::{child::mortal, freeze::freeze};

/// What to run, and how to tell whether it is ready.
pub struct Program {
    pub path: PathBuf,
    pub words: Words,
    pub probe: Option<Probe>,
}

/// A running process. When it is dropped, it is killed.
pub struct Process {
    child: Child,
}

impl Program {
    /// Starts it; what it says is added to this file.
    pub fn start(&self, log: &Path) -> Process {
        std::fs::create_dir_all(log.parent().expect("a directory")).expect("the log's directory");
        let log = std::fs::File::options().append(true).create(true).open(log).expect("the log");
        let mut command = mortal(&self.path);
        command.args(&self.words.arguments).stdin(Stdio::null());
        command.env_clear().envs(self.words.environment.iter().cloned()).env("PATH", "/usr/bin:/bin");
        command.stdout(log.try_clone().expect("the log")).stderr(log);
        let child = Command::from(command).kill_on_drop(true).spawn().expect("setpriv starts");
        Process { child }
    }
}

impl Process {
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            // It may have ended just now.
            let _ = kill(pid, signal);
        }
    }

    /// Stops it until SIGCONT.
    pub async fn freeze(&self) {
        if let Some(pid) = self.pid() {
            freeze(pid).await;
        }
    }

    /// `None` once it was waited for: the number may be somebody else's by now.
    fn pid(&self) -> Option<Pid> {
        let pid = i32::try_from(self.child.id()?).expect("a pid");
        Some(Pid::from_raw(pid))
    }

    /// Waits for its end, and returns its exit code as a container runtime tells it.
    pub async fn end(&mut self) -> i32 {
        let status = self.child.wait().await.expect("a child that can be waited for");
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
    }
}
