//! The steps of a restoration. Each can be interrupted, and is repeated when the command runs again.

use std::{path::Path, time::Duration};

use anyhow::{Context, bail};
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{PersistentVolumeClaim, Pod},
    },
    jiff::{SignedDuration, Timestamp},
};
use kube::api::{AttachParams, DeleteParams, PostParams};
use serde_json::{Value, json};
use tokio::{
    fs::File,
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Instant, sleep, timeout},
};

use super::{
    super::{
        now,
        replace::{REPLACE, set_finalizer},
        reporter::Reporter,
    },
    layout::{Layout, Member},
    pod::{self, LABEL, Means, Progress, RECEIVE},
    record::{Phase, RESTORE, Record},
    source::{Backup, PIECE_BYTES},
};
use crate::{api_server::ApiServer, durations};
use etcd_guard_cli::printing::causes;
use etcd_guard_core::{
    annotations::{ALLOW_REASON, ALLOW_UNTIL},
    etcd::member::mebibytes,
};

/// Pause between two reads of the state.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Time in which each piece of the backup must be accepted.
const PIECE_LIMIT: Duration = Duration::from_secs(60);

/// Number of attempts to write the StatefulSet, whose status changes meanwhile.
const WRITE_ATTEMPTS: usize = 10;

/// Pause between two lines about the progress of a transfer.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Time after the end of its grace period in which a pod should be gone.
const LATE: SignedDuration = SignedDuration::from_secs(20);

/// Time for which the guard is overruled.
pub(crate) const OVERRULED: SignedDuration = SignedDuration::from_hours(2);

/// A restoration that runs.
pub(crate) struct Run<'a> {
    pub(crate) api_server: &'a ApiServer,
    pub(crate) layout: &'a Layout,
    pub(crate) backup: &'a Backup,
    pub(crate) record: Record,
    /// The annotation that the StatefulSet must have. Otherwise another client acts.
    pub(crate) written: Option<String>,
    pub(crate) means: Means<'a>,
    /// Time for each wait.
    pub(crate) limit: Duration,
    pub(crate) reporter: Reporter,
}

// === impl Run ===

impl Run<'_> {
    /// Restores all members, or continues.
    pub(crate) async fn run(&mut self) -> anyhow::Result<()> {
        self.record.run = format!("{}-{}", now(), std::process::id());
        self.write_record().await?;
        if self.record.phase == Phase::Filling {
            self.stop().await?;
            self.fill().await?;
            for member in &self.layout.members {
                let restored = self.restored(member).await?;
                anyhow::ensure!(
                    restored,
                    "claim {} or its pod has changed; repeat the command",
                    member.claim
                );
            }
            self.require_stopped().await?;
            self.record.phase = Phase::Starting;
            self.write_record().await?;
        }
        self.start().await
    }

    /// Asks the API server whether it would create the pods, while the members still run.
    pub(crate) async fn try_pods(&self) -> anyhow::Result<()> {
        let namespace = &self.layout.namespace;
        let pods = self.api_server.namespaced::<Pod>(namespace);
        for member in &self.layout.members {
            let pod = pod::pod(self.layout, member, &self.record, &self.means, "")?;
            let operation = format!("pod {namespace}/{} could not be created", pod::name_of(member));
            let parameters = PostParams { dry_run: true, ..PostParams::default() };
            match self.api_server.call(operation, pods.create(&parameters, &pod)).await {
                // It exists already.
                Err(error) if error.code != Some(409) => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes the record, and overrules the guard for the stop of the members.
    async fn write_record(&mut self) -> anyhow::Result<()> {
        let record = serde_json::to_string(&self.record)?;
        let until = (Timestamp::now() + OVERRULED).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let reason = "kubectl etcd-guard restore";
        let annotations = json!({RESTORE: record, ALLOW_UNTIL: until, ALLOW_REASON: reason, REPLACE: null});
        self.change(annotations, json!({})).await?;
        self.written = Some(record);
        Ok(())
    }

    /// Returns the StatefulSet, unless another client has taken over.
    async fn set(&self) -> anyhow::Result<StatefulSet> {
        let Layout { namespace, set, .. } = self.layout;
        let set = self.api_server.stateful_set(namespace, set).await?;
        let annotations = set.metadata.annotations.as_ref();
        anyhow::ensure!(
            annotations.and_then(|annotations| annotations.get(RESTORE)) == self.written.as_ref(),
            "another client continues or has ended this restoration: the annotation {RESTORE} has changed"
        );
        Ok(set)
    }

    /// Returns an error if a member may have run since all were stopped: then nothing may touch their volumes.
    async fn require_stopped(&self) -> anyhow::Result<()> {
        let set = self.set().await?;
        let is_same = set.metadata.generation == self.record.generation;
        let left = self.first_left().await?.and_then(|pod| pod.metadata.name);
        anyhow::ensure!(
            is_same && replicas(&set) == 0 && left.is_none(),
            "another client has scaled or changed the StatefulSet{}; repeat the command to stop the members again",
            left.map(|pod| format!(", and {pod} exists")).unwrap_or_default()
        );
        Ok(())
    }

    /// Returns the first pod of a member that exists.
    async fn first_left(&self) -> anyhow::Result<Option<Pod>> {
        for member in &self.layout.members {
            let pod = self.api_server.pod(&self.layout.namespace, &member.pod).await?;
            if pod.is_some() {
                return Ok(pod);
            }
        }
        Ok(None)
    }

    /// Stops all members.
    async fn stop(&mut self) -> anyhow::Result<()> {
        let set = self.set().await?;
        let ran = replicas(&set) != 0 || set.metadata.generation != self.record.generation;
        if self.record.generation.is_some() && ran {
            // Members may have run with restored data. A new name keeps what they wrote.
            self.record.id = id();
        }
        self.change(json!({}), self.scaled(0, "Retain")).await?;
        let deadline = self.deadline();
        loop {
            let set = self.set().await?;
            anyhow::ensure!(
                replicas(&set) == 0,
                "another client has scaled the StatefulSet to {} replicas; repeat the command to stop the members again",
                replicas(&set)
            );
            let is_observed = ready_replicas(&set).is_some();
            let Some(pod) = self.first_left().await? else {
                self.record.generation = set.metadata.generation;
                break;
            };
            let refusal = if is_observed { self.delete_members().await? } else { None };
            self.wait(deadline, &refusal.unwrap_or_else(|| leaving(&pod))).await?;
        }
        self.write_record().await?;
        self.reporter.progress("all members are stopped");
        Ok(())
    }

    /// Deletes pods that the controller leaves: under `OrderedReady`, it waits until a broken member is ready. Returns a refusal.
    async fn delete_members(&self) -> anyhow::Result<Option<String>> {
        let pods = self.api_server.namespaced::<Pod>(&self.layout.namespace);
        for member in &self.layout.members {
            let pod = self.api_server.pod(&self.layout.namespace, &member.pod).await?;
            if pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()) {
                continue;
            }
            let operation = format!("pod {} was not deleted", member.pod);
            let parameters = DeleteParams::default();
            match self.api_server.call(operation, pods.delete(&member.pod, &parameters)).await {
                Err(error) if error.code != Some(404) => return Ok(Some(error.to_string())),
                _ => {}
            }
        }
        Ok(None)
    }

    /// Gives each volume the data of the backup.
    async fn fill(&mut self) -> anyhow::Result<()> {
        let members = self.layout.members.clone();
        for member in &members {
            self.require_stopped().await?;
            self.create_pod(member).await?;
        }
        self.reporter.set_progress(0, members.len());
        for (number, member) in members.iter().enumerate() {
            let mut deadline = self.deadline();
            let mut is_sent = false;
            let name = pod::name_of(member);
            loop {
                self.require_stopped().await?;
                match self.progress(member).await? {
                    Progress::Done => break,
                    Progress::Failed(cause) => bail!(
                        "the volume of {} was not restored: {cause}. Its old data is in `member` or in `{}` of the data directory. Repair \
                         the cause, then repeat the command",
                        member.pod,
                        pod::former(&self.record)
                    ),
                    Progress::Receives if !is_sent => {
                        self.send(member).await?;
                        is_sent = true;
                        deadline = self.deadline();
                    }
                    Progress::Receives => self.wait(deadline, &format!("{name} stores the backup")).await?,
                    Progress::Waits(cause) => self.wait(deadline, &format!("{name}: {cause}")).await?,
                }
            }
            self.reporter.set_progress(number + 1, members.len());
            self.reporter.progress(&format!("the volume of {} has the backup", member.pod));
        }
        Ok(())
    }

    /// Starts the members, and ends the restoration.
    async fn start(&mut self) -> anyhow::Result<()> {
        let layout = self.layout;
        for member in &layout.members {
            self.delete_pod(member).await?;
        }
        self.change(json!({}), self.scaled(self.record.replicas, "Delete")).await?;
        self.reporter.progress("the members start");
        let deadline = self.deadline();
        loop {
            let ready = ready_replicas(&self.set().await?);
            if ready == Some(self.record.replicas) {
                break;
            }
            let ready = ready.unwrap_or_default();
            let total = self.record.replicas;
            let cause = format!(
                "{ready} of {total} members are ready; if this lasts, the backup may have an alarm: etcdctl alarm list"
            );
            self.wait(deadline, &cause).await?;
        }
        self.change(json!({RESTORE: null, ALLOW_UNTIL: null, ALLOW_REASON: null}), json!({})).await?;
        Ok(())
    }

    /// Returns the claim of a member, unless it is being deleted.
    async fn claim(&self, member: &Member) -> anyhow::Result<Option<PersistentVolumeClaim>> {
        let namespace = &self.layout.namespace;
        let claims = self.api_server.namespaced::<PersistentVolumeClaim>(namespace);
        let operation = format!("failed to read claim {namespace}/{}", member.claim);
        Ok(self.api_server.call(operation, claims.get_opt(&member.claim)).await?)
    }

    /// Creates the claim of a member unless it exists, and returns its uid. A claim that is being deleted belongs to a lost volume.
    async fn create_claim(&mut self, member: &Member) -> anyhow::Result<String> {
        let deadline = self.deadline();
        loop {
            match self.claim(member).await? {
                None => break,
                Some(claim) if claim.metadata.deletion_timestamp.is_none() => {
                    return Ok(claim.metadata.uid.unwrap_or_default());
                }
                Some(claim) => {
                    // The pod of a former run may use it, or an interrupted replacement may hold it.
                    self.delete_pod(member).await?;
                    let released =
                        set_finalizer(self.api_server, &self.layout.namespace, &claim, false).await;
                    // The claim may have changed since it was read.
                    let cause =
                        released.err().map(|error| format!(": {}", causes(&error))).unwrap_or_default();
                    self.wait(deadline, &format!("claim {} is being deleted{cause}", member.claim)).await?;
                }
            }
        }
        let namespace = &self.layout.namespace;
        let claims = self.api_server.namespaced::<PersistentVolumeClaim>(namespace);
        let claim = Layout::new_claim(&self.set().await?, member);
        let claim = claim.with_context(|| format!("claim {namespace}/{} does not exist", member.claim))?;
        let operation = format!("failed to create claim {namespace}/{}", member.claim);
        let claim = self.api_server.call(operation, claims.create(&PostParams::default(), &claim)).await?;
        self.reporter.progress(&format!("claim {} is created", member.claim));
        Ok(claim.metadata.uid.unwrap_or_default())
    }

    /// Whether the claim of a member has the data of the backup.
    async fn restored(&self, member: &Member) -> anyhow::Result<bool> {
        let claim = self.claim(member).await?.filter(|claim| claim.metadata.deletion_timestamp.is_none());
        let Some(uid) = claim.and_then(|claim| claim.metadata.uid) else { return Ok(false) };
        let wanted = pod::pod(self.layout, member, &self.record, &self.means, &uid)?;
        let pod = self.api_server.pod(&self.layout.namespace, &pod::name_of(member)).await?;
        Ok(pod.is_some_and(|pod| pod::has_same_work(&pod, &wanted) && pod::progress(&pod) == Progress::Done))
    }

    /// Creates the pod of a volume, unless one has already done its work. A pod that waits for a former run of this command is replaced:
    /// its standard input is closed.
    async fn create_pod(&mut self, member: &Member) -> anyhow::Result<()> {
        let uid = self.create_claim(member).await?;
        if self.restored(member).await? {
            return Ok(());
        }
        self.delete_pod(member).await?;
        let namespace = &self.layout.namespace;
        let pod = pod::pod(self.layout, member, &self.record, &self.means, &uid)?;
        let pods = self.api_server.namespaced::<Pod>(namespace);
        let operation = format!("failed to create pod {namespace}/{}", pod::name_of(member));
        self.api_server.call(operation, pods.create(&PostParams::default(), &pod)).await?;
        Ok(())
    }

    /// Deletes the pod of a volume, and waits until it is gone.
    async fn delete_pod(&mut self, member: &Member) -> anyhow::Result<()> {
        let layout = self.layout;
        let (namespace, name) = (&layout.namespace, pod::name_of(member));
        let pods = self.api_server.namespaced::<Pod>(namespace);
        let deadline = self.deadline();
        while let Some(pod) = self.api_server.pod(namespace, &name).await? {
            let (key, value) = LABEL.split_once('=').unwrap_or_default();
            let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(key));
            if label.map(String::as_str) != Some(value) {
                bail!("pod {namespace}/{name} is not one of this command: rename or delete it");
            }
            if pod.metadata.deletion_timestamp.is_none() {
                let operation = format!("failed to delete pod {namespace}/{name}");
                let parameters = DeleteParams::default().grace_period(1);
                let deletion = pods.delete(&name, &parameters);
                match self.api_server.call(operation, deletion).await {
                    Err(error) if error.code != Some(404) => return Err(error.into()),
                    _ => {}
                }
            }
            self.wait(deadline, &format!("{name} is being deleted")).await?;
        }
        Ok(())
    }

    async fn progress(&self, member: &Member) -> anyhow::Result<Progress> {
        let (namespace, name) = (&self.layout.namespace, pod::name_of(member));
        let pod = self.api_server.pod(namespace, &name).await?;
        let pod = pod.with_context(|| {
            format!("pod {namespace}/{name} was deleted by another client; repeat the command")
        })?;
        Ok(pod::progress(&pod))
    }

    /// Sends the backup to the pod of a volume.
    async fn send(&mut self, member: &Member) -> anyhow::Result<()> {
        let layout = self.layout;
        let (namespace, name) = (&layout.namespace, pod::name_of(member));
        let pods = self.api_server.namespaced::<Pod>(namespace);
        let parameters = AttachParams::default().container(RECEIVE).stdin(true).stdout(true).stderr(false);
        let parameters = parameters.max_stdin_buf_size(PIECE_BYTES);
        let operation = format!(
            "failed to attach to pod {namespace}/{name}; it requires the permissions to get and create pods/attach"
        );
        let mut attached = self.api_server.call(operation, pods.attach(&name, &parameters)).await?;
        let mut input = attached.stdin().context("the API server opened no standard input")?;
        let failed = || format!("the transfer of the backup to {name} failed; repeat the command");
        let (path, total): (&Path, u64) = (&self.backup.path, self.backup.bytes);
        let mut file =
            File::open(path).await.with_context(|| format!("failed to read {}", path.display()))?;
        let (mut piece, mut done, mut shown) = (vec![0; PIECE_BYTES], 0_u64, Instant::now());
        loop {
            let count =
                file.read(&mut piece).await.with_context(|| format!("failed to read {}", path.display()))?;
            let Some(read) = piece.get(..count).filter(|read| !read.is_empty()) else { break };
            timeout(PIECE_LIMIT, input.write_all(read)).await.with_context(failed)?.with_context(failed)?;
            done = done.saturating_add(u64::try_from(count).unwrap_or_default());
            if shown.elapsed() >= PROGRESS_INTERVAL {
                shown = Instant::now();
                self.reporter.progress(&format!(
                    "{name} has received {} of {}",
                    mebibytes(done),
                    mebibytes(total)
                ));
            }
        }
        timeout(PIECE_LIMIT, input.flush()).await.with_context(failed)?.with_context(failed)?;
        // The pod knows the size: its container ends when it has received everything, and with it this connection. The state of the pod
        // tells whether the backup arrived.
        if let Some(ended) = attached.take_status() {
            timeout(self.limit, ended).await.with_context(failed)?;
        }
        Ok(())
    }

    /// Changes annotations and the specification of the StatefulSet, unless another client has taken over since it was read.
    async fn change(&self, annotations: Value, spec: Value) -> anyhow::Result<()> {
        let Layout { namespace, set: name, .. } = self.layout;
        for attempt in 1.. {
            let set = self.set().await?;
            let metadata =
                json!({"annotations": annotations, "resourceVersion": set.metadata.resource_version});
            match self
                .api_server
                .patch_set(namespace, name, json!({"metadata": metadata, "spec": spec}))
                .await
            {
                Ok(_) => break,
                // Its status has changed.
                Err(error) if error.code == Some(409) && attempt < WRITE_ATTEMPTS => {
                    sleep(POLL_INTERVAL).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Returns the specification with this number of replicas and this policy for the claims, which must outlive the stop.
    fn scaled(&self, replicas: i32, when_scaled: &str) -> Value {
        if self.record.deletes_claims {
            json!({"replicas": replicas, "persistentVolumeClaimRetentionPolicy": {"whenScaled": when_scaled}})
        } else {
            json!({"replicas": replicas})
        }
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.limit
    }

    /// Waits a moment for this cause.
    async fn wait(&mut self, deadline: Instant, cause: &str) -> anyhow::Result<()> {
        if Instant::now() >= deadline {
            bail!(
                "after {}, still waiting: {cause}. Repeat the command to continue; --timeout allows more",
                durations::text(self.limit)
            );
        }
        self.reporter.waiting(cause);
        sleep(POLL_INTERVAL).await;
        Ok(())
    }
}

/// Returns the time as in the names of backups.
pub(crate) fn id() -> String {
    Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string()
}

pub(crate) fn replicas(set: &StatefulSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

/// Returns the number of ready pods, if the status belongs to the current specification.
fn ready_replicas(set: &StatefulSet) -> Option<i32> {
    let status = set.status.as_ref()?;
    (status.observed_generation >= set.metadata.generation).then(|| status.ready_replicas.unwrap_or_default())
}

/// Says that a pod is leaving, and what to do if it should be gone: then its node may be dead.
fn leaving(pod: &Pod) -> String {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let is_late =
        pod.metadata.deletion_timestamp.as_ref().is_some_and(|time| time.0 + LATE < Timestamp::now());
    match pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) {
        Some(node) if is_late => format!(
            "{name} is terminating on node {node}; if that node is dead, power it off, then: kubectl taint nodes {node} \
             node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
        ),
        _ if pod.metadata.deletion_timestamp.is_some() => format!("{name} is terminating"),
        _ => format!("{name} is not deleted yet"),
    }
}
