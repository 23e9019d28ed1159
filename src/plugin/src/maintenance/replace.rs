//! The replacement of a member: what the guard does with etcd ([`requests`](super::requests)), and what the user does with PVC and pod.
//!
//! The state is in one annotation of the StatefulSet, the last request: `STEP POD MEMBER@TIME`. Everything else is read again before each
//! step, so that a repeated command continues wherever an earlier one ended. The id of the old member tells it from its successor.
//!
//! The StatefulSet controller creates pods of the template, in which etcd has `--initial-cluster-state=new`. So the command creates the
//! successor's pod itself ([`successor`]). Until then a finalizer keeps the deleted PVC, and the controller creates no pod while the PVC of
//! the pod is being deleted. A scheduling gate holds the new pod until etcd lists the learner.

pub(crate) mod plan;
mod successor;

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        authorization::v1::ResourceAttributes,
        core::v1::{PersistentVolumeClaim, Pod},
    },
    jiff::Timestamp,
};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use self::{
    plan::{NO_MEMBER, Plan, backup_obstacle, is_listed},
    successor::{REPLACES, Successor, is_gated, ordinal, replaces},
};
use super::{
    leadership::{HANDOVER_TIMEOUT, move_leader},
    reporter::Reporter,
    requests::{Requested, Subject},
    restart::record::RESTART,
};
use crate::{api_server::CallError, durations, guard_client::GuardClient};
use etcd_guard_api::{ClusterStatus, MemberStatus, Role};
use etcd_guard_cli::printing::causes;

/// The annotation that keeps the state.
const REPLACE: &str = "etcd-guard.io/replace";

/// The reason of the Event about a step that was not possible.
const FAILED: &str = "ReplacementFailed";

/// Time for the answer to one step. The guard waits up to two minutes for a learner.
const ANSWER_LIMIT: Duration = Duration::from_secs(3 * 60);

/// Pause between two reads.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The number of steps: remove, delete, create, add, start, promote.
const STEPS: usize = 6;

/// The guard refused to remove the member.
#[derive(Debug, thiserror::Error)]
#[error("the member was not removed: {0}")]
struct Refused(String);

/// What to replace, and how.
pub(crate) struct Options {
    pub(crate) pod: String,
    pub(crate) needs_backup: bool,
    pub(crate) is_dry_run: bool,
    /// Time for the whole replacement.
    pub(crate) timeout: Duration,
}

/// A replacement of one member.
pub(crate) struct Replacement<'a> {
    guard: &'a GuardClient,
    options: &'a Options,
    namespace: String,
    set: StatefulSet,
    /// The same object as JSON.
    raw_set: Value,
    subject: Subject,
    reporter: Reporter,
    /// Whether the annotation shows that the replacement has begun.
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
        let name = match api.pod(&namespace, pod).await? {
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
        let set = api.stateful_set(&namespace, &name).await?;
        let path = format!("/apis/apps/v1/namespaces/{namespace}/statefulsets/{name}");
        let operation = format!("failed to read StatefulSet {namespace}/{name}");
        let raw_set = api.object(&operation, &path).await?.context(operation)?;
        let subject = Subject::stateful_set(&namespace, &name);
        Ok(Self { guard, options, namespace, set, raw_set, subject, reporter, has_begun: false })
    }

    /// Returns whether the member was replaced.
    pub(crate) async fn run(&mut self) -> anyhow::Result<bool> {
        let pod = self.options.pod.clone();
        let started = Instant::now();
        let (old, claim) = match self.recorded()? {
            Some(old) => {
                let successor =
                    Successor::new(&self.raw_set, &pod, &old).map_err(|cause| self.refusal(&cause))?;
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
                let plan = self.plan().await?;
                self.reporter.plan(&plan.to_string(), &plan)?;
                let obstacle = backup_obstacle(&self.set, Timestamp::now());
                let obstacle = obstacle.filter(|_| self.options.needs_backup).map(|obstacle| {
                    format!(
                        "{obstacle}; make one, or go on without: --no-backup. See https://etcd-guard.io/recipes.html#back-up"
                    )
                });
                match obstacle {
                    Some(obstacle) if self.options.is_dry_run => self.reporter.warn(&obstacle),
                    Some(obstacle) => bail!(obstacle),
                    None => {}
                }
                if self.options.is_dry_run {
                    return Ok(true);
                }
                self.require_permissions().await?;
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
        let command = self.guard.api_server.command("replace");
        let (namespace, pod) = (&self.namespace, &self.options.pod);
        format!("the other voters keep their quorum. Continue: {command} -n {namespace} {pod}")
    }

    fn refusal(&self, cause: &str) -> anyhow::Error {
        anyhow::anyhow!("cannot replace {}/{}: {cause}", self.namespace, self.options.pod)
    }

    /// Returns the id of the old member, if an earlier run has begun.
    fn recorded(&self) -> anyhow::Result<Option<String>> {
        let annotations = self.set.metadata.annotations.as_ref();
        let Some(value) = annotations.and_then(|annotations| annotations.get(REPLACE)) else {
            return Ok(None);
        };
        let detail = value.rsplit_once('@').map_or(value.as_str(), |(detail, _)| detail);
        let words: Vec<&str> = detail.split(' ').collect();
        let (name, command) = (&self.subject.name, self.guard.api_server.command("replace"));
        let [_, pod, old] = words[..] else {
            bail!(
                "the annotation {REPLACE} of StatefulSet {name} is not readable; remove it: {} -n {} annotate statefulset {name} \
                 {REPLACE}-",
                self.guard.api_server.kubectl,
                self.namespace
            );
        };
        ensure!(
            pod == self.options.pod,
            "the replacement of {pod} has begun: finish it first: {command} -n {} {pod}",
            self.namespace
        );
        Ok(Some(old.to_owned()))
    }

    async fn plan(&self) -> anyhow::Result<Plan> {
        let annotations = self.set.metadata.annotations.as_ref();
        if annotations.is_some_and(|annotations| annotations.contains_key(RESTART)) {
            return Err(self.refusal("a restart of its StatefulSet has not ended: finish it first"));
        }
        let pod = &self.options.pod;
        let cluster = self.cluster().await?;
        // The successor has the id of the old member only as a mark.
        let Successor { claim, members, .. } =
            Successor::new(&self.raw_set, pod, NO_MEMBER).map_err(|cause| self.refusal(&cause))?;
        Plan::new(&cluster, pod, &claim, members).map_err(|cause| self.refusal(&cause))
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

    /// Does what the state demands. Returns why the next attempt follows, or `None` at the end.
    async fn attempt(&mut self, old: &str, claim: &str) -> anyhow::Result<Option<String>> {
        let state = self.state(old, claim).await?;
        let demand = match self.has_begun {
            true => demand(&state, old, &self.options.pod),
            // The first request records the beginning.
            false => Demand::Ask("remove"),
        };
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
                    self.set_finalizer(claim, false).await?;
                }
            }
            Demand::Start => {
                self.set_progress(4);
                self.ungate(&pod, state.pod.as_ref()).await?;
                self.reporter.progress(&format!("{pod} starts with an empty PVC"));
            }
        }
        Ok(Some(String::new()))
    }

    /// Removes the annotation.
    async fn forget(&self) -> anyhow::Result<()> {
        let patch = json!({"metadata": {"annotations": {REPLACE: null}}});
        self.guard.api_server.patch_set(&self.namespace, &self.subject.name, patch).await?;
        Ok(())
    }

    async fn state(&self, old: &str, claim: &str) -> anyhow::Result<State> {
        let api = &self.guard.api_server;
        let cluster = self.cluster().await?;
        let pod = &self.options.pod;
        let is_old_listed =
            cluster.members.iter().any(|member| is_listed(member) && member.id.as_deref() == Some(old));
        let is_successor = |member: &&MemberStatus| {
            is_listed(member) && member.pod.as_ref() == Some(pod) && member.id.as_deref() != Some(old)
        };
        let successor = cluster.members.iter().find(is_successor).cloned();
        let claims = api.namespaced::<PersistentVolumeClaim>(&self.namespace);
        let operation = format!("failed to read PVC {}/{claim}", self.namespace);
        let claim = api.call(operation, claims.get_opt(claim)).await?;
        let pod = api.pod(&self.namespace, pod).await?;
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
        let detail = format!("{step} {} {old}", self.options.pod);
        let subject = self.subject.clone();
        let request = Requested::annotate(self.guard, &subject, "replace", &detail).await?;
        self.has_begun = true;
        let asked = Instant::now();
        loop {
            let failure = match request.answers(self.guard).await {
                Ok(answers) => {
                    if let Some(answer) = answers.iter().find(|answer| answer.reason != FAILED) {
                        self.set_progress(done.saturating_add(1));
                        self.reporter.progress(&answer.text);
                        return Ok(Some(String::new()));
                    }
                    match answers.first() {
                        // Nothing has begun.
                        Some(answer) if step == "remove" => {
                            self.forget().await?;
                            self.has_begun = false;
                            return Err(Refused(answer.text.clone()).into());
                        }
                        Some(answer) => return Ok(Some(answer.text.clone())),
                        None => {}
                    }
                    None
                }
                Err(failure) => Some(failure),
            };
            if asked.elapsed() >= ANSWER_LIMIT {
                return Err(request.unanswered(&durations::text(ANSWER_LIMIT), failure.as_ref()));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Deletes PVC and pod, and creates the pod of the successor as soon as the name is free.
    async fn prepare(&mut self, state: &State, old: &str) -> anyhow::Result<Option<String>> {
        let api = &self.guard.api_server;
        let name = self.options.pod.clone();
        self.reporter.set_progress(1, STEPS);
        if let Some(claim) = state.claim.as_ref().filter(|claim| claim.metadata.deletion_timestamp.is_none())
        {
            self.set_finalizer(claim, true).await?;
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
        let successor = Successor::new(&self.raw_set, &name, old).map_err(|cause| self.refusal(&cause))?;
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

    /// Adds our finalizer to a claim, or removes it.
    async fn set_finalizer(&self, claim: &PersistentVolumeClaim, is_set: bool) -> anyhow::Result<()> {
        let metadata = &claim.metadata;
        let known = metadata.finalizers.clone().unwrap_or_default();
        if known.iter().any(|finalizer| finalizer == REPLACES) == is_set {
            return Ok(());
        }
        let mut finalizers: Vec<String> =
            known.into_iter().filter(|finalizer| finalizer != REPLACES).collect();
        if is_set {
            finalizers.push(REPLACES.to_owned());
        }
        let patch = json!({"metadata": {
            "uid": metadata.uid, "resourceVersion": metadata.resource_version, "finalizers": finalizers,
        }});
        let name = metadata.name.as_deref().unwrap_or_default();
        let claims = self.guard.api_server.namespaced::<PersistentVolumeClaim>(&self.namespace);
        let operation = format!("failed to change PVC {}/{name}", self.namespace);
        let parameters = PatchParams::default();
        let patch = Patch::Merge(&patch);
        self.guard.api_server.call(operation, claims.patch(name, &parameters, &patch)).await?;
        Ok(())
    }

    /// Removes our scheduling gate from the pod.
    async fn ungate(&self, name: &str, pod: Option<&Pod>) -> anyhow::Result<()> {
        let gates = pod.and_then(|pod| pod.spec.as_ref()).and_then(|spec| spec.scheduling_gates.clone());
        let gates: Vec<_> = gates.into_iter().flatten().filter(|gate| gate.name != REPLACES).collect();
        let metadata = pod.map(|pod| &pod.metadata);
        let patch = json!({
            "metadata": {
                "uid": metadata.and_then(|metadata| metadata.uid.as_ref()),
                "resourceVersion": metadata.and_then(|metadata| metadata.resource_version.as_ref()),
            },
            "spec": {"schedulingGates": gates},
        });
        let pods = self.guard.api_server.namespaced::<Pod>(&self.namespace);
        let operation = format!("failed to change pod {}/{name}", self.namespace);
        let parameters = PatchParams::default();
        let patch = Patch::Merge(&patch);
        self.guard.api_server.call(operation, pods.patch(name, &parameters, &patch)).await?;
        Ok(())
    }
}

/// Returns what the state demands.
fn demand(state: &State, old: &str, name: &str) -> Demand {
    let State { cluster, is_old_listed, successor, pod, claim } = state;
    // Without a proven list, a member that is not shown may still be listed.
    if cluster.voters.is_none() {
        let cause = cluster.problems.first().map(|problem| format!(": {problem}")).unwrap_or_default();
        return Demand::Wait(format!("the voters could not be counted{cause}"));
    }
    if *is_old_listed {
        return Demand::Ask("remove");
    }
    let is_terminating = pod.as_ref().is_some_and(|pod| pod.metadata.deletion_timestamp.is_some());
    // A member with a name, or one that answers, has started: its data must not be lost again.
    let has_started = |member: &&MemberStatus| member.name.is_some() || member.version.is_some();
    if let Some(member) = successor.as_ref().filter(has_started) {
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
    let is_prepared = pod.as_ref().is_some_and(|pod| replaces(pod) == Some(old)) && !is_terminating;
    if !is_prepared {
        return Demand::Prepare;
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
        None => {
            return Demand::Wait(format!("the StatefulSet controller creates the PVC of {name}"));
        }
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
    if error.is::<Refused>() {
        return false;
    }
    match error.downcast_ref::<CallError>() {
        Some(CallError { code: Some(403), cause, .. }) => cause.contains("denied the request"),
        Some(CallError { code: Some(400 | 401 | 405), .. }) => false,
        _ => true,
    }
}
