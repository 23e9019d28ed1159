//! `kubectl etcd-guard conformance`: runs the conformance suite in a test cluster of the user.

use std::{io::Write, time::Duration};

use anyhow::{Context, anyhow};
use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::guard_flags::{GuardFlags, parse_name};
use crate::{
    conformance::{Options, Outcome, Report, Suite},
    durations,
    guard_client::GuardClient,
};
use etcd_guard_cli::{
    access::run,
    printing::{Output, causes, confirm, print_error, stdout},
    terminal::{EMPHASIS, paint},
};

/// Test the guarantees of the guard in a test cluster
///
/// Creates a namespace, starts etcd clusters in it, requests deletions of their pods, and deletes the namespace. Uses
/// every kind of deletion that affects no object outside the namespace. Status 1 means that a response was not the expected one.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  # Run the suite in a test cluster, after a confirmation
  kubectl etcd-guard conformance

  # In a pipeline, with the result as JSON
  kubectl etcd-guard conformance --yes -o json")]
pub(super) struct Conformance {
    #[command(flatten)]
    guard: GuardFlags,
    /// Start without confirmation
    #[arg(short, long)]
    yes: bool,
    /// The etcd image; by default the image of etcd-manifests/plain.yaml
    #[arg(long)]
    image: Option<String>,
    /// The storage class of the members' volumes; by default the default class of the cluster
    #[arg(long, value_parser = parse_name)]
    storage_class: Option<String>,
    /// Maximum time for members to start or to recover
    #[arg(long, default_value = "5m", value_parser = durations::parse)]
    wait: Duration,
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

/// The signals that stop a run. The first one stops the cases, the next SIGINT stops the cleanup.
struct StopSignals {
    interrupt: Signal,
    term: Signal,
    hangup: Signal,
}

// === impl Conformance ===

impl Conformance {
    /// Runs the suite. Returns whether all responses were the expected ones.
    pub(super) fn run(self) -> anyhow::Result<bool> {
        run(self.run_suite())
    }

    async fn run_suite(self) -> anyhow::Result<bool> {
        let options = Options {
            namespace: self.guard.namespace_flag().map(str::to_owned),
            image: self.image,
            storage_class: self.storage_class,
            timeout: self.wait,
            guard_namespace: self.guard.guard_namespace().to_owned(),
        };
        let client = self.guard.connect().await?;
        if !self.yes {
            confirm(&question(&client, options.namespace.as_deref()))?;
        }
        let mut signals = StopSignals::new()?;
        let mut suite = Suite::start(client, options).await?;
        let run = tokio::select! {
            result = suite.run() => result,
            () = signals.next() => Err(anyhow!("stopped before the end")),
        };
        // The namespace is deleted even if the report cannot be printed.
        let printed = print(suite.report(), self.output).context("printing the report");
        let cleaned_up = tokio::select! {
            result = suite.clean_up() => result,
            () = signals.next_interrupt() => Err(anyhow!("stopped")),
        };
        let cleaned_up =
            cleaned_up.map_err(|error| anyhow!("{}; {}", causes(&error), suite.manual_clean_up()));
        let mut errors = [run, printed, cleaned_up].into_iter().filter_map(Result::err);
        // A failed case decides the exit status, also if an error followed.
        if suite.report().count(Outcome::Failed) > 0 {
            errors.for_each(|error| print_error(&error));
            return Ok(false);
        }
        // The first error is returned, the others are printed: the command that deletes the namespace must not get lost.
        let first = errors.next();
        errors.for_each(|error| print_error(&error));
        first.map_or(Ok(true), Err)
    }
}

/// Returns the question before the start.
fn question(client: &GuardClient, namespace: Option<&str>) -> String {
    let namespace = namespace.unwrap_or("etcd-guard-conformance-*");
    format!(
        "This creates namespace {} in the cluster at {}, with six etcd pods and a volume for five of them, deletes and \
         evicts them, and deletes the namespace with everything in it.",
        paint(EMPHASIS, namespace),
        paint(EMPHASIS, &client.api_server.url.to_string())
    )
}

fn print(report: &Report, output: Output) -> anyhow::Result<()> {
    let mut out = stdout();
    match output {
        Output::Table | Output::Wide if report.rows.is_empty() => {}
        // The table has all facts.
        Output::Table | Output::Wide => report.write_text(&mut out)?,
        Output::Name => report.write_names(&mut out)?,
        Output::Json | Output::Yaml => {
            output.write_document(report, &mut out)?;
        }
    }
    out.flush()?;
    Ok(())
}

// === impl StopSignals ===

impl StopSignals {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("SIGINT")?,
            term: signal(SignalKind::terminate()).context("SIGTERM")?,
            hangup: signal(SignalKind::hangup()).context("SIGHUP")?,
        })
    }

    /// Returns at the next SIGINT, SIGTERM or SIGHUP.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.term.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }

    /// Returns at the next SIGINT. SIGHUP and SIGTERM do not count: shell, kernel and parent process may each send one
    /// when a terminal closes.
    async fn next_interrupt(&mut self) {
        self.interrupt.recv().await;
    }
}
