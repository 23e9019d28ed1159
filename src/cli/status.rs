//! `etcd-guard status`: the guarded clusters as they are now.

use std::{
    io::{IsTerminal, Write},
    time::Duration,
};

use clap::Args;
use tabwriter::TabWriter;
use tokio::time::sleep;

use super::{
    client::run,
    reach::{Output, Reach},
    style::{BAD, GOOD, ODD, STRONG, paint},
};
use crate::guard::{ClusterStatus, MemberStatus, Role, Survey};

/// Clears the terminal and begins at its top.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Show the guarded etcd clusters: members, quorum, spare voters, reservations and the policy in force
///
/// Exit status: 1 if something could not be looked at.
#[derive(Debug, Args)]
pub(super) struct Status {
    #[command(flatten)]
    reach: Reach,
    /// All namespaces that are guarded
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Show it again and again
    #[arg(short, long)]
    watch: bool,
    /// How long to wait in between
    #[arg(long, default_value = "2s", value_parser = humantime::parse_duration)]
    interval: Duration,
    /// What to print; with --watch, JSON comes as one line each
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

// === impl Status ===

impl Status {
    pub(super) fn run(self) -> anyhow::Result<()> {
        run(self.show())
    }

    async fn show(self) -> anyhow::Result<()> {
        let Self { reach, all_namespaces, watch, interval, output } = self;
        let reached = reach.connect().await?;
        let path = if all_namespaces {
            String::from("/status")
        } else {
            format!("/status?namespace={}", reached.namespace)
        };
        loop {
            let survey: Survey = reached.get(&path).await?;
            if watch && output == Output::Text && is_screen() {
                // Not by way of `anstream`: whoever wants no colours wants the table in its place all the same.
                std::io::stdout().write_all(CLEAR.as_bytes())?;
            }
            let mut out = anstream::stdout().lock();
            match output {
                Output::Text => write_text(&survey, &mut out)?,
                Output::Json if watch => writeln!(out, "{}", serde_json::to_string(&survey)?)?,
                Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&survey)?)?,
            }
            out.flush()?;
            drop(out);
            if !watch {
                anyhow::ensure!(survey.problems.is_empty(), "not all was looked at");
                return Ok(());
            }
            sleep(interval).await;
        }
    }
}

/// Whether what is written appears on something that can be cleared.
fn is_screen() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("TERM").is_some_and(|it| it != "dumb")
}

fn write_text(survey: &Survey, out: &mut impl Write) -> anyhow::Result<()> {
    for cluster in &survey.clusters {
        write_cluster(cluster, out)?;
        writeln!(out)?;
    }
    if survey.clusters.is_empty() && survey.problems.is_empty() {
        writeln!(out, "no etcd cluster is there")?;
    }
    for problem in &survey.problems {
        writeln!(out, "{} {problem}", paint(BAD, "!"))?;
    }
    Ok(())
}

fn write_cluster(cluster: &ClusterStatus, out: &mut impl Write) -> anyhow::Result<()> {
    let ClusterStatus { namespace, name, id, members, reservations, policy, problems, .. } = cluster;
    let id = id.as_deref().unwrap_or("unknown");
    let title = paint(STRONG, &format!("{namespace}/{name}"));
    writeln!(out, "{title}  cluster id {id}  {}", numbers(cluster))?;
    let rows = std::iter::once(None).chain(members.iter().map(Some));
    for (line, member) in table(members)?.lines().zip(rows) {
        let line = line.trim_end();
        match member {
            Some(it) if !it.serving && it.role != Role::Learner => writeln!(out, "{}", paint(BAD, line)),
            Some(it) if it.leaving.is_some() => writeln!(out, "{}", paint(ODD, line)),
            Some(it) if it.role == Role::Leader => writeln!(out, "{}", paint(STRONG, line)),
            _ => writeln!(out, "{line}"),
        }?;
    }
    for setting in policy {
        let name = setting.name.trim_start_matches("etcd-guard.io/");
        writeln!(out, "  policy {name}: {} ({})", setting.value, setting.from)?;
    }
    for it in reservations {
        writeln!(out, "  {} {} since {}, for {}", paint(ODD, "reserved"), it.pod, it.at, it.by)?;
    }
    for problem in problems {
        writeln!(out, "  {} {problem}", paint(BAD, "!"))?;
    }
    Ok(())
}

/// A line of titles, and one per member. Without colours, which would count as letters.
fn table(members: &[MemberStatus]) -> anyhow::Result<String> {
    let mut table = TabWriter::new(Vec::new()).padding(2);
    writeln!(table, "  POD\tMEMBER\tROLE\tSTATE\tVERSION\tLAG\tDATA")?;
    for member in members {
        let MemberStatus { pod, id, name, version, storage, lag, .. } = member;
        let dash = |text: &Option<String>| text.clone().unwrap_or_else(|| String::from("-"));
        let who = pod.clone().or_else(|| name.as_ref().map(|name| format!("({name})")));
        let lag = lag.map_or_else(|| String::from("-"), |lag| lag.to_string());
        let (id, role, state) = (dash(id), member.role.word(), state(member));
        let (who, version, storage) = (dash(&who), dash(version), dash(storage));
        writeln!(table, "  {who}\t{id}\t{role}\t{state}\t{version}\t{lag}\t{storage}")?;
    }
    Ok(String::from_utf8(table.into_inner()?)?)
}

fn numbers(cluster: &ClusterStatus) -> String {
    let (Some(voters), Some(healthy), Some(quorum), Some(spare)) =
        (cluster.voters, cluster.healthy, cluster.quorum, cluster.spare)
    else {
        return paint(BAD, "its voters cannot be counted");
    };
    let style = match spare {
        ..0 => BAD,
        0 => ODD,
        1.. => GOOD,
    };
    let spare = match spare {
        ..0 => format!("{} short of a quorum", -spare),
        0 => String::from("none to spare"),
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
