//! The watch of requests: annotations of StatefulSets, and of pods without a StatefulSet, in guarded namespaces.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ObjectReference;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    deadline::Deadline,
    handover::{
        defragmentation::{self, DEFRAGMENTATION_FAILED, Defragmentation},
        errand::Errand,
        mover::{Mover, Task},
        replacement::{self, REPLACEMENT_FAILED, Replacement},
        report::{Outcome, Subject},
        request::{Order, Replace, Requested},
    },
};
use etcd_guard_core::{
    cluster_key::ClusterKey,
    discovery::etcd_pod,
    escape::{MAX_NAME_CHARS, to_bounded_line},
    handover::{DEFRAGMENTATION, REPLACEMENT, Signal, Trigger},
    objects::pod::Pod,
};
use etcd_guard_kubernetes::{Action, ActionRequest, EventRecord};

/// Interval between comparisons of the watches with the known requests. A comparison calls no API.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum number of moves of leadership that are carried out at the same time: users request them, and each probes a cluster.
const MAX_MOVES: usize = 8;

/// Maximum number of members that are defragmented at the same time, each of another cluster.
const MAX_DEFRAGMENTATIONS: usize = 4;

/// Maximum number of clusters that are probed at the same time for steps of replacements.
const MAX_REPLACEMENTS: usize = 4;

/// Time limit for finding the pods of a request.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Carries out requests.
pub(super) struct RequestWatch {
    mover: Arc<Mover>,
}

// === impl RequestWatch ===

impl RequestWatch {
    pub(super) fn new(mover: Arc<Mover>) -> Self {
        Self { mover }
    }

    /// Carries out requests until the future is dropped.
    pub(super) async fn run(&self) {
        let annotations = &self.mover.services.observer.annotations;
        while !annotations.wait_until_synced().await {
            sleep(CHECK_INTERVAL).await;
        }
        let mut known: BTreeSet<ActionRequest> = BTreeSet::new();
        let mut tasks = JoinSet::new();
        let for_moves = Arc::new(Semaphore::new(MAX_MOVES));
        let for_defragmentations = Arc::new(Semaphore::new(MAX_DEFRAGMENTATIONS));
        let for_replacements = Arc::new(Semaphore::new(MAX_REPLACEMENTS));
        // At its start, a replica ignores invalid values, because they may be old.
        let mut is_first = true;
        loop {
            while tasks.try_join_next().is_some() {}
            let requests = annotations.requests();
            let current: BTreeSet<&ActionRequest> = requests.iter().collect();
            known.retain(|request| current.contains(request));
            for request in requests {
                if known.contains(&request) {
                    continue;
                }
                let slot = match request.action {
                    Action::MoveLeader => Arc::clone(&for_moves).try_acquire_owned().ok(),
                    Action::Defragment | Action::Replace => None,
                };
                if request.action == Action::MoveLeader && slot.is_none() {
                    continue;
                }
                known.insert(request.clone());
                match Requested::parse(request.action, &request.value) {
                    Some(requested)
                        if requested.is_current(self.mover.services.policies.wall_clock.now()) =>
                    {
                        let mover = Arc::clone(&self.mover);
                        match requested.order {
                            Order::Move(to) => {
                                tasks.spawn(move_leadership(mover, Arc::clone(&for_moves), slot, request, to))
                            }
                            Order::Defragment(percent) => {
                                let slots = Arc::clone(&for_defragmentations);
                                tasks.spawn(defragment(mover, slots, request, percent))
                            }
                            Order::Replace(step) => {
                                let slots = Arc::clone(&for_replacements);
                                tasks.spawn(replace(mover, slots, request, step))
                            }
                        };
                    }
                    Some(_) => {
                        tracing::info!(
                            namespace = request.namespace,
                            object = request.name,
                            value = to_bounded_line(&request.value, MAX_NAME_CHARS),
                            "ignored a request: its time differs from the clock of this replica by more than a minute"
                        );
                    }
                    None if is_first => {}
                    None => reject(&self.mover, &request),
                }
            }
            is_first = false;
            sleep(CHECK_INTERVAL).await;
        }
    }
}

/// Defragments the members of the annotated object's cluster.
async fn defragment(mover: Arc<Mover>, slots: Arc<Semaphore>, request: ActionRequest, percent: u8) {
    let (mover, request, slots) = (&*mover, &request, &*slots);
    let report = &|is_warning, reason, text: &str| event(mover, request, is_warning, reason, text);
    match &find_cluster(mover, request).await {
        Ok(cluster_key) => {
            let (kind, requester) = (DEFRAGMENTATION, defragmentation::REQUESTER);
            let errand = Errand { mover, cluster_key, request, kind, requester, slots, report };
            Box::pin(Defragmentation { errand, min_free_percent: percent }.run()).await;
        }
        Err(cause) => report(true, DEFRAGMENTATION_FAILED, cause),
    }
}

/// Carries out one step of a replacement.
async fn replace(mover: Arc<Mover>, slots: Arc<Semaphore>, request: ActionRequest, step: Replace) {
    let (mover, request, slots) = (&*mover, &request, &*slots);
    let report = &|is_warning, reason, text: &str| event(mover, request, is_warning, reason, text);
    if request.is_pod {
        let cause = "nothing creates the pod again: annotate a StatefulSet, or replace the member by hand";
        return report(true, REPLACEMENT_FAILED, cause);
    }
    match &find_cluster(mover, request).await {
        Ok(cluster_key) => {
            let (kind, requester) = (REPLACEMENT, replacement::REQUESTER);
            let errand = Errand { mover, cluster_key, request, kind, requester, slots, report };
            Box::pin(Replacement { errand, replace: &step }.run()).await;
        }
        Err(cause) => report(true, REPLACEMENT_FAILED, cause),
    }
}

/// Moves leadership. While another replica acts, the request has no slot.
async fn move_leadership(
    mover: Arc<Mover>,
    slots: Arc<Semaphore>,
    mut slot: Option<OwnedSemaphorePermit>,
    request: ActionRequest,
    transferee: Option<String>,
) {
    let started = Instant::now();
    let signal = signal(&request);
    let outcome = match find_cluster(&mover, &request).await {
        Ok(cluster_key) => {
            // Leadership leaves the annotated pod, or moves to the pod that the request names.
            let leaving = (request.is_pod && transferee.is_none()).then_some(request.name.as_str());
            let task = Task {
                cluster_key: &cluster_key,
                signal: &signal,
                transferee: transferee.as_deref(),
                leaves: &|_, leader| leaving.is_none_or(|name| name == leader),
                node: None,
            };
            loop {
                match mover.hand_over(&task).await {
                    // The other replica may end before the transfer or before its answer. A later value replaces a request that
                    // has waited: the waiting requests of an object do not grow.
                    Outcome::InProgress(rest) => {
                        drop(slot.take());
                        sleep(rest).await;
                        if !mover.services.observer.annotations.requests().contains(&request) {
                            break Outcome::Withdrawn;
                        }
                        slot = Arc::clone(&slots).acquire_owned().await.ok();
                    }
                    outcome => break outcome,
                }
            }
        }
        Err(cause) => Outcome::Rejected(cause),
    };
    answer(&mover, &request, &signal, &outcome, started.elapsed());
}

fn reject(mover: &Mover, request: &ActionRequest) {
    let form = "the annotation does not have the form";
    match request.action {
        Action::MoveLeader => {
            let cause = format!("{form} POD@TIME, such as etcd-1@2026-01-31T12:00:00Z");
            answer(mover, request, &signal(request), &Outcome::Rejected(cause), Duration::ZERO);
        }
        Action::Defragment => {
            let cause = format!("{form} @TIME or PERCENT%@TIME, such as 30%@2026-01-31T12:00:00Z");
            event(mover, request, true, DEFRAGMENTATION_FAILED, &cause);
        }
        Action::Replace => {
            let cause = format!("{form} STEP POD MEMBER@TIME: use kubectl etcd-guard replace");
            event(mover, request, true, REPLACEMENT_FAILED, &cause);
        }
    }
}

fn answer(mover: &Mover, request: &ActionRequest, signal: &Signal, outcome: &Outcome, elapsed: Duration) {
    let ActionRequest { namespace, name, value, .. } = request;
    let subject = Subject { object: object(request), stateful_set: None };
    let cluster = format!("{namespace}/{name}");
    let value = to_bounded_line(value, MAX_NAME_CHARS);
    mover.reporter.answer(&cluster, (signal, &value), outcome, elapsed, (namespace, subject));
}

/// Records an event about a defragmentation or a replacement. Its note begins with the name and the value of the annotation.
fn event(mover: &Mover, request: &ActionRequest, is_warning: bool, reason: &'static str, text: &str) {
    let value = to_bounded_line(&request.value, MAX_NAME_CHARS);
    let (action, name) = match request.action {
        Action::Replace => ("Replace", REPLACEMENT),
        Action::MoveLeader | Action::Defragment => ("Defragment", DEFRAGMENTATION),
    };
    mover.services.events.answer(EventRecord {
        object: object(request),
        stateful_set: None,
        is_warning,
        reason,
        action,
        note: format!("{name} {value}: {text}"),
        documentation: None,
    });
}

fn object(request: &ActionRequest) -> ObjectReference {
    let kind = if request.is_pod { ("v1", "Pod") } else { ("apps/v1", "StatefulSet") };
    EventRecord::object(kind, Some(&request.namespace), &request.name, Some(&request.uid))
}

fn signal(request: &ActionRequest) -> Signal {
    let trigger = Trigger::Request;
    let value = to_bounded_line(&request.value, MAX_NAME_CHARS);
    Signal { trigger, id: format!("{}/{}/{value}", trigger.as_str(), request.uid), text: value }
}

/// Returns the cluster of the annotated object: that of one of its pods which runs a member.
async fn find_cluster(mover: &Mover, request: &ActionRequest) -> Result<ClusterKey, String> {
    let ActionRequest { namespace, name, uid, is_pod, .. } = request;
    let deadline = Deadline::from_timeout(Some(LOOKUP_TIMEOUT));
    let pods =
        mover.services.observer.list_pods(namespace, deadline).await.map_err(|error| error.to_string())?;
    let is_of_object = |pod: &&Pod| match is_pod {
        true => pod.metadata.uid == *uid,
        false => pod.controller().is_some_and(|owner| owner.uid == *uid),
    };
    let runs_member = |pod: &&Pod| etcd_pod::read(pod, &pod.metadata.annotations).is_some();
    let found = pods.iter().filter(is_of_object).find(runs_member);
    let kind = if *is_pod { "pod" } else { "StatefulSet" };
    let key = found.map(|pod| ClusterKey::from_pod(namespace, pod));
    key.ok_or_else(|| format!("{kind} {name} runs no etcd member"))
}
