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
use super::guard_flags::{GuardFlags, parse_namespace};
use crate::{durations, guard_client::GuardClient};
use etcd_guard_api::{ClusterStatus, Survey};
use etcd_guard_cli::{
    access::run,
    printing::{Output, print_error, stdout},
};
use etcd_guard_core::{
    escape::{escape_json, to_shell_word},
    objects::data_object::is_subdomain,
};

/// Clears the terminal and moves the cursor to its top.
const CLEAR_SCREEN: &str = "\x1b[H\x1b[2J";

/// Show the guarded etcd clusters: members, quorum, spare voters, reservations and the effective policy
///
/// LAG is the number of raft entries behind the furthest member, DATA what a deletion does to the data of the member. Lines with
/// `!` are problems, lines with `?` are pods that look like etcd and are not recognized. Exits 2 if any part could not be read.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  # All clusters of a namespace, or one of them
  kubectl etcd-guard status -n prod
  kubectl etcd-guard status -n prod etcd

  # Watch all guarded namespaces
  kubectl etcd-guard status -A -w

  # In a script: fail unless every cluster has its quorum
  kubectl etcd-guard status -A --exit-code")]
pub(super) struct Status {
    /// One cluster, by the name of its StatefulSet or other owner; by default all clusters of the namespace
    #[arg(value_name = "[NAMESPACE/]NAME", conflicts_with = "all_namespaces")]
    cluster: Option<ClusterName>,
    #[command(flatten)]
    guard: GuardFlags,
    /// Show all guarded namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Exit with status 1 if a cluster has lost its quorum, or if its state is unknown
    #[arg(long, conflicts_with = "watch")]
    exit_code: bool,
    /// Repeat until interrupted, also after failed refreshes
    #[arg(short, long)]
    watch: bool,
    /// Interval of --watch
    #[arg(long, default_value = "2s", value_parser = durations::parse)]
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
        let (in_name, cluster) = cluster.map_or((None, None), |name| (name.namespace, Some(name.name)));
        if let (Some(in_name), Some(selected)) = (&in_name, selected)
            && *in_name != selected
        {
            bail!("namespace {in_name} of the cluster differs from --namespace {selected}");
        }
        let client = guard.connect().await?;
        let namespace = match in_name {
            Some(in_name) => Some(in_name),
            None if all_namespaces => None,
            None => Some(client.api_server.namespace.clone()),
        };
        let query = Query { client, namespace, cluster };
        // A failure of the first read is final: flags or permissions can be wrong.
        let survey = query.read().await?;
        if watch {
            return query.watch(survey, output, interval).await;
        }
        print(&survey, output)?;
        let mut is_passed = true;
        if exit_code {
            for cluster in survey.clusters.iter().filter(|cluster| !has_quorum(cluster)) {
                let state =
                    if cluster.spare.is_some() { "has lost its quorum" } else { "is in an unknown state" };
                print_error(&anyhow!("cluster {}/{} {state}", cluster.namespace, cluster.name));
                is_passed = false;
            }
        }
        // A cluster without quorum is an answer, also if another cluster could not be read.
        anyhow::ensure!(survey.problems.is_empty() || !is_passed, "the status is incomplete");
        Ok(is_passed)
    }
}

fn has_quorum(cluster: &ClusterStatus) -> bool {
    cluster.spare.is_some_and(|spare| spare >= 0)
}

/// Prints a status once.
fn print(survey: &Survey, output: Output) -> anyhow::Result<()> {
    let mut out = stdout();
    write(survey, output, &mut out)?;
    Ok(out.flush()?)
}

/// Prints one status of many.
fn print_again(survey: &Survey, output: Output) -> anyhow::Result<()> {
    let mut out = stdout();
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
        // The name of a cluster without an owner consists of labels.
        let is_name = is_subdomain(name) || name.contains('=') && !name.contains(char::is_whitespace);
        if !is_name || namespace.is_some_and(|namespace| parse_namespace(namespace).is_err()) {
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
                "spare": spare, "term": null, "members": [], "reservations": [], "policy": [], "problems": [], "traps": [],
            });
            serde_json::from_value::<ClusterStatus>(status).unwrap()
        };
        assert!(has_quorum(&cluster(Some(0))) && has_quorum(&cluster(Some(1))));
        assert!(!has_quorum(&cluster(Some(-1))) && !has_quorum(&cluster(None)));
    }
}
