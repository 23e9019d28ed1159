//! A demo that continues in the background: `scripts/demo --keep`.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use nix::{
    sys::signal::{SigSet, Signal, kill},
    unistd::Pid,
};

use crate::{cache::Lock, process};

/// Environment variable of the command: directory of the files below.
const DIRECTORY: &str = "DEMO_DETACH_DIR";

/// The exit status of the demo; the command writes this file when the demo is complete.
const STATUS: &str = "status";

/// The script that opens a shell in the testbed; written before [`STATUS`].
const ENTER: &str = "enter";

/// A file that this process locks. The command finds it unlocked if this process was killed, also from another PID
/// namespace.
const LOCK: &str = "lock";

const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Time for the last lines of the demo to arrive.
const LAST_LINES: Duration = Duration::from_millis(500);

/// Runs a command in a session of its own, shows its output, and returns when it reports the end of the demo.
#[derive(Args)]
pub(crate) struct Options {
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// A command that runs in the background, and the files that it shares with this process.
struct Demo {
    child: Child,
    directory: PathBuf,
    output: File,
}

impl Options {
    /// Returns the exit status of the demo. Until the demo is complete, a signal ends the command too.
    pub(crate) fn run(self) -> Result<u8> {
        let signals = signals()?;
        let directory = tempfile::Builder::new().prefix("etcd-guard-demo.").tempdir()?.keep();
        let lock_file = directory.join(LOCK);
        File::create(&lock_file)?;
        let lock = Lock::try_acquire(&lock_file).context("cannot lock the demo")?;
        let log = File::create(directory.join("output"))?;
        let child = process::launch(&["--session"], &self.command)
            .env(DIRECTORY, &directory)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start the demo")?;
        let output = File::open(directory.join("output"))?;
        let mut demo = Demo { child, directory, output };
        let status = demo.follow(&signals);
        drop(lock);
        // The testbed has a directory of its own.
        let _ = fs::remove_dir_all(&demo.directory);
        status
    }
}

impl Demo {
    fn follow(&mut self, signals: &Receiver<Signal>) -> Result<u8> {
        loop {
            self.show_output()?;
            if let Some(status) = read(&self.directory.join(STATUS)) {
                return self.complete(&status);
            }
            if let Some(status) = self.child.try_wait()? {
                self.show_output()?;
                return Ok(process::shell_status(status).max(1));
            }
            match signals.recv_timeout(POLL_INTERVAL) {
                Ok(signal) => {
                    // It may have ended since.
                    let _ = kill(self.pid()?, Signal::SIGTERM);
                    return Ok(if signal == Signal::SIGINT { 130 } else { 143 });
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("signals cannot be received"),
            }
        }
    }

    fn complete(&mut self, status: &str) -> Result<u8> {
        thread::sleep(LAST_LINES);
        self.show_output()?;
        let enter = read(&self.directory.join(ENTER)).context("the demo did not name its shell")?;
        println!(
            "\nThe testbed continues to run.\n  shell with kubectl:  {enter}\n  stop it:             kill {}",
            self.child.id()
        );
        status.parse().context("the demo did not report an exit status")
    }

    /// Copies new output of the command to stdout.
    fn show_output(&mut self) -> Result<()> {
        let mut stdout = io::stdout().lock();
        io::copy(&mut self.output, &mut stdout).context("cannot show the output of the demo")?;
        stdout.flush().context("cannot show the output of the demo")
    }

    fn pid(&self) -> Result<Pid> {
        Ok(Pid::from_raw(i32::try_from(self.child.id()).context("a process id is too large")?))
    }
}

/// Returns the first line of a file that is complete.
fn read(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok()?.split_once('\n').map(|(line, _)| line.to_owned())
}

/// Receives signals in a thread of its own.
fn signals() -> Result<Receiver<Signal>> {
    let signals = SigSet::from_iter([Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM]);
    signals.thread_block().context("cannot block signals")?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        while let Ok(signal) = signals.wait() {
            if sender.send(signal).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follow(script: &str) -> u8 {
        let directory = tempfile::tempdir().unwrap();
        let log = File::create(directory.path().join("output")).unwrap();
        let child = std::process::Command::new("sh")
            .args(["-c", script])
            .env(DIRECTORY, directory.path())
            .stdout(log)
            .spawn()
            .unwrap();
        let output = File::open(directory.path().join("output")).unwrap();
        let mut demo = Demo { child, directory: directory.path().to_owned(), output };
        let (_sender, receiver) = mpsc::channel();
        let status = demo.follow(&receiver).unwrap();
        demo.child.kill().unwrap();
        demo.child.wait().unwrap();
        status
    }

    #[test]
    fn status_file_ends_the_wait_while_the_command_runs() {
        let script = "echo step; cd \"$DEMO_DETACH_DIR\"; echo /enter >enter; echo 3 >status; exec sleep 60";
        assert_eq!(follow(script), 3);
    }

    #[test]
    fn command_that_ends_early_is_a_failure() {
        assert_eq!(follow("exit 0"), 1);
        assert_eq!(follow("exit 7"), 7);
    }
}
