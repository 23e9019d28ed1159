//! The table of `status`.

use std::io::Write;

use tabwriter::TabWriter;

use crate::durations::ago;
use etcd_guard_api::{BackupStatus, ClusterStatus, MemberStatus, RecognitionGap, Role, Survey};
use etcd_guard_cli::{
    printing::NONE,
    terminal::{EMPHASIS, FAILURE, SUCCESS, WARNING, paint},
};

/// Writes the status as text, with the addresses of members if `is_wide`. The client has escaped every text in it.
pub(crate) fn write_text(survey: &Survey, is_wide: bool, out: &mut impl Write) -> anyhow::Result<()> {
    for cluster in &survey.clusters {
        write_cluster(cluster, is_wide, out)?;
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

fn write_cluster(cluster: &ClusterStatus, is_wide: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let ClusterStatus {
        namespace,
        name,
        id,
        members,
        reservations,
        policy,
        problems,
        traps,
        last_backup,
        ..
    } = cluster;
    let id = id.as_deref().unwrap_or("unknown");
    let title = paint(EMPHASIS, &format!("{namespace}/{name}"));
    writeln!(out, "{title}  cluster id {id}  {}", quorum_summary(cluster))?;
    let rows = std::iter::once(None).chain(members.iter().map(Some));
    for (line, member) in table(members, is_wide)?.lines().zip(rows) {
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
    if let Some(BackupStatus { at, revision }) = last_backup {
        writeln!(out, "  last backup {}, revision {revision}", ago(at))?;
    }
    for reservation in reservations {
        let title = paint(WARNING, "reserved");
        writeln!(out, "  {title} {} since {}, for {}", reservation.pod, reservation.at, reservation.by)?;
    }
    for problem in problems {
        writeln!(out, "  {} {problem}", paint(FAILURE, "!"))?;
    }
    for trap in traps {
        writeln!(out, "  {} {trap}", paint(WARNING, "!"))?;
    }
    Ok(())
}

/// Returns a header and a row per member. Without colors, whose codes would count for the width of columns.
fn table(members: &[MemberStatus], is_wide: bool) -> anyhow::Result<String> {
    let mut table = TabWriter::new(Vec::new()).padding(3);
    let address_title = if is_wide { "\tADDRESS" } else { "" };
    writeln!(table, "  POD\tMEMBER\tROLE\tSTATE\tVERSION\tLAG\tDATA{address_title}")?;
    for member in members {
        let MemberStatus { pod, id, name, version, storage, lag, .. } = member;
        let cell = |text: &Option<String>| text.clone().unwrap_or_else(|| String::from(NONE));
        let label = pod.clone().or_else(|| name.as_ref().map(|name| format!("({name})")));
        let lag = lag.map_or_else(|| String::from(NONE), |lag| lag.to_string());
        let (id, role, state) = (cell(id), member.role.as_str(), state(member));
        let (label, version, storage) = (cell(&label), cell(version), cell(storage));
        let address = if is_wide { format!("\t{}", cell(&member.address)) } else { String::new() };
        writeln!(table, "  {label}\t{id}\t{role}\t{state}\t{version}\t{lag}\t{storage}{address}")?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_three_blanks_and_unknown_cells_none() {
        let leader = MemberStatus {
            pod: Some(String::from("etcd-0")),
            id: Some(String::from("8e9e05c52164694d")),
            role: Role::Leader,
            serving: true,
            version: Some(String::from("3.6.16")),
            lag: Some(0),
            storage: Some(String::from("persistent")),
            ..MemberStatus::default()
        };
        let silent = MemberStatus { pod: Some(String::from("etcd-10")), ..MemberStatus::default() };
        let expected = [
            "  POD       MEMBER             ROLE      STATE     VERSION   LAG      DATA         ADDRESS",
            "  etcd-0    8e9e05c52164694d   leader    serving   3.6.16    0        persistent   <none>",
            "  etcd-10   <none>             unknown   silent    <none>    <none>   <none>       <none>",
        ];
        assert_eq!(table(&[leader, silent], true).unwrap().lines().collect::<Vec<_>>(), expected);
    }
}
