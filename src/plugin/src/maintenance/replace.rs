//! The replacement of a member: what the guard does with etcd ([`requests`](super::requests)), and what the user does with PVC and pod.
//!
//! The state is in one annotation of the StatefulSet, the last request: `STEP POD MEMBER@TIME`. Everything else is read again before each
//! step, so that a repeated command continues wherever an earlier one ended. The id of the old member tells it from its successor. While
//! that member is listed, nothing has happened: the command plans again. Each request is written to the StatefulSet that was just read,
//! unless another command has changed the annotation or begun a restart: two commands never act on one cluster.
//!
//! The StatefulSet controller creates pods of the template, in which etcd has `--initial-cluster-state=new`. So the command creates the
//! successor's pod itself ([`successor`]). Until then a finalizer keeps the deleted PVC, and the controller creates no pod while the PVC of
//! the pod is being deleted. A scheduling gate holds the new pod until etcd lists the learner.

pub(crate) mod plan;
mod successor;

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::{
    authorization::v1::ResourceAttributes,
    core::v1::{PersistentVolumeClaim, Pod},
};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use self::{
    plan::{NO_MEMBER, Plan, has_started, is_listed, label},
    successor::{
        REPLACES, Successor, claim_obstacle, is_gated, operator, ordinal, replaces, rollout_obstacle,
    },
};
use super::{
    health::require_backup,
    leadership::{HANDOVER_TIMEOUT, move_leader},
    reporter::Reporter,
    requests::{Requested, Subject},
    restart::record::RESTART,
    restore::record::RESTORE,
};
use crate::{
    api_server::{ApiServer, CallError},
    durations,
    guard_client::GuardClient,
};
use etcd_guard_api::{ClusterStatus, MemberStatus, Role};
use etcd_guard_cli::printing::causes;

/// The annotation that keeps the state.
pub(crate) const REPLACE: &str = "etcd-guard.io/replace";

/// The annotation of the pod that reminds the StatefulSet controller of the PVC.
const REMINDER: &str = "etcd-guard.io/reminded-at";

/// The reason of the Event about a step that was not possible.
const FAILED: &str = "ReplacementFailed";

/// Time for the answer to one step. The guard waits up to two minutes for a learner.
const ANSWER_LIMIT: Duration = Duration::from_secs(3 * 60);

/// Pause between two reads.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The number of steps: remove, delete, create, add, start, promote.
const STEPS: usize = 6;

/// The replacement must not go on: the guard refused to remove the member, or another command has begun.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Stopped(String);

/// The replacement that an annotation records.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    pod: String,
    /// The id of the member that is replaced.
    old: String,
}

/// What to replace, and how.
pub(crate) struct Options {
    pub(crate) pod: String,
    pub(crate) needs_backup: bool,
    /// Whether the user has paused the operator that owns the StatefulSet.
    pub(crate) is_paused: bool,
    pub(crate) is_dry_run: bool,
    /// Time for the whole replacement.
    pub(crate) timeout: Duration,
}

/// A replacement of one member.
pub(crate) struct Replacement<'a> {
    guard: &'a GuardClient,
    options: &'a Options,
    namespace: String,
    /// The StatefulSet: a typed one would lose fields that this program does not know.
    set: Value,
    subject: Subject,
    /// The revision of the pod, if it exists.
    revision: Option<String>,
    reporter: Reporter,
    /// What the annotation records, as this command has read or written it.
    record: Option<Record>,
    /// Whether the first step was requested.
    has_begun: bool,
}

/// The state of one member and its pod.
struct State {
    cluster: ClusterStatus,
    is_old_listed: bool,
    /// The listed member of the pod with another id than the old one.
    successor: Option<MemberStatus>,
    pod: Option<Pod>,
    claim: Option<PersistentVolumeClaim>,
}

/// What the state demands.
#[derive(Debug, PartialEq, Eq)]
enum Demand {
    /// To ask the guard for this step.
    Ask(&'static str),
    /// To delete PVC and pod, and to create the pod of the successor.
    Prepare,
    /// To let the controller create the PVC, without the finalizer of the old one.
    ReleaseClaim,
    /// To remind the StatefulSet controller of the PVC. While the old one was being deleted, each of its attempts failed, and the pause
    /// after the last one can take a quarter of an hour. Only a change of the pod or the StatefulSet ends the pause.
    RemindController,
    /// To let the pod start.
    Start,
    /// To wait for this.
    Wait(String),
    Complete,
}

// === impl Replacement ===

impl<'a> Replacement<'a> {
    pub(crate) async fn new(
        guard: &'a GuardClient,
        options: &'a Options,
        reporter: Reporter,
    ) -> anyhow::Result<Self> {
        let api = &guard.api_server;
        let (namespace, pod) = (api.namespace.clone(), &options.pod);
        let live = api.pod(&namespace, pod).await?;
        let labels = live.as_ref().and_then(|live| live.metadata.labels.as_ref());
        let revision = labels.and_then(|labels| labels.get("controller-revision-hash")).cloned();
        let name = match live {
            Some(live) => {
                let mut owners = live.metadata.owner_references.iter().flatten();
                let set = owners.find(|owner| owner.kind == "StatefulSet" && owner.controller == Some(true));
                set.map(|set| set.name.clone()).with_context(|| {
                    format!("no StatefulSet owns pod {namespace}/{pod}, and nothing would create it again: replace it by hand")
                })?
            }
            // An earlier run has deleted it.
            None => pod.rsplit_once('-').map(|(set, _)| set.to_owned()).with_context(|| {
                format!(
                    "pod {namespace}/{pod} does not exist; list them: {} -n {namespace} get pods",
                    api.kubectl
                )
            })?,
        };
        ensure!(ordinal(&name, pod).is_some(), "{pod} is no pod of StatefulSet {name}");
        let set = read_set(api, &namespace, &name).await?;
        let subject = Subject::stateful_set(&namespace, &name);
        Ok(Self {
            guard,
            options,
            namespace,
            set,
            subject,
            revision,
            reporter,
            record: None,
            has_begun: false,
        })
    }

    /// Returns whether the member was replaced.
    pub(crate) async fn run(&mut self) -> anyhow::Result<bool> {
        let pod = self.options.pod.clone();
        let started = Instant::now();
        self.record = self.recorded(&self.set)?;
        if let Some(Record { pod: other, .. }) = self.record.as_ref().filter(|record| record.pod != pod) {
            let command = self.guard.api_server.command("replace");
            bail!(
                "the replacement of {other} has begun: finish it first: {command} -n {} {other}",
                self.namespace
            );
        }
        if let Some(operator) = operator(&self.set).filter(|_| !self.options.is_paused) {
            return Err(self.refusal(&format!(
                "{operator} owns StatefulSet {}, and its operator may change the members meanwhile. If that operator does not replace \
                 the member itself: pause it, then pass --paused",
                self.subject.name
            )));
        }
        let (old, claim) = match self.removed(started).await? {
            Some(old) => {
                let successor =
                    Successor::new(&self.set, &pod, &old).map_err(|cause| self.refusal(&cause))?;
                self.has_begun = true;
                self.reporter.plan(
                    &format!("Resumed replacement of {pod} (member {old})"),
                    &json!({"pod": pod, "member": old, "isResumed": true}),
                )?;
                if self.options.is_dry_run {
                    return Ok(true);
                }
                (old, successor.claim)
            }
            None => {
                let (plan, cluster) = self.plan().await?;
                self.reporter.plan(&plan.to_string(), &plan)?;
                match require_backup(&cluster, "a replacement").err().filter(|_| self.options.needs_backup) {
                    Some(obstacle) if self.options.is_dry_run => self.reporter.warn(&obstacle.to_string()),
                    Some(obstacle) => return Err(obstacle),
                    None => {}
                }
                if self.options.is_dry_run {
                    return Ok(true);
                }
                self.require_permissions().await?;
                self.try_pod(&plan.member).await?;
                (plan.member, plan.claim)
            }
        };
        loop {
            let cause = match self.attempt(&old, &claim).await {
                Ok(None) => return Ok(true),
                Ok(Some(cause)) => cause,
                Err(error) if is_temporary(&error) => causes(&error),
                Err(error) if !self.has_begun => return Err(error),
                Err(error) => bail!("{}; {}", causes(&error), self.how_to_continue()),
            };
            if !cause.is_empty() {
                self.reporter.waiting(&cause);
            }
            if started.elapsed() >= self.options.timeout {
                let text =
                    format!("the timeout of {} expired: {cause}", durations::text(self.options.timeout));
                self.reporter.aborted(&format!("{text}; {}", self.how_to_continue()));
                return Ok(false);
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Reports an interruption.
    pub(crate) fn interrupted(&mut self) {
        let text = if self.has_begun { self.how_to_continue() } else { String::from("nothing was changed") };
        self.reporter.aborted(&format!("interrupted; {text}"));
    }

    fn how_to_continue(&self) -> String {
        if !self.has_begun {
            return String::from("nothing was changed");
        }
        let (kubectl, command) = (&self.guard.api_server.kubectl, self.guard.api_server.command("replace"));
        let (namespace, pod, set) = (&self.namespace, &self.options.pod, &self.subject.name);
        let paused = if self.options.is_paused { " --paused" } else { "" };
        let backup = if self.options.needs_backup { "" } else { " --no-backup" };
        format!(
            "the replacement is not complete. Continue: {command} -n {namespace} {pod}{paused}{backup}. To start over, first: {kubectl} \
             -n {namespace} annotate statefulset {set} {REPLACE}-"
        )
    }

    fn refusal(&self, cause: &str) -> anyhow::Error {
        anyhow::anyhow!("cannot replace {}/{}: {cause}", self.namespace, self.options.pod)
    }

    /// Returns what the annotation of this StatefulSet records.
    fn recorded(&self, set: &Value) -> anyhow::Result<Option<Record>> {
        let Some(value) = annotation(set, REPLACE) else { return Ok(None) };
        let record = Record::parse(value).with_context(|| {
            let (kubectl, namespace, name) =
                (&self.guard.api_server.kubectl, &self.namespace, &self.subject.name);
            format!(
                "the annotation {REPLACE} of StatefulSet {name} is not readable; remove it: {kubectl} -n {namespace} annotate \
                 statefulset {name} {REPLACE}-"
            )
        })?;
        Ok(Some(record))
    }

    /// Returns the recorded member if it was removed. While it is listed, nothing has happened.
    async fn removed(&mut self, started: Instant) -> anyhow::Result<Option<String>> {
        let Some(Record { old, .. }) = self.record.clone() else { return Ok(None) };
        loop {
            let cause = match self.cluster().await {
                Ok(cluster) if cluster.voters.is_some() => {
                    return Ok(Some(old).filter(|old| !is_in_list(&cluster, old)));
                }
                Ok(cluster) => uncounted(&cluster),
                Err(error) => causes(&error),
            };
            ensure!(started.elapsed() < self.options.timeout, "{cause}");
            self.reporter.waiting(&cause);
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn plan(&self) -> anyhow::Result<(Plan, ClusterStatus)> {
        let pod = &self.options.pod;
        if let Some(obstacle) = other_work(&self.set) {
            return Err(self.refusal(&obstacle));
        }
        if let Some(obstacle) = rollout_obstacle(&self.set, pod, self.revision.as_deref()) {
            return Err(self.refusal(&obstacle));
        }
        let cluster = self.cluster().await?;
        // The successor has the id of the old member only as a mark.
        let successor = Successor::new(&self.set, pod, NO_MEMBER).map_err(|cause| self.refusal(&cause))?;
        let plan = Plan::new(&cluster, pod, &successor).map_err(|cause| self.refusal(&cause))?;
        let claims = self.guard.api_server.namespaced::<PersistentVolumeClaim>(&self.namespace);
        let operation = format!("failed to read PVC {}/{}", self.namespace, plan.claim);
        let claim = self.guard.api_server.call(operation, claims.get_opt(&plan.claim)).await?;
        if let Some(obstacle) = claim.and_then(|claim| claim_obstacle(&self.set, pod, &claim)) {
            return Err(self.refusal(&obstacle));
        }
        Ok((plan, cluster))
    }

    /// Returns the status of the cluster.
    async fn cluster(&self) -> anyhow::Result<ClusterStatus> {
        let survey = self.guard.status(Some(&self.namespace)).await?;
        let is_of_set = |member: &MemberStatus| {
            let is_pod = |pod: &String| ordinal(&self.subject.name, pod).is_some();
            member.owner_kind.as_deref() == Some("StatefulSet") && member.pod.as_ref().is_some_and(is_pod)
        };
        let found = survey.clusters.into_iter().find(|cluster| cluster.members.iter().any(is_of_set));
        found.with_context(|| {
            format!(
                "StatefulSet {} runs no guarded member in namespace {ns}; list them: {} -n {ns}",
                self.subject.name,
                self.guard.api_server.command("status"),
                ns = self.namespace
            )
        })
    }

    /// Checks the permissions before the first change. If the API server does not answer a review, the calls themselves fail.
    async fn require_permissions(&self) -> anyhow::Result<()> {
        let needed = [
            ("", "pods", &["create", "patch", "delete"][..]),
            ("", "persistentvolumeclaims", &["get", "patch", "delete"]),
            ("apps", "statefulsets", &["get", "patch"]),
            ("", "events", &["list"]),
        ];
        for (group, resource, verbs) in needed {
            for verb in verbs {
                let attributes = ResourceAttributes {
                    namespace: Some(self.namespace.clone()),
                    verb: Some((*verb).to_owned()),
                    group: Some(group.to_owned()),
                    resource: Some(resource.to_owned()),
                    ..ResourceAttributes::default()
                };
                if matches!(self.guard.api_server.is_permitted(attributes).await, Ok(false)) {
                    bail!(
                        "the permission to {verb} {resource} in namespace {} is missing; nothing was changed",
                        self.namespace
                    );
                }
            }
        }
        Ok(())
    }

    /// Asks the API server whether it would create the pod, before anything is removed.
    async fn try_pod(&self, old: &str) -> anyhow::Result<()> {
        let successor =
            Successor::new(&self.set, &self.options.pod, old).map_err(|cause| self.refusal(&cause))?;
        let path = format!("/api/v1/namespaces/{}/pods?dryRun=All", self.namespace);
        let created = self.guard.api_server.post(&path, &successor.pod).await?;
        // 409: all admission is passed, and the pod exists. Its deletion will make room in a quota.
        let cause = created.cause();
        if created.is_success() || created.code == 409 || cause.contains("exceeded quota") {
            return Ok(());
        }
        Err(self.refusal(&format!("its pod could not be created: {cause}")))
    }

    /// Does what the state demands. Returns why the next attempt follows, or `None` at the end.
    async fn attempt(&mut self, old: &str, claim: &str) -> anyhow::Result<Option<String>> {
        let state = self.state(old, claim).await?;
        // The first request records the beginning.
        let demand =
            if self.has_begun { demand(&state, old, &self.options.pod) } else { Demand::Ask("remove") };
        let pod = self.options.pod.clone();
        match demand {
            Demand::Wait(cause) => return Ok(Some(cause)),
            Demand::Complete => {
                self.forget().await?;
                self.reporter.set_progress(STEPS, STEPS);
                let voters = state.cluster.voters.unwrap_or_default();
                self.reporter.complete(&format!("{pod} was replaced; the cluster has {voters} voters"));
                return Ok(None);
            }
            Demand::Ask("remove") => return self.remove(&state, old).await,
            Demand::Ask(step) => return self.ask(step, old).await,
            Demand::Prepare => return self.prepare(&state, old).await,
            Demand::ReleaseClaim => {
                if let Some(claim) = &state.claim {
                    set_finalizer(&self.guard.api_server, &self.namespace, claim, false).await?;
                }
            }
            Demand::RemindController => {
                let reminder = json!({REMINDER: Timestamp::now().to_string()});
                self.patch_pod(state.pod.as_ref(), reminder, json!({})).await?;
                return Ok(Some(format!("the StatefulSet controller creates the PVC of {pod}")));
            }
            Demand::Start => {
                self.set_progress(4);
                self.ungate(state.pod.as_ref()).await?;
                self.reporter.progress(&format!("{pod} starts with an empty PVC"));
            }
        }
        Ok(Some(String::new()))
    }

    /// Removes the annotation, unless it records something else.
    async fn forget(&mut self) -> anyhow::Result<()> {
        let set = self.read_set().await?;
        if self.recorded(&set)? == self.record {
            let version = set.pointer("/metadata/resourceVersion");
            let metadata = json!({"resourceVersion": version, "annotations": {REPLACE: null}});
            let patch = json!({"metadata": metadata});
            self.guard.api_server.patch_set(&self.namespace, &self.subject.name, patch).await?;
        }
        self.record = None;
        Ok(())
    }

    async fn read_set(&self) -> anyhow::Result<Value> {
        read_set(&self.guard.api_server, &self.namespace, &self.subject.name).await
    }

    /// Returns an error if another command acts on this StatefulSet, and otherwise the record of this replacement.
    fn stop_for_others(&self, set: &Value, old: &str) -> anyhow::Result<Record> {
        let own = Record { pod: self.options.pod.clone(), old: old.to_owned() };
        let known = self.recorded(set)?;
        let other = other_work(set).filter(|_| !self.has_begun || annotation(set, RESTORE).is_some());
        match interference(self.record.as_ref(), known.as_ref(), &own, other) {
            Some(text) => Err(Stopped(text).into()),
            None => Ok(own),
        }
    }

    /// Requests a step by the annotation, unless another command has changed it since this one has read it.
    async fn request<'s>(
        &mut self,
        subject: &'s Subject,
        step: &str,
        old: &str,
    ) -> anyhow::Result<Requested<'s>> {
        let set = self.read_set().await?;
        let own = self.stop_for_others(&set, old)?;
        let detail = format!("{step} {} {old}", self.options.pod);
        let version = set.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        let request = Requested::annotate(self.guard, subject, "replace", &detail, version).await?;
        (self.record, self.has_begun) = (Some(own), true);
        Ok(request)
    }

    async fn state(&self, old: &str, claim: &str) -> anyhow::Result<State> {
        let (api, name) = (&self.guard.api_server, &self.options.pod);
        // Before the cluster: what is deleted later, by its uid, existed when the members were counted.
        let claims = api.namespaced::<PersistentVolumeClaim>(&self.namespace);
        let operation = format!("failed to read PVC {}/{claim}", self.namespace);
        let claim = api.call(operation, claims.get_opt(claim)).await?;
        let pod = api.pod(&self.namespace, name).await?;
        let cluster = self.cluster().await?;
        let is_old_listed = is_in_list(&cluster, old);
        let is_successor = |member: &&MemberStatus| {
            is_listed(member) && member.pod.as_ref() == Some(name) && member.id.as_deref() != Some(old)
        };
        let successor = cluster.members.iter().find(is_successor).cloned();
        Ok(State { cluster, is_old_listed, successor, pod, claim })
    }

    fn set_progress(&mut self, done: usize) {
        self.reporter.set_progress(done, STEPS);
    }

    /// Asks the guard to remove the member, after leadership has left it.
    async fn remove(&mut self, state: &State, old: &str) -> anyhow::Result<Option<String>> {
        let is_old = |member: &&MemberStatus| member.id.as_deref() == Some(old);
        let member = state.cluster.members.iter().find(is_old);
        if member.is_some_and(|member| member.role == Role::Leader) {
            let answer = move_leader(self.guard, &self.subject, None, HANDOVER_TIMEOUT).await?;
            if !answer.is_moved() {
                return Ok(Some(format!(
                    "leadership must leave {} first: {}",
                    self.options.pod, answer.text
                )));
            }
            self.reporter.progress(&answer.text);
            return Ok(Some(String::new()));
        }
        self.ask("remove", old).await
    }

    /// Asks the guard for a step, and waits for its answer.
    async fn ask(&mut self, step: &'static str, old: &str) -> anyhow::Result<Option<String>> {
        let done = match step {
            "remove" => 0,
            "add" => 3,
            _ => 5,
        };
        self.set_progress(done);
        let subject = self.subject.clone();
        let request = self.request(&subject, step, old).await?;
        let asked = Instant::now();
        loop {
            let failure = match request.answers(self.guard).await {
                Ok(answers) => {
                    if let Some(answer) = answers.iter().find(|answer| answer.reason != FAILED) {
                        self.set_progress(done.saturating_add(1));
                        self.reporter.progress(&answer.text);
                        return Ok(Some(String::new()));
                    }
                    if let Some(answer) = answers.first() {
                        return self.failed(step, old, &answer.text).await;
                    }
                    None
                }
                Err(failure) => Some(failure),
            };
            if asked.elapsed() >= ANSWER_LIMIT {
                return Err(request.unanswered(&durations::text(ANSWER_LIMIT), failure.as_ref()));
            }
            sleep(POLL_INTERVAL).await;
            if annotation(&self.read_set().await?, REPLACE) != Some(request.value()) {
                return Ok(Some(String::from("another command has asked for another step")));
            }
        }
    }

    /// Ends the replacement if the removal failed: nothing has happened. etcd may have carried it out later than it answered.
    async fn failed(&mut self, step: &str, old: &str, cause: &str) -> anyhow::Result<Option<String>> {
        let cluster = self.cluster().await?;
        let nothing_happened = old == NO_MEMBER || (cluster.voters.is_some() && is_in_list(&cluster, old));
        if step == "remove" && nothing_happened {
            self.forget().await?;
            self.has_begun = false;
            return Err(Stopped(format!("the member was not removed: {cause}")).into());
        }
        Ok(Some(cause.to_owned()))
    }

    /// Deletes PVC and pod, and creates the pod of the successor as soon as the name is free.
    async fn prepare(&mut self, state: &State, old: &str) -> anyhow::Result<Option<String>> {
        let api = &self.guard.api_server;
        let name = self.options.pod.clone();
        self.reporter.set_progress(1, STEPS);
        // The template may have changed since the beginning.
        self.set = self.read_set().await?;
        self.stop_for_others(&self.set, old)?;
        if let Some(claim) = state.claim.as_ref().filter(|claim| claim.metadata.deletion_timestamp.is_none())
        {
            set_finalizer(api, &self.namespace, claim, true).await?;
            let claim_name = claim.metadata.name.as_deref().unwrap_or_default();
            let claims = api.namespaced::<PersistentVolumeClaim>(&self.namespace);
            let parameters = delete_only(claim.metadata.uid.as_ref());
            let operation = format!("failed to delete PVC {}/{claim_name}", self.namespace);
            api.call(operation, claims.delete(claim_name, &parameters)).await?;
            self.reporter.progress(&format!("PVC {claim_name} is deleted"));
        }
        let pods = api.namespaced::<Pod>(&self.namespace);
        if let Some(pod) = &state.pod {
            if pod.metadata.deletion_timestamp.is_some() {
                return Ok(Some(format!("pod {name} is terminating")));
            }
            let operation = format!("failed to delete pod {}/{name}", self.namespace);
            let parameters = delete_only(pod.metadata.uid.as_ref());
            api.call(operation, pods.delete(&name, &parameters)).await?;
            self.reporter.progress(&format!("pod {name} is deleted"));
            return Ok(Some(String::new()));
        }
        let successor = Successor::new(&self.set, &name, old).map_err(|cause| self.refusal(&cause))?;
        let path = format!("/api/v1/namespaces/{}/pods", self.namespace);
        let created = api.post(&path, &successor.pod).await?;
        if created.is_success() {
            self.reporter.set_progress(2, STEPS);
            self.reporter.progress(&format!("pod {name} is created, and waits for the learner"));
        } else if created.code != 409 {
            return Ok(Some(format!("pod {name} cannot be created: {}", created.cause())));
        }
        // With 409, the StatefulSet controller was faster. Its pod is deleted again: etcd rejects the member that it starts.
        Ok(Some(String::new()))
    }

    /// Removes our scheduling gate from the pod.
    async fn ungate(&self, pod: Option<&Pod>) -> anyhow::Result<()> {
        let gates = pod.and_then(|pod| pod.spec.as_ref()).and_then(|spec| spec.scheduling_gates.clone());
        let gates: Vec<_> = gates.into_iter().flatten().filter(|gate| gate.name != REPLACES).collect();
        self.patch_pod(pod, json!({}), json!({"schedulingGates": gates})).await
    }

    /// Changes annotations and specification of the pod as it was read.
    async fn patch_pod(&self, pod: Option<&Pod>, annotations: Value, spec: Value) -> anyhow::Result<()> {
        let (name, metadata) = (&self.options.pod, pod.map(|pod| &pod.metadata));
        let patch = json!({
            "metadata": {
                "uid": metadata.and_then(|metadata| metadata.uid.as_ref()),
                "resourceVersion": metadata.and_then(|metadata| metadata.resource_version.as_ref()),
                "annotations": annotations,
            },
            "spec": spec,
        });
        let pods = self.guard.api_server.namespaced::<Pod>(&self.namespace);
        let operation = format!("failed to change pod {}/{name}", self.namespace);
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(&patch));
        self.guard.api_server.call(operation, pods.patch(name, &parameters, &patch)).await?;
        Ok(())
    }
}

// === impl Record ===

impl Record {
    /// Reads `STEP POD MEMBER@TIME`.
    fn parse(value: &str) -> Option<Self> {
        let (detail, _) = value.rsplit_once('@')?;
        let words: Vec<&str> = detail.split(' ').collect();
        let [_, pod, old] = words[..] else { return None };
        Some(Self { pod: pod.to_owned(), old: old.to_owned() })
    }
}

/// Returns the command that has not ended on this StatefulSet.
fn other_work(set: &Value) -> Option<String> {
    let commands = [("restart", RESTART), ("restoration", RESTORE)];
    let (command, _) = commands.iter().find(|(_, name)| annotation(set, name).is_some())?;
    Some(format!("a {command} of its StatefulSet has not ended: finish it first"))
}

/// Returns who else acts, if the annotation records neither what this command has read or written last, nor the same replacement.
fn interference(
    last: Option<&Record>,
    known: Option<&Record>,
    own: &Record,
    other: Option<String>,
) -> Option<String> {
    match known {
        _ if other.is_some() => other,
        _ if known == last || known == Some(own) => None,
        Some(Record { pod, .. }) => Some(format!("another command replaces {pod}")),
        None => Some(format!("somebody has removed the annotation {REPLACE}")),
    }
}

/// Adds our finalizer to a claim, or removes it.
pub(crate) async fn set_finalizer(
    api: &ApiServer,
    namespace: &str,
    claim: &PersistentVolumeClaim,
    is_set: bool,
) -> anyhow::Result<()> {
    let metadata = &claim.metadata;
    let known = metadata.finalizers.clone().unwrap_or_default();
    if known.iter().any(|finalizer| finalizer == REPLACES) == is_set {
        return Ok(());
    }
    let mut finalizers: Vec<String> = known.into_iter().filter(|finalizer| finalizer != REPLACES).collect();
    if is_set {
        finalizers.push(REPLACES.to_owned());
    }
    let patch = json!({"metadata": {
        "uid": metadata.uid, "resourceVersion": metadata.resource_version, "finalizers": finalizers,
    }});
    let name = metadata.name.as_deref().unwrap_or_default();
    let claims = api.namespaced::<PersistentVolumeClaim>(namespace);
    let operation = format!("failed to change PVC {namespace}/{name}");
    let parameters = PatchParams::default();
    let patch = Patch::Merge(&patch);
    api.call(operation, claims.patch(name, &parameters, &patch)).await?;
    Ok(())
}

async fn read_set(api: &ApiServer, namespace: &str, name: &str) -> anyhow::Result<Value> {
    let path = format!("/apis/apps/v1/namespaces/{namespace}/statefulsets/{name}");
    let operation = format!("failed to read StatefulSet {namespace}/{name}");
    api.object(&operation, &path)
        .await?
        .with_context(|| format!("StatefulSet {namespace}/{name} does not exist"))
}

fn annotation<'a>(set: &'a Value, name: &str) -> Option<&'a str> {
    set.pointer("/metadata/annotations")?.get(name)?.as_str()
}

/// Whether the member list contains a member with this id.
fn is_in_list(cluster: &ClusterStatus, id: &str) -> bool {
    cluster.members.iter().any(|member| is_listed(member) && member.id.as_deref() == Some(id))
}

/// Returns why the voters of the cluster are not known.
fn uncounted(cluster: &ClusterStatus) -> String {
    let cause = cluster.problems.first().map(|problem| format!(": {problem}")).unwrap_or_default();
    format!("the voters could not be counted{cause}")
}

/// Returns what the state demands.
fn demand(state: &State, old: &str, name: &str) -> Demand {
    let State { cluster, is_old_listed, successor, pod, claim } = state;
    // Without a proven list, a member that is not shown may still be listed.
    if cluster.voters.is_none() {
        return Demand::Wait(uncounted(cluster));
    }
    if *is_old_listed {
        return Demand::Ask("remove");
    }
    let is_terminating = pod.as_ref().is_some_and(|pod| pod.metadata.deletion_timestamp.is_some());
    // A member that has started must not lose its data again.
    if let Some(member) = successor.as_ref().filter(|member| has_started(member)) {
        return match member.role {
            Role::Learner if is_terminating => Demand::Wait(format!("pod {name} is terminating")),
            Role::Learner if member.version.is_none() => {
                let cause = member.cause.as_deref().unwrap_or("no answer");
                Demand::Wait(format!("learner {name} does not answer: {cause}"))
            }
            Role::Learner => Demand::Ask("promote"),
            _ if member.serving => Demand::Complete,
            _ => Demand::Wait(format!("{name} is a voter and does not serve yet")),
        };
    }
    // A pod that has started without a listed successor has the data of a removed member.
    let is_usable = |pod: &Pod| replaces(pod) == Some(old) && (is_gated(pod) || successor.is_some());
    let is_prepared = pod.as_ref().is_some_and(is_usable) && !is_terminating;
    if !is_prepared {
        // While its pod does not exist, the successor may be listed without one.
        let is_stray =
            |member: &&MemberStatus| is_listed(member) && has_started(member) && member.pod.is_none();
        return match cluster.members.iter().find(is_stray) {
            Some(member) => Demand::Wait(format!(
                "{} runs in no known pod, and may be the member of {name}",
                label(member)
            )),
            None => Demand::Prepare,
        };
    }
    let is_held = |claim: &PersistentVolumeClaim| {
        let mut finalizers = claim.metadata.finalizers.iter().flatten();
        claim.metadata.deletion_timestamp.is_some() && finalizers.any(|known| known == REPLACES)
    };
    match claim {
        Some(claim) if is_held(claim) => return Demand::ReleaseClaim,
        Some(claim) if claim.metadata.deletion_timestamp.is_some() => {
            return Demand::Wait(format!("the old PVC of {name} is being deleted"));
        }
        None => return Demand::RemindController,
        Some(_) => {}
    }
    match (successor, pod) {
        (None, _) => Demand::Ask("add"),
        (Some(_), Some(pod)) if is_gated(pod) => Demand::Start,
        (Some(_), _) => Demand::Wait(format!("learner {name} has not joined yet")),
    }
}

/// Returns parameters that delete only the object with this uid.
fn delete_only(uid: Option<&String>) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions { uid: uid.cloned(), resource_version: None }),
        ..DeleteParams::default()
    }
}

/// Whether another attempt can succeed: the guard denied a call at the moment, another client changed an object, or a server failed.
fn is_temporary(error: &anyhow::Error) -> bool {
    if error.is::<Stopped>() {
        return false;
    }
    match error.downcast_ref::<CallError>() {
        Some(CallError { code: Some(403), cause, .. }) => cause.contains("denied the request"),
        Some(CallError { code: Some(400 | 401 | 405), .. }) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maintenance::health::tests::cluster;

    const OLD: &str = "a1";

    /// A cluster whose member of `etcd-1` was removed, with the pod and the PVC of its successor.
    fn removed() -> State {
        let mut cluster = cluster();
        cluster.voters = Some(2);
        cluster.members.retain(|member| member.pod.as_deref() != Some("etcd-1"));
        let pod = json!({
            "metadata": {"name": "etcd-1", "annotations": {REPLACES: OLD}},
            "spec": {"schedulingGates": [{"name": REPLACES}], "containers": []},
        });
        let claim = json!({"metadata": {"name": "data-etcd-1"}});
        State {
            cluster,
            is_old_listed: false,
            successor: None,
            pod: serde_json::from_value(pod).unwrap(),
            claim: serde_json::from_value(claim).unwrap(),
        }
    }

    fn learner() -> MemberStatus {
        let (pod, id) = (Some(String::from("etcd-1")), Some(String::from("beef")));
        MemberStatus { pod, id, role: Role::Learner, ..MemberStatus::default() }
    }

    /// Returns what this change of the state demands.
    fn demanded(change: impl FnOnce(&mut State)) -> Demand {
        let mut state = removed();
        change(&mut state);
        demand(&state, OLD, "etcd-1")
    }

    fn wait(text: &str) -> Demand {
        Demand::Wait(String::from(text))
    }

    #[test]
    fn steps_follow_from_what_exists() {
        assert_eq!(demanded(|state| state.is_old_listed = true), Demand::Ask("remove"));
        assert_eq!(demanded(|state| state.pod = None), Demand::Prepare);
        let by_controller = |state: &mut State| state.pod.as_mut().unwrap().metadata.annotations = None;
        assert_eq!(demanded(by_controller), Demand::Prepare, "the controller was faster");
        assert_eq!(demanded(|_| {}), Demand::Ask("add"));
        assert_eq!(demanded(|state| state.successor = Some(learner())), Demand::Start);
        let started = MemberStatus { version: Some(String::from("3.6.16")), ..learner() };
        assert_eq!(demanded(|state| state.successor = Some(started.clone())), Demand::Ask("promote"));
        let voter = MemberStatus { role: Role::Follower, serving: true, ..started };
        assert_eq!(demanded(|state| state.successor = Some(voter)), Demand::Complete);
    }

    #[test]
    fn nothing_is_deleted_while_the_members_are_not_known() {
        let unknown = |state: &mut State| (state.cluster.voters, state.pod) = (None, None);
        assert_eq!(demanded(unknown), wait("the voters could not be counted"));
    }

    /// The pod of a voter that was promoted is deleted, for example by a drain: the guard does not see who runs it.
    #[test]
    fn a_successor_without_a_pod_keeps_its_data() {
        let gone = |state: &mut State| {
            let id = Some(String::from("beef"));
            let name = Some(String::from("etcd-1"));
            let voter = MemberStatus { id, name, role: Role::Follower, ..MemberStatus::default() };
            state.cluster.members.push(voter);
            state.pod = None;
        };
        assert_eq!(demanded(gone), wait("etcd-1 runs in no known pod, and may be the member of etcd-1"));
        let never_started = |state: &mut State| {
            state.cluster.members.push(MemberStatus { pod: None, ..learner() });
            state.pod = None;
        };
        assert_eq!(demanded(never_started), Demand::Prepare);
    }

    #[test]
    fn the_pod_starts_only_with_a_new_claim() {
        let mut held = removed();
        held.successor = Some(learner());
        let claim = json!({"metadata": {
            "name": "data-etcd-1", "deletionTimestamp": "2026-11-24T10:00:00Z", "finalizers": [REPLACES],
        }});
        held.claim = serde_json::from_value(claim).unwrap();
        assert_eq!(demand(&held, OLD, "etcd-1"), Demand::ReleaseClaim);
        held.claim.as_mut().unwrap().metadata.finalizers = None;
        assert_eq!(demand(&held, OLD, "etcd-1"), wait("the old PVC of etcd-1 is being deleted"));
        held.claim = None;
        assert_eq!(demand(&held, OLD, "etcd-1"), Demand::RemindController);
    }

    #[test]
    fn stops_for_other_commands() {
        let record = |pod: &str| Record { pod: pod.to_owned(), old: String::from("a1") };
        let (own, other) = (record("etcd-1"), record("etcd-2"));
        let text = |last, known, is_restarting: bool| {
            let set = json!({"metadata": {"annotations": {RESTART: "{}"}}});
            interference(last, known, &own, is_restarting.then(|| other_work(&set)).flatten())
        };
        assert_eq!(text(None, None, false), None);
        assert_eq!(text(Some(&own), Some(&own), false), None);
        assert_eq!(text(None, Some(&own), false), None, "a write whose answer was lost");
        assert_eq!(text(Some(&other), Some(&other), false), None, "a member that was listed again");
        let taken = Some(String::from("another command replaces etcd-2"));
        assert_eq!(text(Some(&own), Some(&other), false), taken);
        assert_eq!(text(None, Some(&other), false), taken);
        assert!(text(Some(&own), None, false).unwrap().starts_with("somebody has removed the annotation"));
        assert!(text(None, None, true).unwrap().starts_with("a restart of its StatefulSet has not ended"));
    }

    /// The claim or the pod of another attempt has another uid.
    #[test]
    fn deletes_only_what_it_has_read() {
        let uid = String::from("u1");
        assert_eq!(delete_only(Some(&uid)).preconditions.unwrap().uid, Some(uid));
    }

    #[test]
    fn annotation_records_pod_and_member() {
        let record = |value: &str| Record::parse(value).map(|Record { pod, old }| (pod, old));
        let known = Some((String::from("etcd-1"), String::from("a1")));
        assert_eq!(record("add etcd-1 a1@2026-11-24T10:00:00Z"), known);
        for invalid in ["", "add etcd-1 a1", "etcd-1 a1@now", "add etcd-1 a1 b2@now"] {
            assert_eq!(record(invalid), None, "{invalid}");
        }
    }
}
