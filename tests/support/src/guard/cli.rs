//! The commands of the kubectl plugin, run by a user.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{
    guarded_cluster::GuardedCluster,
    processes::child::{run_to_end, scoped_command},
    project,
};

/// The output of a command.
#[derive(Debug)]
pub struct CliOutput {
    /// The exit code, unless a signal ended the command.
    pub status: Option<i32>,
    /// The standard output.
    pub stdout: String,
    /// The standard error.
    pub stderr: String,
}

/// Returns `kubectl etcd-guard COMMAND ARGUMENTS` with the admin's kubeconfig, in the cluster's namespace.
pub fn program(etcd: &GuardedCluster, command: &str, arguments: &[&str]) -> Command {
    let mut program = scoped_command(project::plugin_program());
    program.arg(command).args(arguments).stdin(Stdio::null());
    program.arg("--kubeconfig").arg(etcd.control_plane.admin_kubeconfig());
    program.args(["--guard", &format!("http://{}", etcd.guard.http())]);
    if !arguments.contains(&"-A") {
        program.args(["-n", &etcd.namespace]);
    }
    program
}

/// Runs a command to its end.
pub async fn run(etcd: &GuardedCluster, command: &str, arguments: &[&str]) -> CliOutput {
    let output = run_to_end(program(etcd, command, arguments)).await;
    CliOutput {
        status: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs a command with `-o json`, and returns its exit code and the JSON document.
pub async fn json(etcd: &GuardedCluster, command: &str, arguments: &[&str]) -> (Option<i32>, Value) {
    let printed = run(etcd, command, &[arguments, &["-o", "json"]].concat()).await;
    let value = serde_json::from_str(&printed.stdout).unwrap_or_else(|_| panic!("no JSON: {printed:?}"));
    (printed.status, value)
}
