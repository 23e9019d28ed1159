//! Status of all guarded clusters. A survey reads and counts the same data as an evaluation, and reserves nothing.

pub(crate) mod background;
pub(crate) mod cluster_metrics;
mod gaps;
pub(crate) mod priority;
pub(crate) mod shares;
pub(crate) mod status;
#[cfg(test)]
mod tests;
mod traps;

use std::{collections::BTreeSet, pin::pin, time::Duration};

use futures::{Stream, StreamExt, stream};
use k8s_openapi::jiff::Timestamp;
use tokio::{
    sync::{Mutex, MutexGuard},
    time::{Instant, sleep_until},
};

use crate::{
    deadline::{Deadline, DeadlineExceeded},
    services::Services,
    survey::{
        cluster_metrics::ClusterMetrics,
        priority::{OwnPriority, Priority},
        shares::{Share, Shares},
        status::cluster_status,
        traps::{Evidence, unready_minutes},
    },
};
use etcd_guard_api::{BackupStatus, ClusterStatus, RecognitionGap, Survey};
use etcd_guard_core::{
    annotations::LAST_BACKUP,
    assess::cluster_summary::ClusterSummary,
    cluster_key::ClusterKey,
    discovery::{etcd_pod, fail_closed::owner_only_warning, stopped_pod::label_command},
    objects::{pod::Pod, stateful_set::StatefulSet},
    policy::ResolvedPolicy,
    reservation::Reservation,
};

/// Maximum number of namespaces that are surveyed concurrently: one namespace with a frozen member does not delay the
/// others, and the load on the API server and the members is bounded.
const MAX_CONCURRENT_NAMESPACES: usize = 4;

/// Longest time between the starts of two surveys of namespaces.
const MAX_PAUSE: Duration = Duration::from_millis(25);

/// Surveys the guarded clusters.
pub(crate) struct Surveyor {
    services: Services,
    own_priority: OwnPriority,
    cluster_metrics: ClusterMetrics,
    /// Divides periodic surveys between the replicas; `None` if the guard does not run in a pod.
    shares: Option<Shares>,
    requested: RequestedSurveys,
}

/// Admits at most one survey of all namespaces and one survey of a single namespace on request at the same time. Neither waits
/// for the other.
#[derive(Default)]
struct RequestedSurveys {
    all: Mutex<()>,
    single: Mutex<()>,
}

/// The namespaces of a survey.
#[derive(Clone, Copy)]
enum Scope<'a> {
    All,
    Namespace(&'a str),
    /// The namespaces of this replica.
    Share(&'a Share),
}

// === impl Surveyor ===

impl Surveyor {
    /// Creates a surveyor that takes snapshots with these services.
    pub(crate) fn new(
        services: Services,
        own_priority: OwnPriority,
        cluster_metrics: ClusterMetrics,
        shares: Option<Shares>,
    ) -> Self {
        let requested = RequestedSurveys::default();
        Self { services, own_priority, cluster_metrics, shares, requested }
    }

    /// Surveys the etcd clusters of this namespace, or of all namespaces with the guard's label. Runs one survey
    /// of each kind at a time, so that several clients that watch the status cause no more load than one client.
    pub(crate) async fn survey(&self, namespace: Option<&str>, deadline: Deadline) -> Survey {
        let _running = match self.requested.start(namespace, deadline).await {
            Ok(running) => running,
            Err(late) => {
                let problems = vec![problem("a survey", &late.to_string())];
                return Survey { problems, ..self.empty() };
            }
        };
        self.survey_scope(namespace.map_or(Scope::All, Scope::Namespace), Duration::ZERO, deadline).await
    }

    /// Returns a survey without clusters.
    fn empty(&self) -> Survey {
        Survey {
            opt_in_label: Some(self.services.observer.annotations.opt_in_label().clone()),
            ..Survey::default()
        }
    }

    /// Surveys namespaces. The surveys of the namespaces start within `spread`, unless members delay them.
    async fn survey_scope(&self, scope: Scope<'_>, spread: Duration, deadline: Deadline) -> Survey {
        let started = Instant::now();
        let mut survey = self.empty();
        let read = deadline
            .within("reading the reservations from the API server", self.services.reservations.list_active());
        let reserved = match read.await {
            Ok(Ok((reserved, invalid))) => {
                let problem = |error| format!("the reservations of one namespace are unknown: {error}");
                survey.problems.extend(invalid.into_iter().map(problem));
                reserved
            }
            Ok(Err(error)) => {
                survey.problems.push(format!("the reservations are unknown: {error}"));
                Vec::new()
            }
            Err(late) => {
                let problems = vec![problem("the reservations", &late.to_string())];
                return Survey { problems, ..survey };
            }
        };
        let guarded = self.services.observer.annotations.guarded_namespaces().borrow().clone();
        let namespaces = match scope {
            Scope::Namespace(name) => {
                if !guarded.contains(name) {
                    let command = label_command(name, self.services.observer.annotations.opt_in_label());
                    survey.problems.push(format!("namespace {name} is not guarded: {command}"));
                }
                vec![name.to_owned()]
            }
            Scope::All => guarded.iter().cloned().collect(),
            Scope::Share(share) => guarded.iter().filter(|name| share.contains(name)).cloned().collect(),
        };
        let own = Box::pin(self.own_priority.read(deadline)).await;
        survey.guard_priority = own.as_ref().map(Priority::value);
        let surveys: Vec<_> = namespaces
            .iter()
            .map(|namespace| {
                // Deletions in other namespaces do not depend on the guard.
                let own = own.as_ref().filter(|_| guarded.contains(namespace));
                self.survey_namespace(namespace, &reserved, own, deadline)
            })
            .collect();
        // The results have the order of the namespaces.
        let mut surveys = pin!(spread_out(surveys, started, spread));
        let (mut names, mut unread) = (namespaces.iter(), Vec::new());
        while let Some(result) = surveys.next().await {
            let namespace = names.next();
            match result {
                Ok((clusters, warning, gaps)) => {
                    survey.clusters.extend(clusters);
                    survey.warnings.extend(warning);
                    survey.gaps.extend(gaps);
                }
                Err(problem) => {
                    survey.problems.push(problem);
                    unread.extend(namespace.cloned());
                }
            }
        }
        survey.unread_namespaces = Some(unread);
        survey
    }

    /// Returns the clusters of a namespace, and a warning about its other pods.
    async fn survey_namespace(
        &self,
        namespace: &str,
        reserved: &[Reservation],
        own: Option<&Priority>,
        deadline: Deadline,
    ) -> Result<(Vec<ClusterStatus>, Option<String>, Vec<RecognitionGap>), String> {
        let listed = self.services.observer.list_pods(namespace, deadline).await;
        let pods = listed.map_err(|error| problem(&format!("namespace {namespace}"), &error.to_string()))?;
        let mut clusters: Vec<ClusterStatus> = Vec::new();
        let keys = cluster_keys(namespace, &pods);
        let is_guarded = self.services.observer.annotations.is_guarded(namespace);
        let others = pods.iter().filter(|pod| is_other_pod(namespace, pod, &keys));
        let warning = own.and_then(|own| own.namespace_warning(namespace, others));
        for (cluster_key, first) in keys {
            let snapshot =
                self.services.observer.observe_with_storage(&cluster_key, &pods, reserved, deadline).await;
            let summary = ClusterSummary::new(&snapshot);
            if let Some(tally) = &summary.tally {
                self.services.ownership.voters.record(&cluster_key, tally.voters);
            }
            let ResolvedPolicy { settings, mut warnings, .. } =
                self.services.policies.resolve_for_pod(cluster_key.namespace(), first, deadline).await;
            let members = pods.iter().filter(|pod| {
                !pod.is_finished() && !pod.is_mirror() && ClusterKey::from_pod(namespace, pod) == cluster_key
            });
            if is_guarded {
                warnings.extend(owner_only_warning(namespace, members.clone()));
            }
            let last_backup = self.last_backup(namespace, members.clone());
            warnings.extend(own.and_then(|own| own.warning(members.clone())));
            let status = cluster_status(&snapshot, &summary, reserved, settings, warnings);
            let mut status = ClusterStatus { last_backup, ..status };
            let members: Vec<&Pod> = members.collect();
            let now = self.services.policies.wall_clock.now();
            let sets = self.stateful_sets_of_unready(namespace, &members, now, deadline).await;
            let without_space = &snapshot.members_without_space();
            status.traps = Evidence { pods: &members, sets: &sets, without_space, now }.traps(&status);
            // If each member has a StatefulSet of its own, several keys identify the same cluster.
            let is_same = |known: &&mut ClusterStatus| known.id.is_some() && known.id == status.id;
            match clusters.iter_mut().find(is_same) {
                Some(known) => {
                    known.name = format!("{},{}", known.name, status.name);
                    let backups = [known.last_backup.take(), status.last_backup].into_iter().flatten();
                    known.last_backup = backups.max_by(|one, other| one.at.cmp(&other.at));
                    let new = status.traps.into_iter().filter(|trap| !known.traps.contains(trap));
                    let new: Vec<String> = new.collect();
                    known.traps.extend(new);
                }
                None => clusters.push(status),
            }
        }
        let label = self.services.observer.annotations.opt_in_label();
        let gaps = if is_guarded { gaps::find(namespace, &pods, label) } else { Vec::new() };
        Ok((clusters, warning, gaps))
    }

    /// Returns the StatefulSets of pods that have been unready for a long time, as far as they can be read.
    async fn stateful_sets_of_unready(
        &self,
        namespace: &str,
        pods: &[&Pod],
        now: Timestamp,
        deadline: Deadline,
    ) -> Vec<StatefulSet> {
        let unready = pods.iter().filter(|pod| unready_minutes(pod, now).is_some());
        let names: BTreeSet<&str> = unready.filter_map(|pod| pod.stateful_set()).collect();
        let mut sets = Vec::new();
        for name in names {
            let read = self.services.observer.pods.get_stateful_set(namespace, name);
            let read = deadline.within("reading the StatefulSet from the API server", read).await;
            sets.extend(read.ok().and_then(Result::ok));
        }
        sets
    }

    /// Returns the last backup that an annotation of these pods or of their StatefulSets records.
    fn last_backup<'a>(&self, namespace: &str, pods: impl Iterator<Item = &'a Pod>) -> Option<BackupStatus> {
        let recorded = |pod: &Pod| match pod.stateful_set() {
            Some(set) => {
                let annotations = self.services.observer.annotations.stateful_set_annotations(namespace, set);
                read_backup(annotations.get(LAST_BACKUP)?)
            }
            None => read_backup(pod.metadata.annotations.get(LAST_BACKUP)?),
        };
        // All times have one format.
        pods.filter_map(recorded).max_by(|one, other| one.at.cmp(&other.at))
    }
}

// === impl RequestedSurveys ===

impl RequestedSurveys {
    /// Waits until no other survey of this kind runs. The lock is held until the caller drops the result.
    async fn start(
        &self,
        namespace: Option<&str>,
        deadline: Deadline,
    ) -> Result<MutexGuard<'_, ()>, DeadlineExceeded> {
        let lock = if namespace.is_some() { &self.single } else { &self.all };
        deadline.within("waiting for another survey", lock.lock()).await
    }
}

/// Runs surveys of namespaces, of which at most [`MAX_CONCURRENT_NAMESPACES`] run at the same time. Each survey
/// is scheduled between `started` and `started + spread`. It starts later if earlier surveys occupy all slots. Returns the results in the
/// order of the surveys.
fn spread_out<F: Future>(
    surveys: Vec<F>,
    started: Instant,
    spread: Duration,
) -> impl Stream<Item = F::Output> {
    let pause = pause(surveys.len(), spread);
    let surveys = (0..).zip(surveys).map(move |(place, survey)| async move {
        sleep_until(started + pause * place).await;
        survey.await
    });
    stream::iter(surveys).buffered(MAX_CONCURRENT_NAMESPACES)
}

/// Returns the time between the starts of two surveys of namespaces.
fn pause(namespaces: usize, spread: Duration) -> Duration {
    let count = u32::try_from(namespaces).unwrap_or(u32::MAX).max(1);
    MAX_PAUSE.min(spread / count)
}

/// Reads the value of the annotation: `REVISION@TIME`.
fn read_backup(value: &str) -> Option<BackupStatus> {
    let (revision, at) = value.split_once('@')?;
    Some(BackupStatus { at: at.to_owned(), revision: revision.parse().ok()? })
}

/// Whether the API server evaluates the deletion of this pod although it belongs to none of these clusters. It does so for
/// mirror pods as well, but not for finished or terminating pods.
fn is_other_pod(namespace: &str, pod: &Pod, clusters: &[(ClusterKey, &Pod)]) -> bool {
    let is_member = || {
        let key = ClusterKey::from_pod(namespace, pod);
        clusters.iter().any(|(known, _)| *known == key)
    };
    !pod.is_finished() && !pod.is_terminating() && (pod.is_mirror() || !is_member())
}

/// Returns the keys of the clusters that run etcd, in the order of the pods, each with its first pod.
fn cluster_keys<'a>(namespace: &str, pods: &'a [Pod]) -> Vec<(ClusterKey, &'a Pod)> {
    let mut keys: Vec<(ClusterKey, &Pod)> = Vec::new();
    for pod in pods {
        if pod.is_finished() || pod.is_mirror() || !etcd_pod::runs_member(pod, &pod.metadata.annotations) {
            continue;
        }
        let key = ClusterKey::from_pod(namespace, pod);
        if !keys.iter().any(|(known, _)| *known == key) {
            keys.push((key, pod));
        }
    }
    keys
}

fn problem(subject: &str, cause: &str) -> String {
    format!("{subject}: {cause}")
}
