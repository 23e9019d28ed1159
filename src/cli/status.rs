//! `etcd-guard status`: the current state of the guarded clusters.

use std::{
    io::{IsTerminal, Write},
    time::Duration,
};

use clap::Args;
use tabwriter::TabWriter;
use tokio::time::sleep;

use super::kube_client::{
    guard_flags::{GuardFlags, Output},
    run,
};
use crate::{
    escape::escape_json,
    guard::{ClusterStatus, MemberStatus, RecognitionGap, Role, Survey},
    terminal::{EMPHASIS, FAILURE, SUCCESS, WARNING, paint},
};

/// Clears the terminal and moves the cursor to its top.
const CLEAR_SCREEN: &str = "\x1b[H\x1b[2J";

/// Show the guarded etcd clusters: members, quorum, spare voters, reservations and the effective policy
///
/// Exit status: 1 if the status is incomplete.
#[derive(Debug, Args)]
pub(super) struct Status {
    #[command(flatten)]
    guard: GuardFlags,
    /// Show all guarded namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Repeat until interrupted
    #[arg(short, long)]
    watch: bool,
    /// Interval of --watch
    #[arg(long, default_value = "2s", value_parser = humantime::parse_duration)]
    interval: Duration,
    /// Output format; with --watch, JSON is printed as one line per status
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

// === impl Status ===

impl Status {
    pub(super) fn run(self) -> anyhow::Result<()> {
        run(self.show())
    }

    async fn show(self) -> anyhow::Result<()> {
        let Self { guard, all_namespaces, watch, interval, output } = self;
        let client = guard.connect().await?;
        let path = if all_namespaces {
            String::from("/status")
        } else {
            format!("/status?namespace={}", client.namespace)
        };
        loop {
            let survey: Survey = client.get(&path).await?;
            if watch && output == Output::Text && is_screen() {
                // Bypasses `anstream`, which removes escape sequences if colors are disabled.
                std::io::stdout().write_all(CLEAR_SCREEN.as_bytes())?;
            }
            let mut out = anstream::stdout().lock();
            match output {
                Output::Text => write_text(&survey, &mut out)?,
                Output::Json if watch => writeln!(out, "{}", escape_json(&serde_json::to_string(&survey)?))?,
                Output::Json => {
                    writeln!(out, "{}", escape_json(&serde_json::to_string_pretty(&survey)?))?;
                }
            }
            out.flush()?;
            drop(out);
            if !watch {
                anyhow::ensure!(survey.problems.is_empty(), "the status is incomplete");
                return Ok(());
            }
            sleep(interval).await;
        }
    }
}

/// Returns whether standard output is a terminal that can be cleared.
fn is_screen() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// Writes the status as text. The client has escaped every text in it.
pub(in crate::cli) fn write_text(survey: &Survey, out: &mut impl Write) -> anyhow::Result<()> {
    for cluster in &survey.clusters {
        write_cluster(cluster, out)?;
        writeln!(out)?;
    }
    if survey.clusters.is_empty() && survey.problems.is_empty() {
        writeln!(out, "no etcd cluster found")?;
    }
    for problem in &survey.problems {
        writeln!(out, "{} {problem}", paint(FAILURE, "!"))?;
    }
    for warning in &survey.warnings {
        writeln!(out, "{} {warning}", paint(WARNING, "!"))?;
    }
    for RecognitionGap { text, .. } in &survey.gaps {
        writeln!(out, "{} {text}", paint(WARNING, "?"))?;
    }
    Ok(())
}

fn write_cluster(cluster: &ClusterStatus, out: &mut impl Write) -> anyhow::Result<()> {
    let ClusterStatus { namespace, name, id, members, reservations, policy, problems, .. } = cluster;
    let id = id.as_deref().unwrap_or("unknown");
    let title = paint(EMPHASIS, &format!("{namespace}/{name}"));
    writeln!(out, "{title}  cluster id {id}  {}", quorum_summary(cluster))?;
    let rows = std::iter::once(None).chain(members.iter().map(Some));
    for (line, member) in table(members)?.lines().zip(rows) {
        let line = line.trim_end();
        match member {
            Some(member) if !member.serving && member.role != Role::Learner => {
                writeln!(out, "{}", paint(FAILURE, line))
            }
            Some(member) if member.leaving.is_some() => writeln!(out, "{}", paint(WARNING, line)),
            Some(member) if member.role == Role::Leader => writeln!(out, "{}", paint(EMPHASIS, line)),
            _ => writeln!(out, "{line}"),
        }?;
    }
    for setting in policy {
        let name = setting.name.trim_start_matches("etcd-guard.io/");
        writeln!(out, "  policy {name}: {} ({})", setting.value, setting.from)?;
    }
    for reservation in reservations {
        let title = paint(WARNING, "reserved");
        writeln!(out, "  {title} {} since {}, for {}", reservation.pod, reservation.at, reservation.by)?;
    }
    for problem in problems {
        writeln!(out, "  {} {problem}", paint(FAILURE, "!"))?;
    }
    Ok(())
}

/// Returns a header and a row per member. Without colors, whose codes would count for the width of columns.
fn table(members: &[MemberStatus]) -> anyhow::Result<String> {
    let mut table = TabWriter::new(Vec::new()).padding(2);
    writeln!(table, "  POD\tMEMBER\tROLE\tSTATE\tVERSION\tLAG\tDATA")?;
    for member in members {
        let MemberStatus { pod, id, name, version, storage, lag, .. } = member;
        let dash = |text: &Option<String>| text.clone().unwrap_or_else(|| String::from("-"));
        let label = pod.clone().or_else(|| name.as_ref().map(|name| format!("({name})")));
        let lag = lag.map_or_else(|| String::from("-"), |lag| lag.to_string());
        let (id, role, state) = (dash(id), member.role.as_str(), state(member));
        let (label, version, storage) = (dash(&label), dash(version), dash(storage));
        writeln!(table, "  {label}\t{id}\t{role}\t{state}\t{version}\t{lag}\t{storage}")?;
    }
    Ok(String::from_utf8(table.into_inner()?)?)
}

fn quorum_summary(cluster: &ClusterStatus) -> String {
    let (Some(voters), Some(healthy), Some(quorum), Some(spare)) =
        (cluster.voters, cluster.healthy, cluster.quorum, cluster.spare)
    else {
        return paint(FAILURE, "unknown number of voters");
    };
    let style = match spare {
        ..0 => FAILURE,
        0 => WARNING,
        1.. => SUCCESS,
    };
    let spare = match spare {
        ..0 => format!("{} missing for a quorum", -spare),
        0 => String::from("0 to spare"),
        1.. => format!("{spare} to spare"),
    };
    format!("{voters} voters, {healthy} healthy, quorum {quorum}, {}", paint(style, &spare))
}

fn state(member: &MemberStatus) -> String {
    let state = if member.serving {
        "serving"
    } else if member.version.is_some() {
        "answering"
    } else {
        "silent"
    };
    member.leaving.as_ref().map_or_else(|| state.to_owned(), |leaving| format!("{state}, {leaving}"))
}
