//! Runs a restart: observes, evicts one member, and waits for its return.

use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::apps::v1::StatefulSet;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    super::{
        eviction::{EvictionResult, RETRY_INTERVAL, evict},
        health::{PodState, cluster_of, unready_text},
        leadership::{HANDOVER_INTERVAL, HANDOVER_TIMEOUT, move_leader, transferee},
        reporter::Reporter,
        requests::Subject,
    },
    plan::{self, Beginning, Selection, Step, StepState},
    record::{RESTART, Record, Restoration},
    view::{View, is_observed, update_revision},
};
use crate::{durations, guard_client::GuardClient};
use etcd_guard_api::{ClusterStatus, Role};
use etcd_guard_cli::printing::causes;
use etcd_guard_core::{escape::to_shell_word, objects::annotations::LEADER};

/// Number of attempts to write the record while the controller writes the status.
const MAX_ATTEMPTS: usize = 5;

/// Pause between two observations.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The options of a restart.
pub(crate) struct Options {
    pub(crate) namespace: String,
    /// The StatefulSet.
    pub(crate) name: String,
    pub(crate) selection: Selection,
    /// Limits the time from the start of a step to the return of its member.
    pub(crate) timeout: Duration,
    pub(crate) is_dry_run: bool,
}

/// A restart.
pub(crate) struct Restart<'a> {
    guard: &'a GuardClient,
    options: &'a Options,
    reporter: Reporter,
    /// Whether the guard answered at the start. From then on, a failed call is a reason to wait.
    uses_guard: bool,
}

/// The progress of the current step.
struct Progress {
    /// The evicted member that has not returned.
    current: Option<String>,
    deadline: Instant,
    last_handover: Option<Instant>,
}

// === impl Restart ===

impl<'a> Restart<'a> {
    pub(crate) const fn new(guard: &'a GuardClient, options: &'a Options, reporter: Reporter) -> Self {
        Self { guard, options, reporter, uses_guard: true }
    }

    /// Returns the message of the last event.
    pub(crate) fn last_message(&self) -> &str {
        self.reporter.last()
    }

    /// Restarts the members. Returns whether all members were restarted.
    pub(crate) async fn run(&mut self) -> anyhow::Result<bool> {
        let view = self.first_view().await?;
        let Beginning { record, is_resumed, manager, warnings } =
            plan::begin(&view.set, &view.pods, view.cluster.as_ref(), &self.options.selection)?;
        let steps = view.steps(&record);
        let verb = if is_resumed { "Resumed restart" } else { "Restart" };
        let Options { namespace, name, is_dry_run, .. } = self.options;
        let since = if is_resumed {
            format!(", begun {}", durations::ago(&record.started_at))
        } else {
            String::new()
        };
        let managed = manager.map(|manager| format!("; only evicts pods, because {manager} manages it"));
        let managed = managed.unwrap_or_default();
        let title =
            format!("{verb} of StatefulSet {namespace}/{name}{}{since}{managed}", image_text(&record));
        let json = json!({"title": title, "steps": steps, "warnings": warnings});
        self.reporter.plan(&plan::table(&title, &steps), &json)?;
        for warning in &warnings {
            self.reporter.warn(warning);
        }
        if *is_dry_run {
            if let Some(obstacle) = view.obstacle() {
                self.reporter.waiting(&obstacle);
            }
            return Ok(true);
        }
        // Without the permission, the strategy would be `OnDelete` until the timeout expires.
        self.guard.api_server.require_evictions(namespace).await?;
        if record.only_evicts() {
            let unmarked = view.pods.iter().filter(|pod| pod.record.is_none());
            for pod in unmarked.filter(|pod| record.pods.get(&pod.name) == Some(&pod.uid)) {
                self.mark(&record, &pod.name).await?;
            }
        } else {
            self.begin(&record, view.set).await?;
        }
        self.restart_members(&record).await
    }

    /// Writes the record to a pod.
    async fn mark(&self, record: &Record, pod: &str) -> anyhow::Result<()> {
        let value = serde_json::to_string(record)?;
        let pod = Subject::pod(&self.options.namespace, pod);
        Ok(pod.annotate(&self.guard.api_server, RESTART, Some(&value), None).await?)
    }

    /// Writes the record, unless the StatefulSet has changed since it was read. A change of its status alone repeats the write.
    async fn begin(&self, record: &Record, mut set: StatefulSet) -> anyhow::Result<()> {
        let Options { namespace, name, .. } = self.options;
        for _ in 1..MAX_ATTEMPTS {
            let Err(error) = self.guard.api_server.patch_set(namespace, name, record.begin(&set)?).await
            else {
                return Ok(());
            };
            let current = self.guard.api_server.stateful_set(namespace, name).await?;
            let (before, now) = (&set.metadata, &current.metadata);
            let is_status_alone = before.resource_version != now.resource_version
                && before.uid == now.uid
                && before.generation == now.generation
                && before.annotations == now.annotations;
            if !is_status_alone {
                return Err(error.into());
            }
            set = current;
        }
        self.guard.api_server.patch_set(namespace, name, record.begin(&set)?).await?;
        Ok(())
    }

    async fn restart_members(&mut self, record: &Record) -> anyhow::Result<bool> {
        let timeout = self.options.timeout;
        let mut progress =
            Progress { current: None, deadline: Instant::now() + timeout, last_handover: None };
        loop {
            let obstacle = match self.view().await {
                Err(error) => Some(format!("{error:#}")),
                Ok(view) => {
                    if let Some(interference) = view.interference(record) {
                        self.reporter.aborted(&interference.text(&commands_text(self.guard, self.options)));
                        return Ok(false);
                    }
                    let steps = view.steps(record);
                    let is_done = |step: &&Step| step.state == StepState::Restarted;
                    self.reporter.set_progress(steps.iter().filter(is_done).count(), steps.len());
                    match view.obstacle() {
                        Some(obstacle) => Some(obstacle),
                        None => match self.advance(record, &view, &steps, &mut progress).await {
                            Ok(true) => return self.complete(record).await,
                            Ok(false) => None,
                            Err(denial) => Some(denial.to_string()),
                        },
                    }
                }
            };
            if let Some(obstacle) = &obstacle {
                self.reporter.waiting(obstacle);
            }
            if Instant::now() >= progress.deadline {
                let limit = durations::text(timeout);
                let obstacle = obstacle.unwrap_or_else(|| String::from("no member was restarted"));
                return self.abort(record, &format!("{obstacle}; the timeout of {limit} expired")).await;
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Evicts the next member of a healthy cluster. Returns whether no member is left; the error is a denial.
    async fn advance(
        &mut self,
        record: &Record,
        view: &View,
        steps: &[Step],
        progress: &mut Progress,
    ) -> anyhow::Result<bool> {
        let is_restarted =
            |pod: &str| steps.iter().any(|step| step.pod == pod && step.state == StepState::Restarted);
        if let Some(pod) = progress.current.take_if(|pod| is_restarted(pod)) {
            let step = steps.iter().find(|step| step.pod == pod);
            let version =
                step.and_then(|step| step.version.as_deref()).map(|version| format!(", etcd {version}"));
            self.reporter.progress(&format!("{pod} is back{}", version.unwrap_or_default()));
            progress.deadline = Instant::now() + self.options.timeout;
        }
        let exists = |step: &&Step| view.pods.iter().any(|pod| pod.name == step.pod);
        let pending = steps.iter().filter(|step| step.state == StepState::Pending);
        let Some(step) = pending.filter(exists).min_by_key(|step| step.role == Role::Leader) else {
            return Ok(true);
        };
        let may_move = progress.last_handover.is_none_or(|at| at.elapsed() > HANDOVER_INTERVAL);
        let cluster = view.cluster.as_ref();
        // A request is an annotation of the StatefulSet, which operators may refuse. Otherwise the eviction moves leadership.
        let must_move = !record.only_evicts() || cluster.is_some_and(denies_leader);
        if step.role == Role::Leader
            && may_move
            && must_move
            && let Some(to) = cluster.and_then(|cluster| transferee(cluster, is_restarted))
        {
            progress.last_handover = Some(Instant::now());
            if self.hand_over(&step.pod, to).await {
                return Ok(false);
            }
        }
        let uid = record.pods.get(&step.pod);
        let Some(pod) = view.pods.iter().find(|pod| pod.name == step.pod) else { return Ok(false) };
        if uid != Some(&pod.uid) {
            self.reporter.warn(&format!(
                "{} was created again from an earlier template, and is restarted again",
                pod.name
            ));
        }
        // The record outlives its last pod, so that a repetition finds the restart complete.
        let mut others = view.pods.iter().filter(|other| other.name != pod.name);
        if record.only_evicts()
            && others.clone().all(|other| other.record.is_none())
            && let Some(heir) = others.next()
        {
            self.mark(record, &heir.name).await?;
        }
        match evict(self.guard, &self.options.namespace, &pod.name, &pod.uid).await {
            EvictionResult::Accepted => {
                self.reporter.progress(&format!("{} ({}) is evicted", pod.name, step.role.as_str()));
                progress.current = Some(pod.name.clone());
                progress.deadline = Instant::now() + self.options.timeout;
                Ok(false)
            }
            EvictionResult::Gone => {
                sleep(RETRY_INTERVAL).await;
                Err(anyhow::anyhow!("the API server found no pod {} with the expected uid", pod.name))
            }
            EvictionResult::Denied(cause) => {
                sleep(RETRY_INTERVAL).await;
                Err(anyhow::anyhow!("the eviction of {} is denied: {cause}", pod.name))
            }
        }
    }

    /// Moves leadership to a restarted member. Returns whether the guard reports success.
    async fn hand_over(&mut self, leader: &str, to: &str) -> bool {
        let Options { namespace, name, .. } = self.options;
        self.reporter.progress(&format!("leadership moves from {leader} to {to}"));
        let subject = Subject::stateful_set(namespace, name);
        let failure = match move_leader(self.guard, &subject, Some(to), HANDOVER_TIMEOUT).await {
            Ok(answer) if answer.is_moved() => {
                self.reporter.progress(&answer.text);
                return true;
            }
            Ok(answer) => format!("{}: {}", answer.reason, answer.text),
            Err(error) => format!("{error:#}"),
        };
        self.reporter.warn(&format!(
            "{failure}; under etcd-guard.io/leader=deny, {leader} is not evicted until leadership has moved"
        ));
        false
    }

    async fn complete(&mut self, record: &Record) -> anyhow::Result<bool> {
        let Options { namespace, name, .. } = self.options;
        if record.only_evicts() {
            unmark(self.guard, self.options)
                .await
                .context("all members were restarted, but their annotation remains")?;
        } else if let Some(patch) = record.end(&Restoration::Strategy) {
            let restored = self.guard.api_server.patch_set(namespace, name, patch).await;
            restored.with_context(|| {
                format!(
                    "all members were restarted, but the update strategy could not be restored; {}",
                    remaining_text(self.guard, self.options, record)
                )
            })?;
        }
        self.reporter
            .complete(&format!("all members of {namespace}/{name} were restarted{}", strategy_text(record)));
        Ok(true)
    }

    /// Ends the restart before it is complete. Returns `false`.
    async fn abort(&mut self, record: &Record, cause: &str) -> anyhow::Result<bool> {
        let ended = self.try_abort(record, cause).await;
        ended.with_context(|| {
            format!(
                "{cause}. The restart could not be ended; {}",
                remaining_text(self.guard, self.options, record)
            )
        })?;
        Ok(false)
    }

    async fn try_abort(&mut self, record: &Record, cause: &str) -> anyhow::Result<()> {
        let Options { namespace, name, .. } = self.options;
        let set = self.guard.api_server.stateful_set(namespace, name).await?;
        let pods: Vec<PodState> =
            self.guard.api_server.pods_of(namespace, &set).await?.iter().map(PodState::from).collect();
        let revision = update_revision(&set);
        // An unobserved template has no revision yet: the controller would replace all pods.
        let restoration = record.restoration(&pods, if is_observed(&set) { &revision } else { "" });
        let steps = plan::steps(record, &pods, &revision, None);
        let members: Vec<String> = steps
            .iter()
            .map(|step| match (step.state, pods.iter().find(|pod| pod.name == step.pod)) {
                (_, None) => format!("{} is absent", step.pod),
                (_, Some(pod)) if !pod.is_ready => unready_text(pod),
                (StepState::Restarted, _) => format!("{} is restarted", step.pod),
                (StepState::Pending, _) => format!("{} is pending", step.pod),
            })
            .collect();
        self.reporter.aborted(&format!("{cause}. Members: {}", members.join(", ")));
        if let Some(patch) = record.end(&restoration) {
            self.guard.api_server.patch_set(namespace, name, patch).await?;
            self.reporter.progress(&format!("the restart is ended{}", strategy_text(record)));
        } else {
            self.reporter.warn(&remaining_text(self.guard, self.options, record));
        }
        Ok(())
    }

    /// Reads the state before the restart, and finds out whether the guard answers.
    async fn first_view(&mut self) -> anyhow::Result<View> {
        let Options { namespace, name, .. } = self.options;
        // Before a long warning about a guard that does not answer.
        self.guard.api_server.stateful_set(namespace, name).await?;
        match self.guard.status(Some(namespace)).await {
            // One possible problem: the namespace is not guarded.
            Ok(survey) => survey.problems.iter().for_each(|problem| self.reporter.warn(problem)),
            Err(error) => {
                self.uses_guard = false;
                self.reporter.warn(&format!(
                    "the guard does not answer: {}. The restart evicts the next member when all pods are ready; the \
                     leader is unknown, and leadership is not moved. Check the guard: kubectl etcd-guard doctor",
                    causes(&error)
                ));
            }
        }
        self.view().await
    }

    async fn view(&self) -> anyhow::Result<View> {
        let Options { namespace, name, .. } = self.options;
        let set = self.guard.api_server.stateful_set(namespace, name).await?;
        let pods: Vec<PodState> =
            self.guard.api_server.pods_of(namespace, &set).await?.iter().map(PodState::from).collect();
        let update_revision = update_revision(&set);
        if !self.uses_guard {
            return Ok(View { set, pods, update_revision, cluster: None });
        }
        let survey = self.guard.status(Some(namespace)).await?;
        let Some(cluster) = cluster_of(&survey.clusters, namespace, &pods) else {
            anyhow::bail!(
                "the guard reports no member in the pods of StatefulSet {namespace}/{name}; inspect them: {} -n {} \
                 statefulset/{}",
                self.guard.api_server.command("inspect"),
                to_shell_word(namespace),
                to_shell_word(name)
            );
        };
        Ok(View { set, pods, update_revision, cluster: Some(cluster.clone()) })
    }
}

/// Ends an interrupted restart, and restores the update strategy.
pub(crate) async fn end_interrupted(
    guard: &GuardClient,
    options: &Options,
    is_json: bool,
) -> anyhow::Result<bool> {
    let Options { namespace, name, .. } = options;
    let mut reporter = Reporter::new(is_json);
    let set = guard.api_server.stateful_set(namespace, name).await?;
    let pods: Vec<PodState> =
        guard.api_server.pods_of(namespace, &set).await?.iter().map(PodState::from).collect();
    let Some(record) = Record::find(&set, &pods)? else {
        anyhow::bail!("no restart of StatefulSet {namespace}/{name} is in progress");
    };
    let restoration = match record.restoration(&pods, &update_revision(&set)) {
        Restoration::Remains if !record.only_evicts() => {
            reporter.warn(
                "the StatefulSet controller now replaces the remaining pods, from the highest ordinal down",
            );
            Restoration::Strategy
        }
        restoration => restoration,
    };
    if options.is_dry_run {
        reporter.progress(&format!("the restart would be ended{}", strategy_text(&record)));
        return Ok(true);
    }
    if record.only_evicts() {
        unmark(guard, options).await?;
    } else if let Some(patch) = record.end(&restoration) {
        guard.api_server.patch_set(namespace, name, patch).await?;
    }
    reporter.complete(&format!("the restart of {namespace}/{name} is ended{}", strategy_text(&record)));
    Ok(true)
}

/// Removes the record from the pods that carry it.
async fn unmark(guard: &GuardClient, options: &Options) -> anyhow::Result<()> {
    let Options { namespace, name, .. } = options;
    let set = guard.api_server.stateful_set(namespace, name).await?;
    let pods = guard.api_server.pods_of(namespace, &set).await?;
    for pod in pods.iter().map(PodState::from).filter(|pod| pod.record.is_some()) {
        Subject::pod(namespace, &pod.name).annotate(&guard.api_server, RESTART, None, None).await?;
    }
    Ok(())
}

/// Reads the record of a restart in progress.
async fn find_record(guard: &GuardClient, options: &Options) -> anyhow::Result<Option<Record>> {
    let set = guard.api_server.stateful_set(&options.namespace, &options.name).await?;
    let pods = guard.api_server.pods_of(&options.namespace, &set).await?;
    Record::find(&set, &pods.iter().map(PodState::from).collect::<Vec<_>>())
}

/// Prints how to continue after the user interrupted the command.
pub(crate) async fn report_interruption(guard: &GuardClient, options: &Options, is_json: bool) {
    let text = match find_record(guard, options).await {
        Ok(None) => String::from("nothing was changed"),
        Ok(Some(record)) => remaining_text(guard, options, &record),
        Err(_) => commands_text(guard, options),
    };
    Reporter::new(is_json).aborted(&format!("interrupted; {text}"));
}

/// Whether the policy of the cluster denies the eviction of its leader.
fn denies_leader(cluster: &ClusterStatus) -> bool {
    cluster.policy.iter().any(|setting| setting.name == LEADER && setting.value == "deny")
}

fn image_text(record: &Record) -> String {
    record.image.as_ref().map(|image| format!(" with image {}", image.to)).unwrap_or_default()
}

/// Returns that the update strategy applies again, if the restart changed it.
fn strategy_text(record: &Record) -> String {
    if record.only_evicts() {
        return String::new();
    }
    format!("; the update strategy is {} again", record.strategy_type())
}

fn remaining_text(guard: &GuardClient, options: &Options, record: &Record) -> String {
    let commands = commands_text(guard, options);
    if record.only_evicts() {
        return format!("the remaining members were not restarted. {commands}");
    }
    format!(
        "the update strategy remains OnDelete, so that the StatefulSet controller replaces no pod. {commands}"
    )
}

/// Returns the commands that continue and end the restart.
fn commands_text(guard: &GuardClient, options: &Options) -> String {
    let (namespace, name) = (to_shell_word(&options.namespace), to_shell_word(&options.name));
    let command = format!("{} -n {namespace} statefulset/{name}", guard.api_server.command("restart"));
    format!("Continue: {command}. End: {command} --abort")
}
