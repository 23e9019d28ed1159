//! `kubectl etcd-guard restart`: a rolling restart or an upgrade of a StatefulSet, the leader last.

use std::time::Duration;

use clap::Args;

use super::{EventFormat, interrupted};
use crate::{
    cli::guard_flags::{GuardFlags, parse_container, stateful_set},
    durations,
    maintenance::{
        reporter::Reporter,
        restart::{
            plan::Selection,
            run::{Options, Restart as Run, end_interrupted, report_interruption},
        },
        upgrade::Release,
    },
};
use etcd_guard_cli::access::run;

/// Restart the members of a StatefulSet one after the other, the leader last
///
/// Each member is evicted, even if nothing has changed (this loads renewed certificates), once all voters are healthy and at most
/// 1,000 entries behind. During the restart the StatefulSet has the update strategy `OnDelete`; the strategy is restored at the end.
/// An annotation keeps the state: an interrupted restart continues when the command runs again. If an operator or a GitOps controller
/// manages the StatefulSet, the command only evicts the pods, keeps its state in their annotations, and refuses while a changed template rolls out.
/// With --image, the command first checks etcd's preconditions of an upgrade, and that `backup` saved one within the last hour.
/// Status 1: not all members were restarted.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  # Show the plan, then restart the members
  kubectl etcd-guard restart statefulset/etcd -n prod --dry-run
  kubectl etcd-guard restart statefulset/etcd -n prod

  # Upgrade etcd
  kubectl etcd-guard restart statefulset/etcd -n prod --image quay.io/coreos/etcd:v3.6.16

  # End an interrupted restart
  kubectl etcd-guard restart statefulset/etcd -n prod --abort")]
#[allow(clippy::struct_excessive_bools, reason = "the flags are independent")]
pub(crate) struct Restart {
    /// statefulset/NAME
    #[arg(value_parser = stateful_set)]
    target: String,
    #[command(flatten)]
    guard: GuardFlags,
    /// Print the plan and change nothing
    #[arg(long, conflicts_with = "abort")]
    dry_run: bool,
    /// Upgrade to this image, by at most one minor version of etcd
    #[arg(long, conflicts_with = "abort", value_parser = parse_image)]
    image: Option<String>,
    /// The container that gets the image; by default `etcd`, or the only container
    #[arg(long, requires = "image", value_parser = parse_container)]
    container: Option<String>,
    /// Upgrade although no backup of the last hour is recorded
    #[arg(long, requires = "image")]
    no_backup: bool,
    /// Time for each member, from the first attempt of its eviction to its return
    #[arg(long, default_value = "10m", value_parser = durations::parse)]
    timeout: Duration,
    /// The operator or the GitOps controller that manages the StatefulSet is paused, and stays so until the end: change the StatefulSet
    #[arg(long)]
    paused: bool,
    /// End an interrupted restart, and restore the update strategy
    #[arg(long, conflicts_with = "paused")]
    abort: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: EventFormat,
}

/// Checks that the tag of an image tells the release of etcd, on which the preconditions of an upgrade depend.
fn parse_image(text: &str) -> Result<String, String> {
    let is_readable = !text.contains(char::is_whitespace) && Release::of_image(text).is_some();
    is_readable.then(|| text.to_owned()).ok_or_else(|| {
        String::from(
            "expected an image with a release of etcd as its tag, such as quay.io/coreos/etcd:v3.6.16",
        )
    })
}

// === impl Restart ===

impl Restart {
    /// Returns whether all members were restarted.
    pub(crate) fn run(self) -> anyhow::Result<bool> {
        run(self.restart())
    }

    async fn restart(self) -> anyhow::Result<bool> {
        let Self { target, guard, dry_run, image, container, no_backup, timeout, paused, abort, output } =
            self;
        let guard = guard.connect().await?;
        let namespace = guard.api_server.namespace.clone();
        let selection = Selection { image, container, is_paused: paused, is_without_backup: no_backup };
        let options = Options { namespace, name: target, selection, timeout, is_dry_run: dry_run };
        let is_json = output == EventFormat::Json;
        if abort {
            return end_interrupted(&guard, &options, is_json).await;
        }
        let mut restart = Run::new(&guard, &options, Reporter::new(is_json));
        tokio::select! {
            result = Box::pin(restart.run()) => result,
            () = interrupted() => {
                report_interruption(&guard, &options, is_json).await;
                Ok(false)
            }
        }
    }
}
