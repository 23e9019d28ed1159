//! The real `kubectl`, as a user at a terminal has it.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use super::child::mortal;

/// Longest that one command may take: kubectl ends by itself before that.
const REQUEST_LIMIT: &str = "--request-timeout=60s";

/// How kubectl is called.
#[derive(Clone)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    cache: PathBuf,
}

/// What kubectl said.
#[derive(Debug)]
pub struct Said {
    /// Whether it ended with status 0.
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
}

impl Kubectl {
    pub fn new(program: &Path, kubeconfig: &Path, cache: &Path) -> Self {
        Self { program: program.to_owned(), kubeconfig: kubeconfig.to_owned(), cache: cache.to_owned() }
    }

    /// Runs it, while other tasks of the test go on.
    pub async fn run(&self, arguments: &[&str]) -> Said {
        let output = tokio::process::Command::from(self.command(arguments)).kill_on_drop(true).output().await;
        Said::of(&output.expect("kubectl starts"))
    }

    /// Runs what a test's preparation takes for granted.
    pub fn must(&self, arguments: &[&str]) -> Said {
        let said = Said::of(&self.command(arguments).output().expect("kubectl starts"));
        assert!(said.success, "kubectl {}: {}", arguments.join(" "), said.stderr);
        said
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = mortal(&self.program);
        command.env("KUBECONFIG", &self.kubeconfig).arg("--cache-dir").arg(&self.cache);
        command.arg(REQUEST_LIMIT).args(arguments).stdin(Stdio::null());
        command
    }
}

impl Said {
    fn of(output: &Output) -> Self {
        Self {
            success: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}
