//! `kubectl etcd-guard restore`: starts all members of a StatefulSet from one backup.

use std::{
    fmt,
    io::{IsTerminal as _, Write as _},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use clap::Args;
use futures::future::join_all;
use k8s_openapi::api::apps::v1::StatefulSet;
use serde::Serialize;
use tokio::time::timeout;

use super::{EventFormat, backup, interrupted};
use crate::{
    api_server::ApiServer,
    cli::guard_flags::{GuardFlags, stateful_set},
    durations,
    guard_client::GuardClient,
    maintenance::{
        backup::{
            destination::{Choice, Stem},
            is_corrupt, source as member_source,
        },
        reporter::Reporter,
        restart::ownership::{Manager, managers},
        restore::{
            layout::{Layout, Member, Overrides},
            pod::{BUMP, Means, former},
            record::{Phase, RESTORE, Record},
            run::{OVERRULED, Run, id, replicas},
            source::{self, Backup},
        },
    },
};
use etcd_guard_api::ClusterStatus;
use etcd_guard_cli::{access::run, printing::causes};
use etcd_guard_core::{escape::to_shell_word, etcd::member::mebibytes};

/// Time for the revision of a member that may not run.
const REVISION_LIMIT: Duration = Duration::from_secs(10);

/// Restore all members of a StatefulSet from one backup, after the quorum is lost for good
///
/// All writes since the backup are lost. The command shows the revision of the backup and those of running members, and asks for the name
/// of the cluster. Then it overrules the guard (at most two hours after each phase begins), stops all members, and sends the backup to
/// a pod at each volume. There, `etcdutl` (3.5.10 or later) restores it, and raises the revision by 1,000,000,000 so that no client sees
/// it go back. Then the members start. The old data stays in
/// `member.before-TIME` in each data directory: each volume needs room for the old data and twice the backup. The template does not
/// change. An annotation keeps the state: after an interruption, run the command again with the same backup. Without FROM, it first saves
/// a backup of the running member with the highest revision to the current directory. Exit status 1: not confirmed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  # Show what would be lost, then restore the newest backup in a directory
  kubectl etcd-guard restore statefulset/etcd /backup/ -n prod --dry-run
  kubectl etcd-guard restore statefulset/etcd /backup/ -n prod

  # From S3, in a cluster without access to Docker Hub
  kubectl etcd-guard restore statefulset/etcd s3://backups/prod -n prod --shell-image registry.example.com/busybox:1.37

  # No backup, but one member of three runs
  kubectl etcd-guard restore statefulset/etcd -n prod

  # No member runs: a database copied from the volume of one
  kubectl etcd-guard restore statefulset/etcd ./db --skip-hash-check -n prod")]
#[allow(clippy::struct_excessive_bools, reason = "the flags are independent")]
pub(crate) struct Restore {
    /// statefulset/NAME
    #[arg(value_parser = stateful_set)]
    target: String,
    /// A file, or the newest backup in a directory or under `s3://BUCKET/PREFIX`
    #[arg(value_name = "FROM")]
    from: Option<Choice>,
    #[command(flatten)]
    guard: GuardFlags,
    /// Print the plan and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Confirm without a terminal
    #[arg(long, value_name = "NAMESPACE/NAME")]
    confirm: Option<String>,
    /// The operator or the GitOps controller that manages the StatefulSet is paused, and stays so until the end
    #[arg(long)]
    paused: bool,
    /// Restore although the cluster has its quorum, and lose what was written since the backup
    #[arg(long)]
    despite_quorum: bool,
    /// The backup is a database copied from a volume (`member/snap/db`), which has no hash
    #[arg(long, requires = "from")]
    skip_hash_check: bool,
    /// An image with `sh`, `head`, `mv` and `sha256sum`
    #[arg(long, value_name = "IMAGE", default_value = "busybox:1.37")]
    shell_image: String,
    /// An image with `etcdutl`; by default that of the members
    #[arg(long)]
    image: Option<String>,
    /// The value of etcd's flag; by default that in the template
    #[arg(long, value_name = "NAME=URL,...")]
    initial_cluster: Option<String>,
    /// The value of etcd's flag; by default that in the template
    #[arg(long, value_name = "TOKEN")]
    initial_cluster_token: Option<String>,
    /// The value of etcd's flag; by default that in the template
    #[arg(long, value_name = "DIRECTORY")]
    data_dir: Option<String>,
    /// The user of the members' image, if the template forbids root and names no user
    #[arg(long, value_name = "UID")]
    run_as_user: Option<i64>,
    /// Time for each wait
    #[arg(long, default_value = "30m", value_parser = durations::parse)]
    timeout: Duration,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: EventFormat,
}

/// What the command will do.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Plan {
    cluster: String,
    backup: String,
    bytes: u64,
    sha256: String,
    /// The revision of the backup, from its name.
    revision: Option<u64>,
    /// The time of the backup, from its name.
    time: Option<String>,
    /// The members that answer.
    running: Vec<Running>,
    phase: Phase,
    volumes: Vec<Volume>,
}

/// A member that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Running {
    pod: String,
    revision: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    pod: String,
    claim: String,
    old_data: String,
}

// === impl Restore ===

impl Restore {
    /// Returns whether the cluster was restored, or in a dry run can be.
    pub(crate) fn run(self) -> anyhow::Result<bool> {
        run(self.restore())
    }

    async fn restore(self) -> anyhow::Result<bool> {
        let overrides = Overrides {
            image: self.image.clone(),
            data_dir: self.data_dir.clone(),
            initial_cluster: self.initial_cluster.clone(),
            token: self.initial_cluster_token.clone(),
            user: self.run_as_user,
        };
        let guard = self.guard.clone().connect().await?;
        let api_server = &guard.api_server;
        let (namespace, name) = (&api_server.namespace, &self.target);
        let mut reporter = Reporter::new(self.output == EventFormat::Json);
        let set = api_server.stateful_set(namespace, name).await?;
        let former_record = Record::read(&set)?;
        let replicas = former_record.as_ref().map_or_else(|| replicas(&set), |record| record.replicas);
        let layout = Layout::read(&set, Some(replicas).filter(|replicas| *replicas > 0), &overrides)?;
        let running = revisions(api_server, &layout.members).await;
        self.check_managers(&set, &mut reporter)?;
        let is_starting = former_record.as_ref().is_some_and(|record| record.phase == Phase::Starting);
        // Members that start from the backup have a quorum before all are ready.
        let cluster = if is_starting {
            None
        } else {
            self.check_quorum(&guard, &layout, &running, &mut reporter).await?
        };
        let again = |file: &str| {
            format!(
                "{} -n {namespace} statefulset/{name} {}",
                api_server.command("restore"),
                to_shell_word(file)
            )
        };
        let from = match (&self.from, &former_record) {
            (Some(from), _) => from.clone(),
            (None, Some(record)) => {
                bail!("a restoration has begun; continue it with its backup: {}", again(&record.backup))
            }
            (None, None) => self.save(&running, cluster.as_ref(), &mut reporter).await?,
        };
        let stem = Stem::new(namespace, name);
        let backup = source::find(&from, &stem, self.skip_hash_check, &mut reporter).await?;
        let mut record = match former_record {
            Some(record) if is_starting && record.sha256 != backup.sha256 => bail!(
                "a restoration of another backup (sha256 {}) is starting the members. To finish it: {}. Only then restore this one",
                record.sha256,
                again(&record.backup)
            ),
            Some(record) => record,
            None => Record::new(&set, i32::try_from(layout.members.len())?, id()),
        };
        record.sha256.clone_from(&backup.sha256);
        record.backup = backup.path.display().to_string();
        let plan = plan(&layout, &backup, running, &record);
        let means = Means {
            shell_image: &self.shell_image,
            backup_bytes: backup.bytes,
            skips_hash: self.skip_hash_check,
        };
        let annotations = set.metadata.annotations.as_ref();
        let written = annotations.and_then(|annotations| annotations.get(RESTORE)).cloned();
        reporter.plan(&plan.to_string(), &plan)?;
        let (api_server, layout, backup, limit) = (&guard.api_server, &layout, &backup, self.timeout);
        let mut run = Run { api_server, layout, backup, record, written, means, limit, reporter };
        if !is_starting {
            run.try_pods().await?;
        }
        if self.dry_run {
            return Ok(true);
        }
        if !self.is_confirmed(&plan)? {
            run.reporter.aborted("not confirmed; this run changed nothing");
            return Ok(false);
        }
        let ended = tokio::select! {
            ended = Box::pin(run.run()) => ended,
            () = interrupted() => Err(anyhow::anyhow!("it was interrupted")),
        };
        let continues = again(&run.record.backup);
        ended.with_context(|| {
            format!("{} is not restored; to continue, with the same flags: {continues}", plan.cluster)
        })?;
        if is_starting {
            run.reporter.complete(&format!(
                "the restoration of {} that began at {} is complete; no other one was started",
                plan.cluster, run.record.id
            ));
            return Ok(true);
        }
        run.reporter.complete(&plan.completion(&run.record));
        Ok(true)
    }

    /// Returns an error for a controller that would start the members during the restoration.
    fn check_managers(&self, set: &StatefulSet, reporter: &mut Reporter) -> anyhow::Result<()> {
        let name = &self.target;
        for manager in managers(set) {
            match &manager {
                Manager::Owner { .. } | Manager::GitOps(_) if !self.paused => bail!(
                    "{manager} manages StatefulSet {name}, and would start the members while their volumes change: pause it, then pass \
                     --paused"
                ),
                Manager::Owner { .. } | Manager::GitOps(_) => {
                    reporter.warn(&format!("{manager} manages StatefulSet {name}: it must be paused"));
                }
                Manager::Tool(tool) => {
                    reporter.warn(&format!("{tool} manages StatefulSet {name}; do not run it meanwhile"));
                }
            }
        }
        Ok(())
    }

    /// Returns an error if the cluster has its quorum, or may have it. Returns what the guard says of the cluster.
    async fn check_quorum(
        &self,
        guard: &GuardClient,
        layout: &Layout,
        running: &[Running],
        reporter: &mut Reporter,
    ) -> anyhow::Result<Option<ClusterStatus>> {
        let namespace = &guard.api_server.namespace;
        let is_here = |cluster: &ClusterStatus| cluster.name.split(',').any(|name| *name == self.target);
        let cluster = match guard.status(Some(namespace)).await {
            Ok(survey) => survey.clusters.into_iter().find(is_here),
            Err(error) => {
                reporter
                    .warn(&format!("the guard does not tell whether the quorum is lost: {}", causes(&error)));
                None
            }
        };
        let counts =
            cluster.as_ref().and_then(|cluster| Some((cluster.voters?, cluster.healthy?, cluster.quorum?)));
        let (answering, total) = (running.len(), layout.members.len());
        let evidence = match counts {
            Some((voters, healthy, quorum)) => {
                (healthy >= quorum).then(|| format!("{healthy} of {voters} voters are healthy"))
            }
            None => (2 * answering > total).then(|| format!("{answering} of {total} members answer")),
        };
        if let Some(evidence) = evidence.filter(|_| !self.despite_quorum) {
            bail!(
                "{namespace}/{} may have its quorum: {evidence}. A restoration loses all writes since the backup. To do it nevertheless: \
                 --despite-quorum",
                self.target
            );
        }
        Ok(cluster)
    }

    /// Saves a backup of the running member with the highest revision.
    async fn save(
        &self,
        running: &[Running],
        cluster: Option<&ClusterStatus>,
        reporter: &mut Reporter,
    ) -> anyhow::Result<Choice> {
        let is_intact = |member: &&Running| {
            let members =
                cluster.iter().flat_map(|cluster| cluster.members.iter().map(move |found| (cluster, found)));
            let mut found = members.filter(|(_, found)| found.pod.as_ref() == Some(&member.pod));
            !found.any(|(cluster, found)| is_corrupt(cluster, found))
        };
        let best = running.iter().filter(is_intact).max_by_key(|member| member.revision).with_context(|| {
            format!(
                "no intact member of StatefulSet {} answers (with a password, none does without a quorum): name a backup, or copy \
                 member/snap/db from the volume of a member and pass --skip-hash-check",
                self.target
            )
        })?;
        if self.dry_run {
            bail!(
                "{} has the highest revision, {}. Without --dry-run, the command saves a backup of it first; or name one",
                best.pod,
                best.revision
            );
        }
        reporter.progress(&format!("{} has the highest revision, {}", best.pod, best.revision));
        let place = backup::save_member(&self.guard, &best.pod, self.timeout, self.output).await?;
        Ok(Choice::Path(place))
    }

    /// Asks for the name of the cluster.
    fn is_confirmed(&self, plan: &Plan) -> anyhow::Result<bool> {
        let answer = match &self.confirm {
            Some(answer) => answer.clone(),
            None => {
                ensure!(
                    std::io::stdin().is_terminal(),
                    "without a terminal, confirm with --confirm {}",
                    plan.cluster
                );
                let mut out = std::io::stderr();
                let effect = match plan.phase {
                    Phase::Filling => "stop all members and replace their data",
                    Phase::Starting => "start the members",
                };
                write!(out, "To {effect}, type {}: ", plan.cluster)?;
                out.flush()?;
                let mut line = String::new();
                std::io::stdin().read_line(&mut line)?;
                line.trim().to_owned()
            }
        };
        Ok(answer == plan.cluster)
    }
}

/// Returns the revisions of the members that answer.
async fn revisions(api_server: &ApiServer, members: &[Member]) -> Vec<Running> {
    let revision = async |member: &Member| {
        let answer = async {
            let mut member = member_source::Member::connect(api_server, &member.pod, false).await.ok()?;
            member.source.status().await.ok().map(|(_, revision)| revision)
        };
        let revision = timeout(REVISION_LIMIT, answer).await.ok()??;
        Some(Running { pod: member.pod.clone(), revision })
    };
    join_all(members.iter().map(revision)).await.into_iter().flatten().collect()
}

fn plan(layout: &Layout, backup: &Backup, running: Vec<Running>, record: &Record) -> Plan {
    let volume = |member: &Member| Volume {
        pod: member.pod.clone(),
        claim: member.claim.clone(),
        old_data: format!("{}/{}", member.data_dir, former(record)),
    };
    let (time, revision) = backup.origin.clone().unzip();
    Plan {
        cluster: format!("{}/{}", layout.namespace, layout.set),
        backup: backup.path.display().to_string(),
        bytes: backup.bytes,
        sha256: backup.sha256.clone(),
        revision,
        time,
        running,
        phase: record.phase,
        volumes: layout.members.iter().map(volume).collect(),
    }
}

// === impl Plan ===

impl Plan {
    /// Returns the last line of the output.
    fn completion(&self, record: &Record) -> String {
        let data = match self.revision {
            Some(revision) => {
                format!(
                    "the data of revision {revision}, at revision {} and later",
                    revision.saturating_add(BUMP)
                )
            }
            None => String::from("the data of the backup"),
        };
        format!(
            "{} has {data}; the old data is in {} of each data directory: remove it when you no longer need it",
            self.cluster,
            former(record)
        )
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, backup, bytes, sha256, revision, time, running, phase, volumes } = self;
        writeln!(f, "{cluster}: restore all {} members", volumes.len())?;
        writeln!(f, "  from   {backup} ({}, sha256 {sha256})", mebibytes(*bytes))?;
        match (revision, time) {
            (Some(revision), Some(time)) => {
                writeln!(f, "  lost   all writes since revision {revision} ({time})")?;
            }
            _ => writeln!(f, "  lost   all writes since the backup")?,
        }
        for Running { pod, revision: other } in running {
            let newer = revision.map(|revision| other.saturating_sub(revision)).filter(|newer| *newer > 0);
            let newer = newer.map(|newer| {
                format!(", {newer} after the backup: to keep them, run the command without a backup")
            });
            writeln!(f, "  runs   {pod} with revision {other}{}", newer.unwrap_or_default())?;
        }
        for Volume { pod, claim, old_data } in volumes {
            writeln!(f, "  volume {claim} of {pod}; its data moves to {old_data}")?;
        }
        match phase {
            Phase::Filling => {
                write!(
                    f,
                    "  stops  all members; the guard protects nothing of this cluster for up to {} h",
                    OVERRULED.as_hours()
                )
            }
            Phase::Starting => write!(f, "  phase  all volumes have the backup: the members start"),
        }
    }
}
