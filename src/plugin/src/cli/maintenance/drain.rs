//! `kubectl etcd-guard drain`: cordons a node, and evicts its etcd members in a safe order.

use std::time::Duration;

use clap::Args;

use super::{EventFormat, interrupted};
use crate::{
    cli::guard_flags::GuardFlags,
    maintenance::drain::{
        pods::Permitted,
        run::{Drain as Run, Options, report_interruption},
    },
};
use etcd_guard_cli::access::run;

/// Cordon a node, and evict its etcd members one after the other, in a safe order across clusters
///
/// Leadership is moved before a leader is evicted. The other pods are left to `kubectl drain`, unless --all is set.
/// Exit status: 0 if all selected pods left the node, 1 if some could not, 2 if the drain was refused or failed.
#[derive(Debug, Args)]
pub(crate) struct Drain {
    /// The node
    node: String,
    #[command(flatten)]
    guard: GuardFlags,
    /// Print the plan and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Evict all other pods as well, except those of DaemonSets and mirrors of static pods
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    permissions: Permissions,
    /// Time for the whole drain
    #[arg(long, default_value = "30m", value_parser = humantime::parse_duration)]
    timeout: Duration,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: EventFormat,
}

/// Evictions that lose something
#[derive(Debug, Args)]
struct Permissions {
    /// Evict pods with `emptyDir` volumes, whose data is lost
    #[arg(long)]
    delete_emptydir_data: bool,
    /// Evict pods without a controller, which nothing creates again
    #[arg(long)]
    force: bool,
}

// === impl Drain ===

impl Drain {
    /// Returns whether all selected pods left the node.
    pub(crate) fn run(self) -> anyhow::Result<bool> {
        run(self.drain())
    }

    async fn drain(self) -> anyhow::Result<bool> {
        let Self { node, guard, dry_run, all, permissions, timeout, output } = self;
        let Permissions { delete_emptydir_data, force } = permissions;
        let guard = guard.connect().await?;
        let permitted = Permitted { empty_dir: delete_emptydir_data, unmanaged: force };
        let node = node.strip_prefix("node/").unwrap_or(&node).to_owned();
        let options = Options { node, timeout, is_dry_run: dry_run, drains_all: all, permitted };
        let is_json = output == EventFormat::Json;
        let mut drain = Run::new(&guard, &options, is_json);
        tokio::select! {
            result = Box::pin(drain.run()) => result,
            () = interrupted() => {
                report_interruption(&guard, &options, is_json);
                Ok(false)
            }
        }
    }
}
