//! Removal of the directory and the cgroup of a testbed that has ended.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use nix::{sys::signal::SigSet, unistd::setsid};

/// Attempts to remove everything. Containers close the pipe shortly before they end, so the first attempt may be early.
const ATTEMPTS: u32 = 100;

/// Interval between attempts; all of them take 20 s.
const INTERVAL: Duration = Duration::from_millis(200);

/// Removes a directory and a cgroup once stdin has ended.
///
/// Every process of the testbed inherits the write end of the pipe on stdin, so the pipe ends with the last of them,
/// however they end. No signal but KILL ends the reaper.
#[derive(Args)]
pub(crate) struct Options {
    #[arg(long)]
    directory: Option<PathBuf>,
    #[arg(long)]
    cgroup: Option<PathBuf>,
}

impl Options {
    /// Waits for the end of stdin and removes the rest of the testbed.
    pub(crate) fn run(self) -> Result<()> {
        SigSet::all().thread_block().context("cannot block signals")?;
        // Signals to the process group or the terminal of the supervisor do not arrive here.
        setsid().context("cannot start a session")?;
        io::copy(&mut io::stdin().lock(), &mut io::sink()).context("cannot read stdin")?;
        for _ in 0..ATTEMPTS {
            if self.remove() {
                return Ok(());
            }
            thread::sleep(INTERVAL);
        }
        bail!("the rest of the testbed could not be removed")
    }

    /// Returns whether nothing is left.
    fn remove(&self) -> bool {
        let cgroups = self.cgroup.as_deref().map(cgroup_directories).unwrap_or_default();
        let mut is_done = true;
        for cgroup in cgroups {
            remove_tree_of_empty_directories(&cgroup);
            is_done &= !cgroup.exists();
        }
        if let Some(directory) = self.directory.as_deref().filter(|directory| directory.exists()) {
            is_done &= remove_directory(directory);
        }
        is_done
    }
}

/// Directories of a cgroup: one in version 2, one for each hierarchy in version 1.
fn cgroup_directories(cgroup: &Path) -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    let candidates = std::iter::once(root.to_owned()).chain(hierarchies);
    candidates.map(|hierarchy| hierarchy.join(cgroup)).filter(|path| path.is_dir()).collect()
}

/// Removes directories from the leaves upwards. The files of a cgroup cannot be removed and need not be.
fn remove_tree_of_empty_directories(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree_of_empty_directories(&entry.path());
        }
    }
    // A process may still be in it; the next attempt removes it.
    let _ = fs::remove_dir(directory);
}

/// Removes a directory, but nothing of file systems that are mounted below it.
fn remove_directory(directory: &Path) -> bool {
    let mut command = Command::new("rm");
    command.args(["-rf", "--one-file-system", "--"]).arg(directory);
    command.output().is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_with_content_is_removed() {
        let directory = tempfile::tempdir().unwrap().keep();
        fs::create_dir_all(directory.join("a/b")).unwrap();
        fs::write(directory.join("a/b/c"), "text").unwrap();
        let options = Options { directory: Some(directory.clone()), cgroup: None };
        assert!(options.remove());
        assert!(!directory.exists());
        assert!(options.remove());
    }

    #[test]
    fn only_empty_directories_of_a_cgroup_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("pods/a")).unwrap();
        fs::create_dir_all(directory.path().join("busy")).unwrap();
        fs::write(directory.path().join("busy/file"), "").unwrap();
        remove_tree_of_empty_directories(directory.path());
        assert!(!directory.path().join("pods").exists() && directory.path().join("busy/file").exists());
    }
}
