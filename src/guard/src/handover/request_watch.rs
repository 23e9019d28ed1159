//! The watch of requests: annotations of StatefulSets, and of pods without a StatefulSet, in guarded namespaces.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    deadline::Deadline,
    handover::{
        mover::{Mover, Task},
        report::{Outcome, Subject},
        request::Requested,
    },
};
use etcd_guard_core::{
    cluster_key::ClusterKey,
    discovery::etcd_pod,
    escape::{MAX_NAME_CHARS, to_bounded_line},
    handover::{Signal, Trigger},
    objects::pod::Pod,
};
use etcd_guard_kubernetes::{EventRecord, MoveRequest};

/// Interval between comparisons of the watches with the known requests. A comparison calls no API.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum number of requests that are carried out at the same time: users write them, and each probes a cluster.
const MAX_CONCURRENT: usize = 8;

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
        let mut known: BTreeSet<MoveRequest> = BTreeSet::new();
        let mut tasks = JoinSet::new();
        let slots = Arc::new(Semaphore::new(MAX_CONCURRENT));
        // At its start, a replica ignores invalid values, because they may be old.
        let mut is_first = true;
        loop {
            while tasks.try_join_next().is_some() {}
            let requests = annotations.move_requests();
            let current: BTreeSet<&MoveRequest> = requests.iter().collect();
            known.retain(|request| current.contains(request));
            for request in requests {
                let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else { break };
                if !known.insert(request.clone()) {
                    continue;
                }
                match Requested::parse(&request.value) {
                    Some(requested)
                        if requested.is_current(self.mover.services.policies.wall_clock.now()) =>
                    {
                        tasks.spawn(carry_out(
                            Arc::clone(&self.mover),
                            Arc::clone(&slots),
                            slot,
                            request,
                            requested,
                        ));
                    }
                    Some(_) => {
                        tracing::info!(
                            namespace = request.namespace,
                            object = request.name,
                            "ignored a request to move leadership: its time differs from the clock of this \
                             replica by more than a minute"
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

/// Carries out a request. While another replica acts, the request has no slot.
async fn carry_out(
    mover: Arc<Mover>,
    slots: Arc<Semaphore>,
    slot: OwnedSemaphorePermit,
    request: MoveRequest,
    requested: Requested,
) {
    let started = Instant::now();
    let signal = signal(&request);
    let outcome = match find_pod(&mover, &request).await {
        Ok(pod) => {
            let cluster_key = ClusterKey::from_pod(&request.namespace, &pod);
            // Leadership leaves the annotated pod, or moves to the pod that the request names.
            let leaving = (request.is_pod && requested.transferee.is_none()).then_some(request.name.as_str());
            let task = Task {
                cluster_key: &cluster_key,
                signal: &signal,
                transferee: requested.transferee.as_deref(),
                leaves: &|_, leader| leaving.is_none_or(|name| name == leader),
                node: None,
            };
            let mut slot = Some(slot);
            loop {
                match mover.hand_over(&task).await {
                    // The other replica may end before the transfer or before its answer. A later value replaces a request that
                    // has waited: the waiting requests of an object do not grow.
                    Outcome::InProgress(rest) => {
                        drop(slot.take());
                        sleep(rest).await;
                        if !mover.services.observer.annotations.move_requests().contains(&request) {
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

fn reject(mover: &Mover, request: &MoveRequest) {
    let cause =
        String::from("the annotation does not have the form POD@TIME, such as etcd-1@2026-01-31T12:00:00Z");
    answer(mover, request, &signal(request), &Outcome::Rejected(cause), Duration::ZERO);
}

fn answer(mover: &Mover, request: &MoveRequest, signal: &Signal, outcome: &Outcome, elapsed: Duration) {
    let MoveRequest { namespace, name, uid, value, is_pod } = request;
    let kind = if *is_pod { ("v1", "Pod") } else { ("apps/v1", "StatefulSet") };
    let object = EventRecord::object(kind, Some(namespace), name, Some(uid));
    let subject = Subject { object, stateful_set: None };
    let cluster = format!("{namespace}/{name}");
    let value = to_bounded_line(value, MAX_NAME_CHARS);
    mover.reporter.answer(&cluster, (signal, &value), outcome, elapsed, (namespace, subject));
}

fn signal(request: &MoveRequest) -> Signal {
    let trigger = Trigger::Request;
    let value = to_bounded_line(&request.value, MAX_NAME_CHARS);
    Signal { trigger, id: format!("{}/{}/{value}", trigger.as_str(), request.uid), text: value }
}

/// Returns a pod of the annotated object that runs a member.
async fn find_pod(mover: &Mover, request: &MoveRequest) -> Result<Pod, String> {
    let MoveRequest { namespace, name, uid, is_pod, .. } = request;
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
    found.cloned().ok_or_else(|| format!("{kind} {name} runs no etcd member"))
}
