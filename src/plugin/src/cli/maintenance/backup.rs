//! `kubectl etcd-guard backup`: saves the database of a cluster with the rights of the user.

use std::{num::NonZeroUsize, time::Duration};

use anyhow::bail;
use clap::Args;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use tokio::time::{Instant, timeout};

use super::{EventFormat, Target, interrupted};
use crate::{
    cli::guard_flags::GuardFlags,
    durations,
    maintenance::{
        backup::{
            checksum::{Checksum, Verified},
            choose,
            destination::{Choice, Destination, Stem, Writer},
            source::Member,
        },
        reporter::Reporter,
        requests::Subject,
    },
};
use etcd_guard_api::{ClusterStatus, Role};
use etcd_guard_cli::{access::run, printing::causes};
use etcd_guard_core::{annotations::LAST_BACKUP, etcd::member::mebibytes};

/// Pause between two lines about the progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Save a backup of an etcd cluster to a file, a directory or S3
///
/// The backup comes from the most advanced follower, through a port-forward and with your rights; the guard only tells which member that
/// is. It has all changes up to the printed revision. It appears under its name after its SHA-256 was verified, and contains every value
/// unencrypted. In a directory or a bucket, its name is `NAMESPACE_CLUSTER_REVISION_TIME.db`: use one directory or prefix per
/// Kubernetes cluster. For S3, set the usual variables
/// (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT_URL`) or give the Job a role. If etcd has users, the user of
/// the guard's Secret needs the role `root`. The time is recorded in the annotation `etcd-guard.io/last-backup`, if you may patch the
/// StatefulSet: `status`, `replace` and `restart --image` read it. Without a quorum, the command refuses, unless you choose the member.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  # Show which member would be read, and check the access; then save
  kubectl etcd-guard backup statefulset/etcd /backup/ -n prod --dry-run
  kubectl etcd-guard backup statefulset/etcd /backup/ -n prod

  # To S3, and keep the last week of daily backups
  kubectl etcd-guard backup statefulset/etcd s3://backups/prod -n prod --keep 7

  # From a Job in the cluster: etcd-manifests/backup/cronjob.yaml
  kubectl etcd-guard backup statefulset/etcd /backup/ -n prod --direct")]
#[allow(clippy::doc_markdown, reason = "the help shows the texts as they are")]
pub(crate) struct Backup {
    /// A pod of the cluster, or statefulset/NAME
    target: Target,
    /// A file, a directory, or `s3://BUCKET/PREFIX`
    #[arg(value_name = "TO")]
    to: Choice,
    #[command(flatten)]
    guard: GuardFlags,
    /// Read the member of this pod, also if it does not serve: the last writes may then be missing
    #[arg(long, value_name = "POD")]
    from: Option<String>,
    /// Connect to the pod's address instead of through a port-forward, from a Job in the cluster
    #[arg(long)]
    direct: bool,
    /// Overwrite the file
    #[arg(long)]
    force: bool,
    /// Keep only this number of backups of this cluster in the directory or under the prefix, with the new one
    #[arg(long, value_name = "NUMBER")]
    keep: Option<NonZeroUsize>,
    /// Print the plan, check the access, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Time for the transfer
    #[arg(long, default_value = "1h", value_parser = durations::parse)]
    timeout: Duration,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: EventFormat,
}

/// What the command will do.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Plan {
    cluster: String,
    pod: String,
    role: Role,
    /// Raft entries that the member has applied fewer than the most advanced one.
    lag: Option<u64>,
    version: String,
    revision: u64,
    database_bytes: u64,
    to: String,
}

/// A saved backup.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Saved<'a> {
    cluster: &'a str,
    pod: &'a str,
    /// The backup has all changes up to this revision.
    revision: u64,
    /// It has no change after this one; `None` if the member did not answer afterwards.
    max_revision: Option<u64>,
    bytes: u64,
    sha256: &'a str,
    seconds: f64,
    to: &'a str,
}

/// Saves the member of a pod to a file in the current directory. Returns the name of the file.
pub(super) async fn save_member(
    guard: &GuardFlags,
    pod: &str,
    limit: Duration,
    output: EventFormat,
) -> anyhow::Result<String> {
    let backup = Backup {
        target: Target::Pod(pod.to_owned()),
        to: Choice::Path(String::from("./")),
        guard: guard.clone(),
        from: Some(pod.to_owned()),
        direct: false,
        force: false,
        keep: None,
        dry_run: false,
        timeout: limit,
        output,
    };
    let (_, place) = backup.save().await?;
    Ok(place)
}

// === impl Backup ===

impl Backup {
    /// Returns whether the backup was saved, or in a dry run can be.
    pub(crate) fn run(self) -> anyhow::Result<bool> {
        Ok(run(self.save())?.0)
    }

    /// Returns whether everything was done, and the place of the backup.
    async fn save(self) -> anyhow::Result<(bool, String)> {
        let Self { target, to, guard, from, direct, force, keep, dry_run, timeout: limit, output } = self;
        let guard = guard.connect().await?;
        let api_server = &guard.api_server;
        let namespace = &api_server.namespace;
        let survey = guard.status(Some(namespace)).await?;
        let Some(cluster) = survey.clusters.iter().find(|cluster| target.is_of(cluster)) else {
            bail!(
                "{target} runs no guarded member in namespace {namespace}; list them: kubectl etcd-guard status -n {namespace}"
            );
        };
        let mut reporter = Reporter::new(output == EventFormat::Json);
        for problem in survey.problems.iter().chain(&cluster.problems) {
            reporter.warn(problem);
        }
        let chosen = choose(cluster, from.as_deref())?;
        let pod = chosen.pod.clone().unwrap_or_default();
        let mut member = Member::connect(api_server, &pod, direct).await?;
        let (status, revision) = member.source.status().await.map_err(|error| member.explain(&error))?;
        let stem = Stem::new(namespace, &cluster.name);
        let time = Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
        let destination = to.place(&stem, revision, &time)?;
        let plan = Plan {
            cluster: format!("{namespace}/{}", cluster.name),
            pod,
            role: chosen.role,
            lag: chosen.lag,
            version: status.version,
            revision,
            database_bytes: status.database.bytes,
            to: destination.to_string(),
        };
        reporter.plan(&plan.to_string(), &plan)?;
        if !chosen.serving {
            let cause = chosen.cause.as_deref().unwrap_or("no linearizable read passed");
            reporter.warn(&format!("{} does not serve ({cause}): the last writes may be missing", plan.pod));
        }
        destination.check(plan.database_bytes, force)?;
        if dry_run {
            return Ok((true, plan.to));
        }
        let started = Instant::now();
        let verified = transfer(&mut member, &destination, &plan, limit, &mut reporter).await?;
        let max_revision = member.source.status().await.ok().map(|(_, revision)| revision);
        let seconds = (started.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        let saved = Saved {
            cluster: &plan.cluster,
            pod: &plan.pod,
            revision,
            max_revision,
            bytes: verified.bytes,
            sha256: &verified.sha256,
            seconds,
            to: &plan.to,
        };
        if let Err(error) = record(&guard, namespace, &plan, cluster).await {
            reporter.warn(&format!(
                "`status`, `replace` and `restart --image` will not know of this backup: {}",
                causes(&error)
            ));
        }
        let mut is_complete = true;
        if let Some(keep) = keep {
            match destination.prune(&stem, keep.get()).await {
                Ok(names) => names.iter().for_each(|name| reporter.progress(&format!("{name} is deleted"))),
                Err(error) => {
                    reporter.warn(&causes(&error));
                    is_complete = false;
                }
            }
        }
        reporter.complete_with(&saved.to_string(), &saved)?;
        Ok((is_complete, plan.to))
    }
}

/// Copies the database to the destination, and verifies it. After a failure, the destination is as before.
async fn transfer(
    member: &mut Member,
    destination: &Destination,
    plan: &Plan,
    limit: Duration,
    reporter: &mut Reporter,
) -> anyhow::Result<Verified> {
    let mut writer = destination.open().await?;
    let mut checksum = Checksum::new();
    let copied = tokio::select! {
        copied = timeout(limit, copy(member, &mut writer, &mut checksum, reporter)) => match copied {
            Ok(copied) => copied,
            Err(_) => Err(anyhow::anyhow!("it is not complete after {}; --timeout allows more", durations::text(limit))),
        },
        () = interrupted() => Err(anyhow::anyhow!("it was interrupted")),
    };
    let received = checksum.bytes();
    let verified = copied.and_then(|()| checksum.verify());
    let verified = match verified {
        Ok(verified) => verified,
        Err(error) => {
            writer.discard().await;
            return Err(error.context(format!(
                "no backup of {} was saved; {} were received from {}",
                plan.cluster,
                mebibytes(received),
                plan.pod
            )));
        }
    };
    writer.finish(verified.bytes).await?;
    Ok(verified)
}

async fn copy(
    member: &mut Member,
    writer: &mut Writer,
    checksum: &mut Checksum,
    reporter: &mut Reporter,
) -> anyhow::Result<()> {
    let database = member.source.database().await;
    let mut database = database.map_err(|error| member.explain(&error))?;
    let mut shown = Instant::now();
    while let Some(piece) = database.next().await.map_err(|error| member.explain(&error))? {
        checksum.add(piece.bytes());
        writer.write(piece.bytes()).await?;
        if shown.elapsed() >= PROGRESS_INTERVAL {
            shown = Instant::now();
            let (done, total) = (checksum.bytes(), checksum.bytes().saturating_add(piece.remaining()));
            reporter.progress(&format!("{} of {}", mebibytes(done), mebibytes(total)));
        }
    }
    Ok(())
}

/// Records the backup for `status`, at the StatefulSet of the members or at the pod.
async fn record(
    guard: &crate::guard_client::GuardClient,
    namespace: &str,
    plan: &Plan,
    cluster: &ClusterStatus,
) -> anyhow::Result<()> {
    let pod = guard.api_server.pod(namespace, &plan.pod).await?;
    let subject = match pod {
        Some(pod) => Subject::of_pod(namespace, &plan.pod, &pod),
        None => Subject::stateful_set(namespace, &cluster.name),
    };
    let value = format!("{}@{}", plan.revision, crate::maintenance::now());
    Ok(subject.annotate(&guard.api_server, LAST_BACKUP, Some(&value), None).await?)
}

// === impl Plan ===

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cluster, pod, role, lag, version, revision, database_bytes, to } = self;
        let role = role.as_str();
        let lag = lag.map_or_else(|| String::from("an unknown number of"), |lag| lag.to_string());
        write!(
            f,
            "{cluster}\n  from {pod}: {role}, {lag} entries behind, etcd {version}, revision {revision}, {}\n  to   {to}",
            mebibytes(*database_bytes)
        )
    }
}

// === impl Saved ===

impl std::fmt::Display for Saved<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cluster, pod, revision, bytes, sha256, seconds, to, .. } = self;
        write!(
            f,
            "{cluster} at revision {revision} from {pod} in {to} ({}, {seconds} s, sha256 {sha256})",
            mebibytes(*bytes)
        )
    }
}
