//! The commands that act on guarded clusters: `restart` and `move-leader`.

pub(crate) mod move_leader;
pub(crate) mod restart;

use std::future::pending;

use clap::ValueEnum;
use tokio::signal::unix::{SignalKind, signal};

/// Output format of commands that report events
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EventFormat {
    /// Human-readable lines
    Text,
    /// One line of JSON for the plan and for each event
    Json,
}

/// Completes when the user or the system requests the end of the process.
async fn interrupted() {
    let wait = async |kind| match signal(kind) {
        Ok(mut signals) => drop(signals.recv().await),
        // Without a handler, the signal ends the process at once.
        Err(_) => pending().await,
    };
    tokio::select! {
        () = wait(SignalKind::interrupt()) => {}
        () = wait(SignalKind::terminate()) => {}
        // The terminal was closed.
        () = wait(SignalKind::hangup()) => {}
    }
}
