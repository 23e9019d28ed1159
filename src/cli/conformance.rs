//! `etcd-guard conformance`: what the guard promises, tried in a user's own test cluster.
//!
//! It makes a namespace, starts an etcd cluster there, asks in every way for its pods' end, compares the answers with what
//! docs/requesters.md and docs/edge-cases.md promise, and takes all of it away again, whatever happens in between.

mod call;
mod cases;
mod clear;
mod example;
mod report;
mod rights;
mod stage;

use std::{
    io::{BufRead, IsTerminal, Write},
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::{
    call::CALL_LIMIT,
    cases::{Cases, DELETIONS, EVICTIONS},
    example::Wanted,
    report::{Outcome, Report},
    stage::{OWN_LABEL, Stage},
};
use super::{
    client::run,
    reach::{Output, Reach, Reached},
    style::{STRONG, paint},
};
use crate::guard::Survey;

/// Try in a test cluster of yours what the guard promises
///
/// In a namespace of its own, which it makes and deletes again, it starts etcd clusters and asks for their pods' end in
/// every way that does no harm elsewhere. Exit status: 0 if all was answered as it should be, 1 if not, 2 if it could not be
/// tried.
#[derive(Debug, Args)]
pub(super) struct Conformance {
    #[command(flatten)]
    reach: Reach,
    /// Do not ask before anything is made
    #[arg(short, long)]
    yes: bool,
    /// The image of etcd; by default that of etcd-manifests/plain.yaml
    #[arg(long)]
    image: Option<String>,
    /// The class of the members' volumes; by default the cluster's default
    #[arg(long)]
    storage_class: Option<String>,
    /// Longest to wait for members to start or to come back
    #[arg(long, default_value = "5m", value_parser = humantime::parse_duration)]
    wait: Duration,
    /// What to print
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

/// The first of a user's wishes to stop ends the trial, a second one the cleaning up.
struct Stop {
    interrupt: Signal,
    term: Signal,
    /// The terminal is gone.
    hangup: Signal,
}

// === impl Conformance ===

impl Conformance {
    /// Whether all was as it should be.
    pub(super) fn run(self) -> anyhow::Result<bool> {
        run(self.try_all())
    }

    async fn try_all(self) -> anyhow::Result<bool> {
        let output = self.output;
        let name = self.reach.own_namespace().map(str::to_owned);
        let reached = self.reach.clone().connect_within(CALL_LIMIT).await?;
        if !self.yes {
            confirm(&reached, name.as_deref())?;
        }
        let mut stop = Stop::new()?;
        let mut report = Report { server: version(&reached).await?, ..Report::default() };
        // Whose word on members and reservations it takes; about a namespace in which there are none.
        let status = format!("/status?namespace={}", self.reach.guard_namespace());
        reached.get::<Survey>(&status).await.context("asking the guard, before anything is made")?;
        let stage = Stage::set(reached, name.as_deref(), self.wait).await?;
        report.namespace.clone_from(&stage.namespace);
        let played = tokio::select! {
            played = self.play(&stage, &mut report) => played,
            () = stop.asked() => Err(anyhow::anyhow!("stopped before the end")),
        };
        // Whatever becomes of the report, what was made is taken away.
        let printed = print(&report, output).context("printing the report");
        say(&format!("deleting namespace {}", stage.namespace));
        let cleared = tokio::select! {
            cleared = stage.clear() => cleared,
            () = stop.asked_again() => Err(anyhow::anyhow!("stopped")),
        };
        let (namespace, kubectl) = (&stage.namespace, self.reach.kubectl());
        let cleared = cleared.with_context(|| {
            format!(
                "namespace {namespace} is left: {kubectl} label namespace {namespace} etcd-guard.io/guard- && {kubectl} \
                 delete namespace {namespace} (all such: {kubectl} get namespaces -l {}={})",
                OWN_LABEL.0, OWN_LABEL.1
            )
        });
        let mut errors = [played, printed, cleared].into_iter().filter_map(Result::err);
        // What was found wrong stays so, whatever else went wrong.
        if report.count(Outcome::Failed) > 0 {
            errors.for_each(|error| tracing::error!("{error:#}"));
            return Ok(false);
        }
        // Whoever is told why it ended is told of what is left, too.
        let first = errors.next();
        errors.for_each(|error| tracing::error!("{error:#}"));
        first.map_or(Ok(true), Err)
    }

    async fn play(&self, stage: &Stage, report: &mut Report) -> anyhow::Result<()> {
        for webhook in [DELETIONS, EVICTIONS] {
            if let Err(why) = stage.is_asked(webhook).await {
                bail!("the guard is not in force: {why}. Install it first (docs/install.md)");
            }
        }
        say(&format!("an etcd cluster starts in namespace {}", stage.namespace));
        let wanted = Wanted { image: self.image.as_deref(), storage_class: self.storage_class.as_deref() };
        stage.start_cluster(&wanted).await?;
        stage.whole().await?;
        if let Err(answer) = Cases::in_force(stage).await? {
            let (kubectl, namespace) = (self.reach.kubectl(), self.reach.guard_namespace());
            bail!(
                "the guard is not in force: {answer}. See {kubectl} get validatingwebhookconfigurations, and {kubectl} -n \
                 {namespace} get pods"
            );
        }
        Cases { stage, wanted: &wanted, report }.play().await
    }
}

/// Progress, beside the report. Where nobody can read it, all goes on.
fn say(text: &str) {
    let _ = writeln!(anstream::stderr(), "{text}");
}

fn confirm(reached: &Reached, name: Option<&str>) -> anyhow::Result<()> {
    if !std::io::stdin().is_terminal() {
        bail!("nobody can be asked whether to go on: give --yes");
    }
    let namespace = name.unwrap_or("etcd-guard-conformance-*");
    anstream::eprint!(
        "This makes namespace {} in the cluster at {}, with six etcd pods and a volume for five of them, deletes and \
         evicts them, and deletes the namespace with all that is in it. Go on? [y/N] ",
        paint(STRONG, namespace),
        paint(STRONG, &reached.server.to_string())
    );
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    anyhow::ensure!(matches!(answer.trim(), "y" | "Y" | "yes"), "nothing was done");
    Ok(())
}

async fn version(reached: &Reached) -> anyhow::Result<String> {
    let version = reached.client.apiserver_version().await.context("asking the apiserver for its version")?;
    Ok(version.git_version)
}

fn print(report: &Report, output: Output) -> anyhow::Result<()> {
    let mut out = anstream::stdout().lock();
    match output {
        Output::Text if report.rows.is_empty() => {}
        Output::Text => report.write_text(&mut out)?,
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(report)?)?,
    }
    out.flush()?;
    Ok(())
}

// === impl Stop ===

impl Stop {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("SIGINT")?,
            term: signal(SignalKind::terminate()).context("SIGTERM")?,
            hangup: signal(SignalKind::hangup()).context("SIGHUP")?,
        })
    }

    /// Returns at the next wish.
    async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.term.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }

    /// Returns at the next wish of somebody who is there: of a terminal that goes, shell and kernel may both tell, and whoever
    /// started both may end them.
    async fn asked_again(&mut self) {
        self.interrupt.recv().await;
    }
}
