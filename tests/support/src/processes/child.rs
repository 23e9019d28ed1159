//! Child processes that never outlive the test, even if the test is killed.

use std::{ffi::OsStr, process::Command};

/// Returns a command whose process is killed as soon as the thread that spawned it ends, for any reason. So the
/// spawning thread must live as long as the process: the thread of the test, or a thread for this purpose.
pub fn scoped_command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}
