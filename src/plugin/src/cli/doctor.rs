//! `kubectl etcd-guard doctor`: checks an installation.

pub(crate) mod version;

use std::io::Write;

use clap::Args;

use super::guard_flags::GuardFlags;
use crate::doctor::{self, Options};
use etcd_guard_cli::{access::run, printing::Output};

/// Check the installation of the guard: API server, webhooks, certificates, permissions, network, replicas and clusters
///
/// Each line is ok, a warning or a failure, with a remedy. Uses your permissions; a check that requires a missing permission
/// is a warning. The network check requests one eviction as a dry run, of a pod that does not exist, in the namespace of
/// --namespace or in the first guarded one. Exit status: 0 if no check failed, 1 if a check failed, 2 if the checks could not
/// run or nothing of the guard could be read.
#[derive(Debug, Args)]
pub(super) struct Doctor {
    #[command(flatten)]
    guard: GuardFlags,
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

// === impl Doctor ===

impl Doctor {
    /// Prints the result of all checks. Returns whether no check failed.
    pub(super) fn run(self) -> anyhow::Result<bool> {
        run(self.examine())
    }

    async fn examine(self) -> anyhow::Result<bool> {
        let Self { guard, output } = self;
        let options = Options {
            guard_namespace: guard.guard_namespace().to_owned(),
            guard_selector: guard.guard_selector().to_owned(),
            namespace: guard.namespace_flag().map(str::to_owned),
        };
        let report = doctor::Doctor::new(guard.connect().await?, options).examine().await?;
        let mut out = anstream::stdout().lock();
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
            "no property of the guard could be read; the remedies above name the missing permissions"
        );
        Ok(report.is_passed())
    }
}
