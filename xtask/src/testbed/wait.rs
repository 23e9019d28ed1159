//! Waiting for a condition of a testbed.

use std::{
    ffi::OsString,
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use clap::Args;
use nix::unistd::Pid;

use crate::{log, process};

const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Limit for one attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Waits until an address accepts connections or a command succeeds.
#[derive(Args)]
pub(crate) struct Options {
    /// Seconds to wait.
    #[arg(long)]
    limit: u64,
    /// Condition that does not hold, for the error.
    #[arg(long)]
    message: String,
    /// Log; an error shows its last lines.
    #[arg(long)]
    log: PathBuf,
    /// Process without which the condition cannot become true.
    #[arg(long)]
    pid: Option<i32>,
    /// Address to connect to.
    #[arg(long, conflicts_with = "command", required_unless_present = "command")]
    address: Option<SocketAddr>,
    /// Command to repeat.
    #[arg(last = true)]
    command: Vec<OsString>,
}

impl Options {
    /// Returns once the condition holds; fails at the limit, or as soon as the process has ended.
    pub(crate) fn run(self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(self.limit);
        loop {
            if self.holds()? {
                return Ok(());
            }
            if Instant::now() >= deadline {
                log::tail(&self.log);
                bail!("{}: waited {} s", self.message, self.limit);
            }
            if self.pid.is_some_and(|pid| !process::is_alive(Pid::from_raw(pid))) {
                log::tail(&self.log);
                bail!("{}: its process has ended", self.message);
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn holds(&self) -> Result<bool> {
        if let Some(address) = &self.address {
            return Ok(TcpStream::connect_timeout(address, CONNECT_TIMEOUT).is_ok());
        }
        let Some((program, arguments)) = self.command.split_first() else { bail!("no command") };
        ensure!(!program.is_empty(), "the command is empty");
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(command.status().is_ok_and(|status| status.success()))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn options(limit: u64, command: &str) -> Options {
        Options {
            limit,
            message: String::from("the test is not ready"),
            log: PathBuf::from("/dev/null"),
            pid: None,
            address: None,
            command: ["sh", "-c", command].map(OsString::from).to_vec(),
        }
    }

    #[test]
    fn command_is_repeated_until_it_succeeds() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("second");
        let command = format!("[ -e {0} ] || {{ touch {0}; exit 1; }}", file.display());
        options(10, &command).run().unwrap();
    }

    #[test]
    fn limit_ends_the_wait_with_the_condition() {
        let error = options(0, "false").run().unwrap_err().to_string();
        assert_eq!(error, "the test is not ready: waited 0 s");
    }

    #[test]
    fn end_of_the_process_ends_the_wait() {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let error = Options { pid: Some(pid), ..options(60, "false") }.run().unwrap_err().to_string();
        assert_eq!(error, "the test is not ready: its process has ended");
    }

    #[test]
    fn listening_address_ends_the_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Some(listener.local_addr().unwrap());
        Options { address, command: Vec::new(), ..options(5, "") }.run().unwrap();
    }
}
