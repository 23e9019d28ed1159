//! `kubectl etcd-guard doctor`: checks an installation.

pub(crate) mod version;

use std::io::Write;

use clap::Args;

use super::guard_flags::GuardFlags;
use crate::doctor::{self, Options};
use etcd_guard_cli::{
    access::run,
    printing::{Output, stdout},
};
use etcd_guard_core::documentation::{DEFAULT_URL, Manual};

/// Check the installation of the guard: API server, webhooks, certificates, permissions, network, replicas and clusters
///
/// Each line is ok, a warning or a failure, with a remedy. Use the plugin of the guard's version: it compares with its own
/// manifests. Uses your permissions; a check that requires a missing permission is a warning. The network check requests one eviction as a dry run, of a pod that does not exist, in the namespace of
/// --namespace or in the first guarded one. Status 1 means that a check failed; warnings do not count.
///
/// With --pre, you need no guard: version, permissions, quotas, certificates, other webhooks, and the etcd that it would guard. It
/// requests the creation of the webhook configurations and of a pod as dry runs.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  # Check the installation
  kubectl etcd-guard doctor

  # Before the installation: what stops it, and what would surprise you afterwards
  kubectl etcd-guard doctor --pre

  # The checks that failed, as JSON
  kubectl etcd-guard doctor -o json | jq '.checks[] | select(.state == \"failure\")'")]
pub(super) struct Doctor {
    #[command(flatten)]
    guard: GuardFlags,
    /// Check a cluster before the installation: what stops it, and what would surprise you afterwards
    #[arg(long)]
    pre: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
    /// URL of the manual, which the lines name; set it if you publish a copy of your own
    #[arg(long, env = "ETCD_GUARD_DOCS_URL", value_name = "URL", default_value = DEFAULT_URL)]
    docs_url: Manual,
}

// === impl Doctor ===

impl Doctor {
    /// Prints the result of all checks. Returns whether no check failed.
    pub(super) fn run(self) -> anyhow::Result<bool> {
        run(self.examine())
    }

    async fn examine(self) -> anyhow::Result<bool> {
        let Self { guard, pre, output, docs_url: manual } = self;
        let options = Options {
            guard_namespace: guard.guard_namespace().to_owned(),
            guard_selector: guard.guard_selector().to_owned(),
            namespace: guard.namespace_flag().map(str::to_owned),
            manual,
        };
        let doctor = doctor::Doctor::new(guard.connect().await?, options);
        let report = if pre { doctor.examine_before().await? } else { doctor.examine().await? };
        let mut out = stdout();
        match output {
            // The table has all facts.
            Output::Table | Output::Wide => report.write_table(&mut out)?,
            Output::Name => report.write_names(&mut out)?,
            Output::Json | Output::Yaml => {
                output.write_document(&report, &mut out)?;
            }
        }
        out.flush()?;
        drop(out);
        anyhow::ensure!(
            report.has_result(),
            "no property of the guard could be read; each line above says why"
        );
        Ok(report.is_passed())
    }
}
