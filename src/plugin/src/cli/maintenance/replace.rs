//! `kubectl etcd-guard replace`: the replacement of a member that lost its data.

use std::time::Duration;

use clap::Args;

use super::{EventFormat, interrupted};
use crate::{
    cli::guard_flags::{GuardFlags, parse_name},
    durations,
    maintenance::{
        replace::{Options, Replacement},
        reporter::Reporter,
    },
};
use etcd_guard_cli::access::run;

/// Replace a member whose data is lost or corrupt, or whose PVC must go
///
/// With its own credentials, the guard removes the member from etcd's list. The command, with your rights, deletes PVC and pod, and
/// creates the pod again. The guard adds it as a learner with the same peer URL; it starts with an empty PVC; once it has caught up,
/// the guard makes it a voter. If the member leads, leadership moves first. The spec of the StatefulSet does not change.
///
/// The other voters must be a quorum, and a `backup` of the last hour recorded. Refused are Bitnami's chart, members with several
/// PVCs or none (emptyDir), a PVC that is larger than its template, an even number of voters, and, unless you have paused it, an
/// operator's StatefulSet.
///
/// After an interruption, run the command again: it continues from the annotation `etcd-guard.io/replace`. To start over, first
/// remove that. There is nothing to abort: before the removal nothing has changed; after it, the cluster has one voter less until the
/// command completes.
///
/// To end by hand, remove the annotation, the finalizer `etcd-guard.io/replaces` of the PVC, and the pod: the next pod does not join
/// until you run `replace` again.
///
/// Status 1: the replacement is not complete.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  # Show the plan, then replace the member
  kubectl etcd-guard replace etcd-1 -n prod --dry-run
  kubectl etcd-guard replace etcd-1 -n prod

  # Start over
  kubectl -n prod annotate statefulset etcd etcd-guard.io/replace-")]
pub(crate) struct Replace {
    /// The pod of the member
    #[arg(value_parser = parse_name)]
    pod: String,
    #[command(flatten)]
    guard: GuardFlags,
    /// Replace the member although no backup of the last hour is recorded
    #[arg(long)]
    no_backup: bool,
    /// The operator that owns the StatefulSet is paused, and stays so until the end
    #[arg(long)]
    paused: bool,
    /// Print the plan and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Time for the replacement; a large database takes minutes to copy
    #[arg(long, default_value = "1h", value_parser = durations::parse)]
    timeout: Duration,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: EventFormat,
}

// === impl Replace ===

impl Replace {
    /// Returns whether the member was replaced.
    pub(crate) fn run(self) -> anyhow::Result<bool> {
        run(self.replace())
    }

    async fn replace(self) -> anyhow::Result<bool> {
        let Self { pod, guard, no_backup, paused, dry_run, timeout, output } = self;
        let guard = guard.connect().await?;
        let options =
            Options { pod, needs_backup: !no_backup, is_paused: paused, is_dry_run: dry_run, timeout };
        let reporter = Reporter::new(output == EventFormat::Json);
        let mut replacement = Replacement::new(&guard, &options, reporter).await?;
        let is_complete = tokio::select! {
            result = Box::pin(replacement.run()) => Some(result?),
            () = interrupted() => None,
        };
        if is_complete.is_none() {
            replacement.interrupted();
        }
        Ok(is_complete == Some(true))
    }
}
