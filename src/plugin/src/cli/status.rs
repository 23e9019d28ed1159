//! `kubectl etcd-guard status`: the current state of the guarded clusters.

pub(crate) mod table;

use std::{
    io::{IsTerminal, Write},
    str::FromStr,
    time::Duration,
};

use anyhow::{anyhow, bail};
use clap::Args;
use tokio::time::sleep;

use self::table::write_text;
use super::guard_flags::GuardFlags;
use crate::guard_client::GuardClient;
use etcd_guard_api::{ClusterStatus, Survey};
use etcd_guard_cli::{
    access::run,
    printing::{Output, print_error},
};
use etcd_guard_core::escape::{escape_json, to_shell_word};

/// Clears the terminal and moves the cursor to its top.
const CLEAR_SCREEN: &str = "\x1b[H\x1b[2J";

/// Show the guarded etcd clusters: members, quorum, spare voters, reservations and the effective policy
///
/// Exit status: 0 if the status was read, 1 if it is incomplete or, with --exit-code, if a cluster has lost its quorum or its
/// state is unknown, 2 if the status could not be read or the cluster does not exist.
#[derive(Debug, Args)]
pub(super) struct Status {
    /// One cluster, by the name of its StatefulSet or other owner; by default all clusters of the namespace
    #[arg(value_name = "[NAMESPACE/]NAME", conflicts_with = "all_namespaces")]
    cluster: Option<ClusterName>,
    #[command(flatten)]
    guard: GuardFlags,
    /// Show all guarded namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Exit with status 1 if a cluster has lost its quorum or its state is unknown
    #[arg(long, conflicts_with = "watch")]
    exit_code: bool,
    /// Repeat until interrupted, also after failed refreshes
    #[arg(short, long)]
    watch: bool,
    /// Interval of --watch
    #[arg(long, default_value = "2s", value_parser = humantime::parse_duration)]
    interval: Duration,
    /// Output format; with --watch, JSON is printed as one line per status and YAML as one document per status
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

/// The name of a cluster, and its namespace if the user named one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ClusterName {
    namespace: Option<String>,
    name: String,
}

/// The selected clusters of one guard.
struct Query {
    client: GuardClient,
    /// `None` selects all guarded namespaces.
    namespace: Option<String>,
    /// `None` selects all clusters.
    cluster: Option<String>,
}

// === impl Status ===

impl Status {
    /// Prints the status. Returns whether it is complete and, if `--exit-code` is set, all clusters have a quorum.
    pub(super) fn run(self) -> anyhow::Result<bool> {
        run(self.show())
    }

    async fn show(self) -> anyhow::Result<bool> {
        let Self { cluster, guard, all_namespaces, exit_code, watch, interval, output } = self;
        let selected = guard.namespace_flag().map(str::to_owned);
        let client = guard.connect().await?;
        let (in_name, cluster) = cluster.map_or((None, None), |name| (name.namespace, Some(name.name)));
        let namespace = match (in_name, selected) {
            (Some(in_name), Some(selected)) if in_name != selected => {
                bail!("namespace {in_name} of the cluster differs from --namespace {selected}");
            }
            (Some(in_name), _) => Some(in_name),
            (None, _) if all_namespaces => None,
            (None, _) => Some(client.api_server.namespace.clone()),
        };
        let query = Query { client, namespace, cluster };
        // A failure of the first read is final: flags or permissions can be wrong.
        let survey = query.read().await?;
        if watch {
            return query.watch(survey, output, interval).await;
        }
        print(&survey, output)?;
        let mut is_passed = survey.problems.is_empty();
        if !is_passed {
            print_error(&anyhow!("the status is incomplete"));
        }
        if exit_code {
            for cluster in survey.clusters.iter().filter(|cluster| !has_quorum(cluster)) {
                let state =
                    if cluster.spare.is_some() { "has lost its quorum" } else { "is in an unknown state" };
                print_error(&anyhow!("cluster {}/{} {state}", cluster.namespace, cluster.name));
                is_passed = false;
            }
        }
        Ok(is_passed)
    }
}

fn has_quorum(cluster: &ClusterStatus) -> bool {
    cluster.spare.is_some_and(|spare| spare >= 0)
}

/// Prints a status once.
fn print(survey: &Survey, output: Output) -> anyhow::Result<()> {
    let mut out = anstream::stdout().lock();
    write(survey, output, &mut out)?;
    Ok(out.flush()?)
}

/// Prints one status of many.
fn print_again(survey: &Survey, output: Output) -> anyhow::Result<()> {
    let mut out = anstream::stdout().lock();
    match output {
        Output::Json => writeln!(out, "{}", escape_json(&serde_json::to_string(survey)?))?,
        Output::Yaml => {
            writeln!(out, "---")?;
            write(survey, output, &mut out)?;
        }
        Output::Table | Output::Wide | Output::Name => write(survey, output, &mut out)?,
    }
    Ok(out.flush()?)
}

/// Writes a status.
pub(crate) fn write(survey: &Survey, output: Output, out: &mut impl Write) -> anyhow::Result<()> {
    match output {
        Output::Table | Output::Wide => write_text(survey, output == Output::Wide, out)?,
        Output::Name => {
            for ClusterStatus { namespace, name, .. } in &survey.clusters {
                writeln!(out, "{namespace}/{name}")?;
            }
        }
        Output::Json | Output::Yaml => {
            output.write_document(survey, out)?;
        }
    }
    Ok(())
}

/// Returns whether standard output is a terminal that can be cleared.
fn is_screen() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

// === impl Query ===

impl Query {
    /// Reads the selected clusters. A selected cluster that does not exist is an error.
    async fn read(&self) -> anyhow::Result<Survey> {
        let mut survey: Survey = self.client.status(self.namespace.as_deref()).await?;
        let Some(name) = &self.cluster else { return Ok(survey) };
        survey.clusters.retain(|cluster| cluster.name == *name);
        if survey.clusters.is_empty() {
            let namespace = self.namespace.as_deref().unwrap_or_default();
            let incomplete = survey.problems.first().map(|problem| format!(" ({problem})"));
            bail!(
                "no etcd cluster {name} was found in namespace {namespace}{}; list the clusters: {} -n {}",
                incomplete.unwrap_or_default(),
                self.client.api_server.command("status"),
                to_shell_word(namespace)
            );
        }
        Ok(survey)
    }

    /// Prints the status at this interval until the process is interrupted. After a failed refresh, the last status remains
    /// on the screen.
    async fn watch(&self, mut survey: Survey, output: Output, interval: Duration) -> anyhow::Result<bool> {
        let mut failure = None;
        loop {
            let is_redrawn = matches!(output, Output::Table | Output::Wide) && is_screen();
            if is_redrawn {
                // Bypasses `anstream`, which removes escape sequences if colors are disabled.
                std::io::stdout().write_all(CLEAR_SCREEN.as_bytes())?;
            }
            if is_redrawn || failure.is_none() {
                print_again(&survey, output)?;
            }
            if let Some(error) = &failure {
                print_error(error);
            }
            sleep(interval).await;
            failure = match self.read().await {
                Ok(refreshed) => {
                    survey = refreshed;
                    None
                }
                Err(error) => Some(error),
            };
        }
    }
}

// === impl ClusterName ===

impl FromStr for ClusterName {
    type Err = String;

    /// Parses `NAME` or `NAMESPACE/NAME`. The name of a cluster without an owner consists of labels, which can contain a
    /// slash: the name of a namespace has no dot and no equals sign.
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').filter(|(namespace, _)| !namespace.contains(['.', '=']));
        let (namespace, name) = parts.map_or((None, text), |(namespace, name)| (Some(namespace), name));
        if name.is_empty() || namespace == Some("") {
            return Err(String::from("expected NAME or NAMESPACE/NAME"));
        }
        Ok(Self { namespace: namespace.map(str::to_owned), name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_is_named_with_and_without_namespace() {
        let parse =
            |text: &str| text.parse::<ClusterName>().map(|ClusterName { namespace, name }| (namespace, name));
        assert_eq!(parse("etcd"), Ok((None, String::from("etcd"))));
        assert_eq!(parse("prod/etcd"), Ok((Some(String::from("prod")), String::from("etcd"))));
        assert_eq!(
            parse("app.kubernetes.io/name=etcd"),
            Ok((None, String::from("app.kubernetes.io/name=etcd")))
        );
        assert!(parse("prod/").is_err() && parse("/etcd").is_err() && parse("").is_err());
    }

    #[test]
    fn clusters_without_majority_or_numbers_have_no_quorum() {
        let cluster = |spare: Option<i64>| {
            let status = serde_json::json!({
                "namespace": "prod", "name": "etcd", "id": null, "voters": null, "healthy": null, "quorum": null,
                "spare": spare, "term": null, "members": [], "reservations": [], "policy": [], "problems": [],
            });
            serde_json::from_value::<ClusterStatus>(status).unwrap()
        };
        assert!(has_quorum(&cluster(Some(0))) && has_quorum(&cluster(Some(1))));
        assert!(!has_quorum(&cluster(Some(-1))) && !has_quorum(&cluster(None)));
    }
}
