//! Child processes that never outlive the test, even if the test is killed, and commands with a time limit.

use std::{
    ffi::OsStr,
    process::{Command, Output},
    time::Duration,
};

use nix::unistd::Uid;
use tokio::time::timeout;

/// The longest time of a command. It exceeds the time that `kubectl etcd-guard restart` allows for each member, so that the command prints the
/// cause first.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(900);

/// Returns a command whose process is killed as soon as the thread that spawned it ends, for any reason. So the
/// spawning thread must live as long as the process: the thread of the test, or a thread for this purpose.
pub fn scoped_command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// As [`scoped_command`], but with priority over the tests and their clients, where the user may raise it: a member that waits
/// for the processor too long holds an election, which no test expects.
pub fn prioritized_command(program: impl AsRef<OsStr>) -> Command {
    if !Uid::effective().is_root() {
        return scoped_command(program);
    }
    let mut command = scoped_command("nice");
    command.args(["-n", "-10"]).arg(program);
    command
}

/// Runs a command to its end without blocking other tasks.
///
/// # Panics
///
/// If the program does not start, or does not end within 15 minutes: a test that never ends would hide its cause.
pub async fn run_to_end(command: Command) -> Output {
    run_within(COMMAND_TIMEOUT, command).await
}

/// Runs a command to its end, as [`run_to_end`], but within this limit.
///
/// # Panics
///
/// If the program does not start, or does not end in time.
pub async fn run_within(limit: Duration, command: Command) -> Output {
    let description = format!("{command:?}");
    let output = tokio::process::Command::from(command).kill_on_drop(true).output();
    let output = timeout(limit, Box::pin(output)).await;
    let output = output.unwrap_or_else(|_| panic!("not within {limit:?}: {description}"));
    output.unwrap_or_else(|error| panic!("{description}: {error}"))
}
