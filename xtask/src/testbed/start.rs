//! Start of a testbed's program through its run script.

use std::{
    env,
    ffi::OsString,
    fs::File,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result};
use clap::Args;

use super::supervise::SUPERVISOR;
use crate::process;

/// Starts a program as a child of the supervisor and prints its process id.
#[derive(Args)]
pub(crate) struct Options {
    /// Files of the program: BASE.run and BASE.log, or BASE/run and BASE/log if BASE is a directory.
    base: PathBuf,
    /// Further arguments of the run script.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl Options {
    /// Starts the program. It survives this process: the supervisor, a subreaper, adopts it.
    pub(crate) fn run(self) -> Result<()> {
        let supervisor =
            env::var(SUPERVISOR).with_context(|| format!("{SUPERVISOR} is not set: no supervisor"))?;
        let log_file = file_of(&self.base, "log");
        let log = File::options().append(true).create(true).open(&log_file);
        let log = log.with_context(|| format!("cannot write {}", log_file.display()))?;
        let mut command = vec![file_of(&self.base, "run").into_os_string()];
        command.extend(self.arguments);
        // A session of its own: Ctrl-C on the terminal does not reach the program.
        let options = ["--parent", &supervisor, "--adopted", "--session"];
        let child = process::launch(&options, &command)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("cannot start the launcher")?;
        println!("{}", child.id());
        Ok(())
    }
}

/// Path of a file of a program: in its directory, or beside others with the program's name in front.
fn file_of(base: &Path, kind: &str) -> PathBuf {
    if base.is_dir() {
        return base.join(kind);
    }
    let mut path = base.as_os_str().to_owned();
    path.push(".");
    path.push(kind);
    PathBuf::from(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_in_the_directory_or_beside_others() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(file_of(directory.path(), "run"), directory.path().join("run"));
        assert_eq!(file_of(&directory.path().join("etcd"), "run"), directory.path().join("etcd.run"));
    }
}
