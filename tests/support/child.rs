//! Child processes that cannot outlive the test: not even one that is killed.

use std::{ffi::OsStr, process::Command};

/// A command whose process is killed as soon as the thread that spawns it ends, however that happens. So it must be
/// spawned by a thread that lives as long as the process shall: the test's own, or one that is kept for this.
pub fn mortal(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}
