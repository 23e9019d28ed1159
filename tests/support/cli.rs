//! The program as a person's command, beside the guard that it asks.

use std::process::{Command, Stdio};

use serde_json::Value;

use super::{child::mortal, guarded_cluster::GuardedCluster};

/// What a command said.
#[derive(Debug)]
pub struct Printed {
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// `etcd-guard COMMAND ARGUMENTS` as the admin, in the cluster's namespace.
pub fn program(etcd: &GuardedCluster, command: &str, arguments: &[&str]) -> Command {
    let mut program = mortal(env!("CARGO_BIN_EXE_etcd-guard"));
    program.arg(command).args(arguments).stdin(Stdio::null());
    program.arg("--kubeconfig").arg(etcd.control_plane.admin_kubeconfig());
    program.args(["--guard", &format!("http://{}", etcd.guard.http())]);
    if !arguments.contains(&"-A") {
        program.args(["-n", &etcd.namespace]);
    }
    program
}

/// Runs it to its end.
pub async fn run(etcd: &GuardedCluster, command: &str, arguments: &[&str]) -> Printed {
    let program = program(etcd, command, arguments);
    let output = tokio::process::Command::from(program).kill_on_drop(true).output().await;
    let output = output.expect("the program starts");
    Printed {
        status: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The same, printed as JSON.
pub async fn json(etcd: &GuardedCluster, command: &str, arguments: &[&str]) -> (Option<i32>, Value) {
    let printed = run(etcd, command, &[arguments, &["-o", "json"]].concat()).await;
    let value = serde_json::from_str(&printed.stdout).unwrap_or_else(|_| panic!("no JSON: {printed:?}"));
    (printed.status, value)
}
