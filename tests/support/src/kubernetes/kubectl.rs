//! The real `kubectl`.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use crate::processes::child::{run_within, scoped_command};

/// The longest time of a command with several requests. `kubectl delete` waited without an end for a pod whose successor existed.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(240);

/// The time limit of one request; kubectl then ends by itself.
const REQUEST_TIMEOUT: &str = "--request-timeout=60s";

/// The program and its configuration.
#[derive(Clone)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    cache: PathBuf,
}

/// The output of a command.
#[derive(Debug)]
pub struct CommandOutput {
    /// Whether the exit code is 0.
    pub success: bool,
    /// The standard output.
    pub stdout: String,
    /// The standard error.
    pub stderr: String,
}

impl Kubectl {
    /// Runs this program with this kubeconfig and this discovery cache.
    pub fn new(program: &Path, kubeconfig: &Path, cache: &Path) -> Self {
        Self { program: program.to_owned(), kubeconfig: kubeconfig.to_owned(), cache: cache.to_owned() }
    }

    /// Runs a command without blocking the other tasks of the test.
    pub async fn run(&self, arguments: &[&str]) -> CommandOutput {
        CommandOutput::from(&run_within(COMMAND_TIMEOUT, self.command(arguments)).await)
    }

    /// Runs a command of a test's setup, which must succeed.
    pub fn run_checked(&self, arguments: &[&str]) -> CommandOutput {
        let output = CommandOutput::from(&self.command(arguments).output().expect("kubectl starts"));
        assert!(output.success, "kubectl {}: {}", arguments.join(" "), output.stderr);
        output
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = scoped_command(&self.program);
        command.env("KUBECONFIG", &self.kubeconfig).arg("--cache-dir").arg(&self.cache);
        command.arg(REQUEST_TIMEOUT).args(arguments).stdin(Stdio::null());
        command
    }
}

impl From<&Output> for CommandOutput {
    fn from(output: &Output) -> Self {
        Self {
            success: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}
