//! Progress of a command that prints nothing for minutes, such as the last step of a release build.

use std::{
    ffi::OsString,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::Args;

use crate::{log, process};

/// Interval between two lines of progress.
const INTERVAL: Duration = Duration::from_secs(15);

const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs a command and logs a line of progress at intervals.
#[derive(Args)]
pub(crate) struct Options {
    /// The activity, as the log names it: "building etcd-guard".
    #[arg(long)]
    message: String,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl Options {
    /// Returns the exit status of the command, which dies with this process.
    pub(crate) fn run(self) -> Result<u8> {
        let started = Instant::now();
        let parent = std::process::id().to_string();
        let mut child = process::launch(&["--parent", &parent], &self.command)
            .spawn()
            .with_context(|| format!("cannot start: {}", self.message))?;
        let mut next = INTERVAL;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(process::shell_status(status));
            }
            if started.elapsed() >= next {
                log::info(format_args!("  still {}: {} s", self.message, next.as_secs()));
                next += INTERVAL;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}
