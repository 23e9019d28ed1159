//! `kubectl etcd-guard defrag`: the guard defragments the members of clusters, at the request of the user.

use std::{fmt::Write as _, time::Duration};

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{EventFormat, Target};
use crate::{
    cli::guard_flags::GuardFlags,
    durations,
    guard_client::GuardClient,
    maintenance::{
        reporter::Reporter,
        requests::{Answer, Requested, Subject},
    },
};
use etcd_guard_api::{ClusterStatus, MemberStatus, Role};
use etcd_guard_cli::{access::run, printing::causes};
use etcd_guard_core::etcd::member::{DatabaseSize, mebibytes};

/// The reason of the Event about the end.
const COMPLETED: &str = "DefragmentationCompleted";

/// The reason of the Event about a member that is done.
const DEFRAGMENTED: &str = "Defragmented";

/// The reason of the Event about an early end.
const FAILED: &str = "DefragmentationFailed";

/// Pause between two reads of the Events.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Time for the first answer: the guard waits two minutes for a cluster that cannot spare a member.
const FIRST_ANSWER_LIMIT: Duration = Duration::from_secs(3 * 60);

/// Time between two answers: one member takes ten minutes at most, and five to return.
const ANSWER_LIMIT: Duration = Duration::from_secs(20 * 60);

/// Defragment the members of etcd clusters, one after another, the leader last
///
/// The command writes an annotation; one replica of the guard acts with its own credentials for etcd, and answers with Events. Ctrl-C
/// does not stop it: to stop after the member at work, remove the annotation `etcd-guard.io/defragment`. A member does not answer while
/// etcd copies its data, about 10 s per GB: its livenessProbe must allow that, and for other deletions the guard counts it as gone. All
/// voters must be healthy. Learners are left alone. Clusters of one or two voters, and of etcd 3.5.0 to 3.5.5, are refused. Compact the
/// history first: only free pages are returned. At the end, a NOSPACE alarm is disarmed, unless a member with it is still full or was left alone. Status
/// 1 means that a cluster was not defragmented, or that a member did not answer.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  # Show what each member would free, then defragment
  kubectl etcd-guard defrag statefulset/etcd -n prod --dry-run
  kubectl etcd-guard defrag statefulset/etcd -n prod

  # All guarded clusters, but only members whose file is at least a third free
  kubectl etcd-guard defrag -A --if-fragmented 33%")]
pub(crate) struct Defrag {
    /// A pod of the cluster, or statefulset/NAME
    #[arg(required_unless_present = "all_namespaces", conflicts_with = "all_namespaces")]
    target: Option<Target>,
    #[command(flatten)]
    guard: GuardFlags,
    /// Defragment all guarded clusters, one after another
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Leave members alone whose file has a smaller free share, or less than 1 MiB free
    #[arg(long, value_name = "PERCENT%", default_value = "0%", value_parser = parse_percent)]
    if_fragmented: u8,
    /// Print the plan and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Time for one cluster
    #[arg(long, default_value = "1h", value_parser = durations::parse)]
    timeout: Duration,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: EventFormat,
}

/// The plan for one cluster.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Plan {
    cluster: String,
    /// In the order of the work.
    members: Vec<PlannedMember>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct PlannedMember {
    pod: String,
    role: Role,
    /// Bytes of the file, and those that are free; `None` if the member did not answer.
    database_bytes: Option<u64>,
    free_bytes: Option<u64>,
    is_defragmented: bool,
}

fn parse_percent(text: &str) -> Result<u8, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse().ok();
    number.filter(|percent| *percent <= 100).ok_or_else(|| String::from("expected a percentage such as 30%"))
}

// === impl Defrag ===

impl Defrag {
    /// Returns whether no member is left that has to be defragmented.
    pub(crate) fn run(self) -> anyhow::Result<bool> {
        run(self.request())
    }

    async fn request(self) -> anyhow::Result<bool> {
        let Self { target, guard, all_namespaces, if_fragmented, dry_run, timeout, output } = self;
        let guard = guard.connect().await?;
        let namespace = guard.api_server.namespace.clone();
        let survey = guard.status((!all_namespaces).then_some(namespace.as_str())).await?;
        let clusters: Vec<&ClusterStatus> = match &target {
            None => survey.clusters.iter().collect(),
            Some(target) => survey.clusters.iter().filter(|cluster| target.is_of(cluster)).collect(),
        };
        if let (Some(target), true) = (&target, clusters.is_empty()) {
            bail!(
                "{target} runs no guarded member in namespace {namespace}; list them: kubectl etcd-guard status -n {namespace}"
            );
        }
        let mut reporter = Reporter::new(output == EventFormat::Json);
        for problem in &survey.problems {
            reporter.warn(problem);
        }
        let mut is_complete = survey.problems.is_empty();
        for cluster in clusters {
            let plan = Plan::new(cluster, if_fragmented);
            reporter.plan(&plan.to_string(), &plan)?;
            if plan.members.iter().any(|member| member.database_bytes.is_none()) {
                is_complete = false;
            }
            if dry_run || !(plan.is_needed() || is_out_of_space(cluster)) {
                continue;
            }
            reporter.set_progress(0, plan.steps());
            match defragment(&guard, cluster, &plan, (if_fragmented, timeout), &mut reporter).await {
                Ok(is_done) => is_complete &= is_done,
                Err(error) if all_namespaces => {
                    reporter.aborted(&causes(&error));
                    is_complete = false;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(is_complete)
    }
}

/// Whether a member reports the alarm NOSPACE.
fn is_out_of_space(cluster: &ClusterStatus) -> bool {
    cluster.traps.iter().any(|trap| trap.contains("NOSPACE"))
}

/// Requests the defragmentation of one cluster at each owner of its pods, and prints the answers of the guard. Returns whether all were
/// completed.
async fn defragment(
    guard: &GuardClient,
    cluster: &ClusterStatus,
    plan: &Plan,
    (percent, timeout): (u8, Duration),
    reporter: &mut Reporter,
) -> anyhow::Result<bool> {
    let mut owners: Vec<Subject> = Vec::new();
    let is_asked = |member: &&PlannedMember| member.is_defragmented || !plan.is_needed();
    for member in plan.members.iter().filter(is_asked) {
        let pod = guard.api_server.pod(&cluster.namespace, &member.pod).await?;
        let pod =
            pod.with_context(|| format!("pod {}/{} is gone; try again", cluster.namespace, member.pod))?;
        let owner = Subject::of_pod(&cluster.namespace, &member.pod, &pod);
        // The leader is the last one.
        owners.retain(|known| *known != owner);
        owners.push(owner);
    }
    let detail = if percent == 0 { String::new() } else { format!("{percent}%") };
    let (mut done, mut is_complete) = (0, true);
    for owner in &owners {
        let request = Requested::annotate(guard, owner, "defragment", &detail, None).await?;
        is_complete &= answers(guard, &request, (plan.steps(), &mut done), timeout, reporter).await?;
    }
    Ok(is_complete)
}

/// Prints the answers to a request until its end. Returns whether it was completed.
async fn answers(
    guard: &GuardClient,
    request: &Requested<'_>,
    (total, done): (usize, &mut usize),
    timeout: Duration,
    reporter: &mut Reporter,
) -> anyhow::Result<bool> {
    let (started, mut heard) = (Instant::now(), Instant::now());
    let mut shown: Vec<Answer> = Vec::new();
    loop {
        let failure = match request.answers(guard).await {
            Ok(answers) => {
                for answer in answers {
                    if shown.contains(&answer) {
                        continue;
                    }
                    heard = Instant::now();
                    match answer.reason.as_str() {
                        COMPLETED => {
                            reporter.complete(&answer.text);
                            return Ok(true);
                        }
                        FAILED => {
                            reporter.aborted(&answer.text);
                            return Ok(false);
                        }
                        reason => {
                            *done += usize::from(reason == DEFRAGMENTED);
                            reporter.set_progress((*done).min(total), total);
                            reporter.progress(&answer.text);
                        }
                    }
                    shown.push(answer);
                }
                None
            }
            Err(failure) => Some(failure),
        };
        if shown.is_empty() && heard.elapsed() >= FIRST_ANSWER_LIMIT {
            return Err(request.unanswered(&durations::text(FIRST_ANSWER_LIMIT), failure.as_ref()));
        }
        if started.elapsed() >= timeout || heard.elapsed() >= ANSWER_LIMIT {
            bail!("the guard has not finished; see its Events, and repeat the command: kubectl get events");
        }
        sleep(POLL_INTERVAL).await;
    }
}

// === impl Plan ===

impl Plan {
    fn new(cluster: &ClusterStatus, percent: u8) -> Self {
        let member = |member: &MemberStatus| {
            let (bytes, free) = (member.database_bytes, member.free_bytes);
            let size = |(bytes, free): (u64, u64)| DatabaseSize {
                bytes,
                in_use: bytes.saturating_sub(free),
                quota: 0,
            };
            Some(PlannedMember {
                pod: member.pod.clone()?,
                role: member.role,
                database_bytes: bytes,
                free_bytes: free,
                is_defragmented: member.role != Role::Learner
                    && bytes.zip(free).map(size).is_some_and(|size| size.is_fragmented(percent)),
            })
        };
        let mut members: Vec<PlannedMember> = cluster.members.iter().filter_map(member).collect();
        members.sort_by(|one, other| {
            let rank = |member: &PlannedMember| (!member.is_defragmented, member.role == Role::Leader);
            rank(one).cmp(&rank(other)).then_with(|| one.pod.cmp(&other.pod))
        });
        Self { cluster: format!("{}/{}", cluster.namespace, cluster.name), members }
    }

    /// The number of members to defragment.
    fn steps(&self) -> usize {
        self.members.iter().filter(|member| member.is_defragmented).count()
    }

    fn is_needed(&self) -> bool {
        self.steps() > 0
    }
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.cluster)?;
        for (index, member) in self.members.iter().enumerate() {
            let PlannedMember { pod, role, database_bytes, free_bytes, is_defragmented } = member;
            let mut line = match is_defragmented {
                true => format!("\n  {}. {pod}: ", index + 1),
                false => format!("\n  -  {pod}: "),
            };
            match database_bytes.zip(*free_bytes) {
                Some((bytes, free)) => write!(line, "{} of {} free", mebibytes(free), mebibytes(bytes))?,
                None => line.push_str("does not answer"),
            }
            match (is_defragmented, role) {
                (true, Role::Leader) => line.push_str(", leader: leadership moves first"),
                (true, _) => {}
                (false, _) => line.push_str(", left alone"),
            }
            f.write_str(&line)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maintenance::health::tests::cluster;

    const MIB: u64 = 1 << 20;

    #[test]
    fn plan_has_the_leader_last_and_leaves_the_rest_alone() {
        let mut cluster = cluster();
        for (member, free) in cluster.members.iter_mut().zip([60, 60, 10]) {
            (member.database_bytes, member.free_bytes) = (Some(100 * MIB), Some(free * MIB));
        }
        cluster.members[0].role = Role::Leader;
        cluster.members[1].role = Role::Follower;
        assert_eq!(
            Plan::new(&cluster, 30).to_string(),
            "prod/etcd\n  1. etcd-1: 60.0 MiB of 100.0 MiB free\n  2. etcd-0: 60.0 MiB of 100.0 MiB free, leader: leadership \
             moves first\n  -  etcd-2: 10.0 MiB of 100.0 MiB free, left alone"
        );
        cluster.members[2].database_bytes = None;
        let plan = Plan::new(&cluster, 0).to_string();
        assert!(plan.ends_with("\n  -  etcd-2: does not answer, left alone"), "{plan}");
    }

    #[test]
    fn percentages_are_whole_numbers() {
        assert_eq!((parse_percent("30%"), parse_percent("30")), (Ok(30), Ok(30)));
        for wrong in ["101%", "-1", "3.5", "%", ""] {
            assert_eq!(parse_percent(wrong).unwrap_err(), "expected a percentage such as 30%", "{wrong}");
        }
    }
}
