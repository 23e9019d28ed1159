//! One evaluation of a request, from top to bottom: may this pod go now?
//!
//! The deletion or eviction of a pod passes the stages below, in this order. Each stage hands its result to the next one,
//! ends the evaluation with a verdict ([`Step::Answer`]), or starts it again ([`Step::Retry`]), almost always at `read`.
//!
//! 1. **scope**: other namespaces are never touched, and pods without etcd need no probe. What a review contains can be
//!    forged: such a request gets its answer, and nothing else happens.
//! 2. **target**: the pod as it exists now, its cluster, and its policy. The copy of the pod in a review, or the name of an
//!    evicted pod, only tells where to look, so that pods and reservations are read in one step. Break-glass, audit mode,
//!    and all other policies that approve something are those of the existing pod. The copy may only deny.
//! 3. **lock**: one evaluation of a cluster at a time. A probe result of the last 500 ms may deny. It never approves.
//! 4. **read**: the etcd pods of the namespace, and the reservations: deletions that were approved a moment ago.
//! 5. **probe**: asks every member now. Reservations are read before, so that an approval of another replica in between
//!    leads to a write conflict.
//! 6. **assess**: counts the voters that would remain. Pure arithmetic, in [`assess`](etcd_guard_core::assess).
//! 7. **reserve**: stores the approval before it is returned, so that all replicas count the pod as gone. If the policy asks
//!    for it, leadership moves first ([`transfer`]).
//! 8. **answer**: adds the next command for people, applies break-glass and audit mode, and records events.
//!
//! Deletions that follow from another deletion are in [`cascade`], operations on StatefulSets, namespaces, claims, nodes
//! and other parent objects in [`workload_operations`]. Everything that touches the reservations is in [`ledger`].
//! If the time of the API server's timeout runs out at any stage, the verdict is a denial that says so.

mod budget;
mod cascade;
pub(crate) mod effective_policy;
mod events;
#[cfg(test)]
mod fixture;
mod ledger;
mod transfer;
mod uncertain_storage;
mod workload_operations;

use std::{borrow::Cow, sync::Arc, time::Duration};

use tokio::{
    sync::OwnedMutexGuard,
    time::{Instant, sleep_until},
};

#[cfg(any(test, feature = "fixtures"))]
pub(crate) use self::workload_operations::owner_arguments as break_glass_object;
use self::{
    cascade::Cascade,
    ledger::{Ledger, Written},
    uncertain_storage::assess_with_claim,
};
use crate::{
    cluster_cache::{SNAPSHOT_TTL, SNAPSHOT_TTL_WHILE_PROBING},
    deadline::{ANSWER_RESERVE, Deadline},
    observe::{error::EvaluationError, namespace_pods::NamespacePods, observer::Observation},
    services::Services,
};
use etcd_guard_core::{
    annotations::MEMBER,
    assess::{Assessment, assess, independent::cluster_of_independent_pod, stray::cluster_of_stray},
    cluster_key::ClusterKey,
    discovery::{
        etcd_pod, recognition,
        stopped_pod::{namespace_not_guarded, not_etcd, pod_gone, verdict_of_stopped_pod, warn_not_guarded},
    },
    escape::to_shell_word,
    etcd::probe_result::ProbeResult,
    explain::{
        advise_inspection, break_glass_advice, explain, explain_deadline, explain_recent_move,
        explain_transferee,
    },
    membership::{Membership, single_member::SingleMemberEvidence},
    mistakes::Mistake,
    objects::pod::Pod,
    policy::{LeaderPolicy, Mode, Permission, Policy, ResolvedPolicy},
    reason::Reason,
    request::{Operation, PodUpdate, Request, Requester},
    reservation::Reservation,
    snapshot::{MemberPod, Snapshot, silence::CONFIRMATION_TIME},
    verdict::Verdict,
};
use etcd_guard_etcd::EarlyConnections;
use etcd_guard_kubernetes::LookupError;

/// Minimum time for the second look at a silent pod: a read of the pods, and a probe round.
const MIN_CONFIRMATION: Duration = Duration::from_secs(1);

/// One request that is evaluated, and what the evaluation works with.
pub(crate) struct Evaluation<'a> {
    services: &'a Services,
    request: &'a Request,
    /// The time by which the verdict must be ready.
    deadline: Deadline,
}

/// How a stage ends if the next stage does not follow.
enum Step {
    /// The evaluation starts again with the stage `read`.
    Retry(Why),
    /// The evaluation ends.
    Answer(Box<Verdict>),
}

/// Why an evaluation starts again.
#[derive(Clone, Copy, Debug)]
enum Why {
    /// The pods were read by the names of known members, and these are not all that matter.
    MorePods,
    /// The cluster has voters in other namespaces, whose reservations must be read as well.
    MoreLedgers,
    /// Another replica has approved a deletion since the reservations were read.
    Conflict,
    /// The pod had ended, and its successor now has the name that the eviction contains. The evaluation starts with `target`.
    NewPod,
    /// The member of the pod is silent, and a second look must confirm it.
    Silence,
}

/// The namespaces in which requests are evaluated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Namespaces {
    Guarded,
    All,
}

/// The pod of a request as it exists, and what follows from it.
struct Target {
    pod: Pod,
    cluster_key: ClusterKey,
    /// The policy as it applies to the requester.
    resolved: ResolvedPolicy,
    /// Whether the policy for deletions of the leader depends on the requester.
    is_auto: bool,
    cascade: Cascade,
}

/// The pod of a request as it exists, when it was found.
struct Found {
    pod: Pod,
    /// The approval that follows from the pod alone: its deletion stops no member.
    approval: Option<Verdict>,
    /// What was read together with the pod.
    held: Option<Held>,
}

/// The cluster lock, and what was read since it was acquired. It need not be read again while the lock is held: a change by
/// another replica causes a write conflict.
struct Held {
    lock: OwnedMutexGuard<()>,
    listed: Listed,
}

/// The cluster lock, or the denial for which it is not required.
enum Lock {
    /// No other evaluation of this cluster is in progress on this replica.
    Acquired(OwnedMutexGuard<()>),
    /// The last probe result denies the deletion.
    Denied(Box<Verdict>),
}

/// Pods and reservations as the API server returned them.
struct Listed {
    /// The pod of the request; `None` if it does not exist.
    target: Option<Pod>,
    pods: NamespacePods,
    /// `None` if the reservations were not read, because the pod may run no etcd: only its name is known, and its cluster was
    /// not evaluated before.
    ledger: Option<Ledger>,
    /// Connections to the members that are opened until the probe round. The addresses of the probe round do not depend on
    /// them.
    connecting: Option<EarlyConnections>,
}

/// What the stage `read` hands to the probe round.
struct Inputs {
    /// The pods of the cluster and the other etcd pods of the namespace, with the credentials of their members.
    pods: NamespacePods,
    ledger: Ledger,
    /// The reservations that have not expired.
    reserved: Vec<Reservation>,
}

/// The result of a probe round.
struct Probed {
    snapshot: Snapshot,
    /// The reason why the claim of the target could not be read.
    claim_error: Option<LookupError>,
    evidence: SingleMemberEvidence,
}

/// The result of the arithmetic.
struct Assessed {
    assessment: Assessment,
    /// Whether the snapshot proves a member list.
    is_proven: bool,
}

// === impl Evaluation ===

impl<'a> Evaluation<'a> {
    /// Prepares the evaluation of a request, which needs a verdict before the deadline.
    pub(crate) fn new(services: &'a Services, request: &'a Request, deadline: Deadline) -> Self {
        Self { services, request, deadline }
    }

    /// Returns the verdict on the request. A request in a namespace that is not guarded is approved and has no effects.
    pub(crate) async fn evaluate(&self) -> Verdict {
        // The futures of evaluations that wait for etcd or for the API server are boxed: moving them costs more than a
        // denial that follows from the last snapshot.
        Box::pin(self.run(Namespaces::Guarded)).await
    }

    /// Returns the verdict that a dry run would get if its namespace were guarded. A warning states that it is not.
    pub(crate) async fn preview(&self) -> Verdict {
        let request = Request { dry_run: true, ..self.request.clone() };
        let preview = Evaluation::new(self.services, &request, self.deadline);
        let mut verdict = Box::pin(preview.run(Namespaces::All)).await;
        if matches!(preview.is_guarded().await, Ok(false)) {
            let label = self.services.observer.annotations.opt_in_label();
            warn_not_guarded(&mut verdict, &request.namespace, label);
        }
        verdict
    }

    async fn run(&self, namespaces: Namespaces) -> Verdict {
        let copy = match self.scope(namespaces).await {
            Ok(copy) => copy,
            Err(verdict) => return *verdict,
        };
        if let Operation::Workload(operation) = self.request.operation {
            return Box::pin(workload_operations::evaluate(self, operation)).await;
        }
        loop {
            match self.evaluate_pod(copy.as_deref()).await {
                Ok(verdict) => return verdict,
                Err(Step::Answer(verdict)) => return *verdict,
                Err(Step::Retry(why)) => tracing::debug!(?why, "the evaluation starts again"),
            }
        }
    }

    /// The stages after `scope`.
    async fn evaluate_pod(&self, copy: Option<&Pod>) -> Result<Verdict, Step> {
        let (target, held) = self.target(copy).await?;
        let verdict = match self.several_members_of_target(&target.pod) {
            Some(denial) => denial,
            None => Box::pin(self.decide(&target, held)).await,
        };
        let verdict = Box::pin(self.reserve_name(Some(&target.pod), verdict)).await?;
        Ok(self.answer(&target, verdict).await)
    }

    // --- scope ---

    /// Answers requests that the guard does not evaluate. Returns the copy of the pod in the review, with the annotations of
    /// its owners. An eviction contains no copy.
    async fn scope(&self, namespaces: Namespaces) -> Result<Option<Cow<'a, Pod>>, Box<Verdict>> {
        let &Self { services, request, deadline } = self;
        let (observer, namespace) = (&services.observer, &request.namespace);
        if let Some(verdict) = request.pod.as_ref().and_then(verdict_of_stopped_pod) {
            return Err(Box::new(verdict));
        }
        // Before the watch shows the label of a namespace, the annotations in it are unknown, so that a copy cannot prove that
        // the pod runs no etcd. Before the first list of namespaces, operations without a copy are checked below, if they have
        // effects.
        let annotations = &observer.annotations;
        if namespaces == Namespaces::Guarded
            && !annotations.is_guarded(namespace)
            && (request.pod.is_some() || annotations.are_namespaces_listed())
        {
            self.require_guarded().await?;
        }
        let mut copy = request.pod.as_ref().map(Cow::Borrowed);
        if let Some(pod) = &mut copy {
            if let Err(error) = observer.wait_for_annotations(namespace, deadline).await {
                return Err(Box::new(Box::pin(self.answer_without_owners(error)).await));
            }
            // The pod is cloned only if annotations can change it, which is rare.
            if observer.may_inherit(namespace, pod) {
                observer.apply_inherited(namespace, std::slice::from_mut(pod.to_mut()));
            }
        }
        let harmless = match (request.operation, copy.as_deref()) {
            (Operation::Workload(operation), _) => workload_operations::harmless_verdict(request, operation),
            (_, Some(pod)) => runs_no_member(pod),
            (_, None) => None,
        };
        if let Some(verdict) = harmless {
            return Err(Box::new(verdict));
        }
        if namespaces == Namespaces::Guarded {
            self.require_guarded().await?;
        }
        Ok(copy)
    }

    /// Answers a request whose namespace is not guarded or cannot be read.
    async fn require_guarded(&self) -> Result<(), Box<Verdict>> {
        let label = self.services.observer.annotations.opt_in_label();
        match self.is_guarded().await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Box::new(namespace_not_guarded(self.request, label))),
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Whether the request's namespace is guarded. A live read is required only if the watch does not show the label: the
    /// namespace may have received it a moment ago. The watch then has to show the label as well, because the
    /// annotations in the namespace are read from watches.
    async fn is_guarded(&self) -> Result<bool, EvaluationError> {
        let (observer, namespace) = (&self.services.observer, &self.request.namespace);
        let annotations = &observer.annotations;
        // Nodes have no namespace. Their evaluation considers only members in guarded namespaces.
        let is_on_node =
            matches!(self.request.operation, Operation::Workload(operation) if operation.is_on_node());
        if is_on_node || annotations.is_guarded(namespace) {
            return Ok(true);
        }
        // Boxed, because its size would add to every evaluation, and few need it.
        Box::pin(async {
            let read = observer.pods.is_namespace_guarded(namespace, annotations.opt_in_label());
            let read = self.deadline.within("reading the namespace from the API server", read).await?;
            let is_guarded = read.map_err(EvaluationError::Lookup)?;
            if is_guarded && !annotations.is_guarded(namespace) {
                let shown = annotations.wait_until_guarded(namespace);
                let step = "waiting for the watch of namespaces to show the label of the guard";
                self.deadline.within(step, shown).await?;
            }
            Ok(is_guarded)
        })
        .await
    }

    // --- target ---

    /// Finds the pod as it exists, its cluster, its policy, and whether its deletion follows from another one.
    async fn target(&self, copy: Option<&Pod>) -> Result<(Target, Option<Held>), Step> {
        let &Self { services, request, deadline } = self;
        let found = match copy {
            Some(copy) => self.find_by_copy(copy).await?,
            None => Box::pin(self.find_by_name()).await?,
        };
        let Some(Found { pod, approval, held }) = found else {
            let verdict = Box::pin(self.reserve_name(None, pod_gone(request))).await?;
            return Err(Step::Answer(Box::new(verdict)));
        };
        let cluster_key = ClusterKey::from_pod(&request.namespace, &pod);
        if let Some(approval) = approval {
            let mut verdict = Box::pin(self.reserve_name(Some(&pod), approval)).await?;
            if !verdict.allows() {
                let resolved = services.policies.resolve_for_pod(&request.namespace, &pod, deadline).await;
                let target = Target { pod, cluster_key, resolved, is_auto: false, cascade: Cascade::No };
                verdict = Box::pin(self.answer(&target, verdict)).await;
            }
            return Err(Step::Answer(Box::new(verdict)));
        }
        let cascade = cascade::of_pod(self, &pod).await;
        let mut resolved = services.policies.resolve_for_pod(&request.namespace, &pod, deadline).await;
        let is_auto = resolved.policy.leader == LeaderPolicy::Auto;
        resolved.policy = resolved.policy.for_requester(self.requester());
        if let Cascade::Proven(verdict) = cascade {
            if !request.dry_run {
                Box::pin(ledger::reserve_overruled(self, &cluster_key, &resolved.policy)).await;
            }
            return Err(Step::Answer(verdict));
        }
        Ok((Target { pod, cluster_key, resolved, is_auto, cascade }, held))
    }

    /// Returns who asks, which matters for the leader under the policy `auto`.
    fn requester(&self) -> Requester {
        Requester::of(self.request, &self.services.observer.config.borrow().programs)
    }

    /// Finds the pod whose copy the review contains. The copy can be forged: it determines which cluster is read, and may
    /// deny, but every effect rests on the live pod. A separate read of the pod would cost one call more for each decision:
    /// the pod is one of those that are read in any case.
    async fn find_by_copy(&self, copy: &Pod) -> Result<Option<Found>, Box<Verdict>> {
        let &Self { services, request, .. } = self;
        let mut resolved = services.policies.resolve_for_copy(&request.namespace, copy);
        resolved.policy = resolved.policy.for_requester(self.requester());
        let found = if cascade::may_be_cascade(self) {
            Box::pin(self.read_pod()).await
        } else {
            let cluster_key = ClusterKey::from_pod(&request.namespace, copy);
            // The annotations of an owner that was not read may overrule a denial.
            let may_deny = resolved.policy.enforces_denials() && !resolved.has_unreadable_owner;
            match self.lock(&cluster_key, &resolved.policy).await {
                Ok(Lock::Acquired(lock)) => {
                    let listed = Box::pin(self.list(&cluster_key)).await;
                    listed.map(|listed| select(lock, listed, &cluster_key))
                }
                Ok(Lock::Denied(mut denial)) if may_deny => {
                    self.complete(copy, &resolved, &Cascade::No, &mut denial);
                    events::record_pod(self, copy, &denial);
                    return Err(denial);
                }
                Ok(Lock::Denied(_)) => Box::pin(self.read_pod()).await,
                Err(error) => Err(error),
            }
        };
        found.map_err(|error| Box::new(self.answer_from_copy(copy, &resolved, error)))
    }

    /// Finds the pod of which the review contains only the name: the watch of StatefulSets maps the name to a known cluster. All
    /// other pods are read individually, because most of them run no etcd, and a list may contain thousands of pods and wait for
    /// the API server's cache. So is the pod while another evaluation holds the cluster lock: inputs that are read before the lock
    /// is acquired would be outdated when it is acquired, and the last probe result may deny the request without a list.
    async fn find_by_name(&self) -> Result<Option<Found>, Box<Verdict>> {
        let &Self { services, request, .. } = self;
        let namespace = &request.namespace;
        let set = services.observer.annotations.stateful_set_by_pod_name(namespace, &request.name);
        let key = set.map(|(set, uid)| ClusterKey::from_stateful_set(namespace, set, uid));
        let key = key.filter(|key| services.cache.member_pods.get(key).is_some());
        let lock = key.and_then(|key| Some((services.cache.lock(&key).try_lock_owned().ok()?, key)));
        let found = match lock {
            None => self.read_pod().await,
            Some((lock, key)) => {
                let listed = self.list(&key).await;
                match listed {
                    Ok(listed) => Ok(select(lock, listed, &key)),
                    Err(error @ EvaluationError::DeadlineExceeded(_)) => Err(error),
                    Err(_) => {
                        drop(lock);
                        self.read_pod().await
                    }
                }
            }
        };
        match found {
            Ok(found) => Ok(found),
            Err(error) => Err(Box::new(self.answer_without_owners(error).await)),
        }
    }

    /// Reads the pod without anything else. Returns `None` if it does not exist.
    async fn read_pod(&self) -> Result<Option<Found>, EvaluationError> {
        let &Self { services, request, deadline } = self;
        let Some(mut pod) = services.observer.live_pod(request, deadline).await? else { return Ok(None) };
        let mut approval = verdict_of_stopped_pod(&pod);
        if approval.is_none() {
            let pods = std::slice::from_mut(&mut pod);
            services.observer.add_inherited(&request.namespace, pods, deadline).await?;
            approval = runs_no_member(&pod);
        }
        Ok(Some(Found { pod, approval, held: None }))
    }

    fn several_members_of_target(&self, pod: &Pod) -> Option<Verdict> {
        let (namespace, name) = (to_shell_word(&self.request.namespace), to_shell_word(&pod.metadata.name));
        several_members(self, pod, &format!("-n {namespace} pod {name}"))
    }

    fn find<'p>(&self, pods: &'p [Pod]) -> Option<&'p Pod> {
        pods.iter().find(|pod| self.request.matches(pod))
    }

    // --- lock ---

    /// Acquires the cluster lock, unless the last probe result denies the deletion.
    async fn lock(&self, cluster_key: &ClusterKey, policy: &Policy) -> Result<Lock, EvaluationError> {
        let denied = |max_age| {
            let denial = self.cached_denial(cluster_key, policy, max_age);
            denial.map(|denial| Lock::Denied(Box::new(denial)))
        };
        if let Some(denied) = denied(SNAPSHOT_TTL) {
            return Ok(denied);
        }
        let lock = self.services.cache.lock(cluster_key);
        let lock = if let Ok(lock) = Arc::clone(&lock).try_lock_owned() {
            lock
        } else if let Some(denied) = denied(SNAPSHOT_TTL_WHILE_PROBING) {
            return Ok(denied);
        } else {
            self.deadline.within("waiting for other deletions of this cluster", lock.lock_owned()).await?
        };
        // The previous holder of the lock may have stored a new snapshot.
        Ok(denied(SNAPSHOT_TTL).unwrap_or(Lock::Acquired(lock)))
    }

    /// Returns the denial that follows from the last snapshot, unless the snapshot is older than `max_age` or shows
    /// another pod of the same name.
    fn cached_denial(&self, cluster_key: &ClusterKey, policy: &Policy, max_age: Duration) -> Option<Verdict> {
        let cached = self.services.cache.snapshot(cluster_key, max_age)?;
        let snapshot = &cached.snapshot;
        let target = snapshot.pod(&self.request.name)?;
        if self.request.object_uid().is_some_and(|uid| uid != target.uid) {
            return None;
        }
        if let Some(denial) = cached.denial(&target.name, policy) {
            return Some(denial);
        }
        let assessment = assess(snapshot, target, policy);
        // Evidence that is not part of a snapshot may approve the deletion of a single member that does not answer.
        let may_be_single = assessment.tally.is_none() && policy.single_member == Permission::Allow;
        let may_be_approved =
            assessment.wants_transfer(policy) || assessment.awaits_confirmation || may_be_single;
        let denies = !assessment.reason.allows() && !may_be_approved;
        if !denies && !Mistake::ApproveFromCache.is_active() {
            return None;
        }
        let denial = self.explain(snapshot, target, &assessment);
        cached.store_denial(&target.name, policy, &denial);
        Some(denial)
    }

    /// Returns the verdict on the deletion of a member pod, before its policy overrules it: the stages from `lock` to
    /// `reserve`.
    async fn decide(&self, target: &Target, held: Option<Held>) -> Verdict {
        let (cluster_key, policy) = (&target.cluster_key, &target.resolved.policy);
        let (_lock, mut listed) = match held {
            Some(Held { lock, listed }) => match self.cached_denial(cluster_key, policy, SNAPSHOT_TTL) {
                Some(denial) => return denial,
                None => (lock, Some(listed)),
            },
            None => match self.lock(cluster_key, policy).await {
                Ok(Lock::Acquired(lock)) => (lock, None),
                Ok(Lock::Denied(denial)) => return *denial,
                Err(error) => return error.into_verdict(self.request),
            },
        };
        loop {
            match self.attempt(target, listed.take()).await {
                Ok(verdict) => return verdict,
                Err(Step::Answer(verdict)) => return *verdict,
                Err(Step::Retry(why)) => tracing::debug!(?why, "the evaluation starts again"),
            }
        }
    }

    /// The stages that start again after [`Step::Retry`].
    async fn attempt(&self, target: &Target, listed: Option<Listed>) -> Result<Verdict, Step> {
        let mut inputs = self.read(target, listed).await?;
        let mut probed = self.probe(target, &mut inputs).await?;
        let silent_since = self.compare_silence(&mut probed.snapshot);
        let assessed = self.assess(target, &probed)?;
        if let Some(since) = silent_since
            && assessed.assessment.awaits_confirmation
        {
            self.await_confirmation(since).await?;
        }
        self.reserve(target, inputs, probed.snapshot, assessed).await
    }

    // --- read ---

    /// Reads the pods and the reservations in parallel, and starts to connect to the members at the stored addresses.
    async fn list(&self, cluster_key: &ClusterKey) -> Result<Listed, EvaluationError> {
        let services = self.services;
        let endpoints = services.cache.member_pods.endpoints(cluster_key);
        // A copy of the pod showed a member.
        let may_run_etcd = self.request.pod.is_some() || endpoints.is_some();
        let connecting = endpoints.map(|endpoints| services.observer.connections.connect_early(&endpoints));
        let ledger = async { if may_run_etcd { Some(Ledger::read(self, cluster_key).await) } else { None } };
        let (pods, ledger) = tokio::join!(self.read_pods(cluster_key), ledger);
        let (target, pods) = pods?;
        Ok(Listed { target, pods, ledger, connecting })
    }

    /// Reads the known member pods by their names, or lists the pods of the namespace. Returns the pod of the request as
    /// well, if it exists.
    async fn read_pods(
        &self,
        cluster_key: &ClusterKey,
    ) -> Result<(Option<Pod>, NamespacePods), EvaluationError> {
        let &Self { services, request, deadline } = self;
        if let Some(names) = services.cache.member_pods.get(cluster_key)
            && let Some(pods) = services.observer.read_by_name(&names, request, deadline).await?
        {
            let target = self.find(&pods).cloned();
            let mut pods = NamespacePods::new(cluster_key, pods);
            if names.are_current(&pods) {
                pods.read_as = Some(names.cluster);
                return Ok((target, pods));
            }
        }
        let pods = services.observer.list_pods(&request.namespace, deadline).await?;
        Ok((self.find(&pods).cloned(), NamespacePods::new(cluster_key, pods)))
    }

    /// Completes what was listed since the lock was acquired, or lists it now.
    async fn read(&self, target: &Target, listed: Option<Listed>) -> Result<Inputs, Step> {
        let &Self { services, request, deadline } = self;
        let cluster_key = &target.cluster_key;
        let Listed { mut pods, ledger, connecting, .. } = match listed {
            Some(listed) => listed,
            None => {
                let listed = self.list(cluster_key).await.map_err(|error| self.fail(error))?;
                match self.ended(listed.target.as_ref()) {
                    Some(verdict) => return Err(Step::Answer(Box::new(verdict))),
                    None => listed,
                }
            }
        };
        services.observer.add_access(&mut pods, deadline).await;
        let ledger = match ledger {
            Some(ledger) => ledger,
            None => Ledger::read(self, cluster_key).await,
        };
        let reserved = ledger.active();
        // Pods and reservations were read in parallel.
        if ledger.may_be_newer_than(&request.namespace, &pods) {
            let listed = services.observer.list_pods(&request.namespace, deadline).await;
            let listed = listed.map_err(|error| self.fail(error))?;
            if let Some(verdict) = self.ended(self.find(&listed)) {
                return Err(Step::Answer(Box::new(verdict)));
            }
            pods = NamespacePods::new(cluster_key, listed);
            services.observer.add_access(&mut pods, deadline).await;
            ledger.observe_pods(&request.namespace, &pods);
        }
        // The probe round opens the connections that are still missing, at the addresses that were just read.
        if let Some(connecting) = connecting {
            connecting.abandon();
        }
        Ok(Inputs { pods, ledger, reserved })
    }

    /// Returns the approval of a deletion that needs no evaluation any more: the pod is gone, or stops already.
    fn ended(&self, pod: Option<&Pod>) -> Option<Verdict> {
        pod.map_or_else(|| Some(pod_gone(self.request)), verdict_of_stopped_pod)
    }

    // --- probe ---

    /// Probes the members, and collects the evidence that may replace their answers.
    async fn probe(&self, target: &Target, inputs: &mut Inputs) -> Result<Probed, Step> {
        let Observation { snapshot, claim_error } = self.observe(target, inputs).await?;
        if Mistake::ReadLedgerAfterProbe.is_active() {
            inputs.ledger = Ledger::read(self, &target.cluster_key).await;
        }
        let evidence = self.single_member_evidence(target, &inputs.pods, &snapshot).await;
        Ok(Probed { snapshot, claim_error, evidence })
    }

    /// Probes the members. For a stray pod, and for a pod that is a cluster of its own, the snapshot shows only its own cluster.
    async fn observe(&self, target: &Target, inputs: &Inputs) -> Result<Observation, Step> {
        let &Self { services, request, deadline } = self;
        let observed = services.observer.observe(request, &inputs.pods, &inputs.reserved, deadline).await;
        let mut observation = observed.map_err(|error| self.fail(error))?;
        if !services.cache.member_pods.update(&target.cluster_key, &observation.snapshot, &inputs.pods) {
            return Err(Step::Retry(Why::MorePods));
        }
        let snapshot = &observation.snapshot;
        let part = cluster_of_stray(snapshot, &request.name)
            .or_else(|| cluster_of_independent_pod(snapshot, &request.name));
        if let Some(part) = part {
            observation.snapshot = part;
        }
        inputs.ledger.add_expiries(&mut observation.snapshot);
        if request.operation == Operation::Update(PodUpdate::Restart)
            && etcd_pod::outlives_restart(&target.pod, &target.pod.metadata.annotations)
        {
            observation.snapshot.keep_data(&request.name);
            observation.claim_error = None;
        }
        if request.operation == Operation::Update(PodUpdate::Pause) {
            observation.snapshot.keep_member(&request.name);
            observation.claim_error = None;
        }
        Ok(observation)
    }

    /// Returns the evidence that the request's pod runs the only voter, for a snapshot in which no member proved a quorum.
    /// Costs two reads from the API server, and only where everything else is evidence of a single member.
    async fn single_member_evidence(
        &self,
        target: &Target,
        pods: &NamespacePods,
        snapshot: &Snapshot,
    ) -> SingleMemberEvidence {
        let &Self { services, request, deadline } = self;
        let is_any_healthy = snapshot.replies().any(ProbeResult::is_healthy);
        if target.resolved.policy.single_member == Permission::Deny || is_any_healthy {
            return SingleMemberEvidence::default();
        }
        let evidence = SingleMemberEvidence {
            had_more_voters: false,
            ..pods.single_member_evidence(&target.cluster_key, &request.name)
        };
        let owner = pods.controller(&request.name).filter(|owner| owner.kind == "StatefulSet");
        let (Some(owner), true) =
            (owner, SingleMemberEvidence { replicas: Some(1), ..evidence }.is_conclusive())
        else {
            return evidence;
        };
        let reader = &services.observer.pods;
        let replicas = reader.stateful_set_replicas(&request.namespace, &owner.name, &owner.uid);
        let had_more_voters = services.ownership.had_more_voters(&target.cluster_key);
        let reads = Box::pin(async { tokio::join!(replicas, had_more_voters) });
        match deadline.within("reading the StatefulSet from the API server", reads).await {
            Ok((Ok(replicas), Ok(had_more_voters))) => {
                SingleMemberEvidence { replicas, had_more_voters, ..evidence }
            }
            // Without the number of replicas, the pod does not count as a single member.
            Ok(_) | Err(_) => evidence,
        }
    }

    /// Compares the pod of the request with what this replica found before. Returns since when the pod is silent for the same
    /// reason.
    fn compare_silence(&self, snapshot: &mut Snapshot) -> Option<Instant> {
        let silences = &self.services.cache.silences;
        let taken_at = snapshot.taken_at;
        let pod = snapshot.pods.iter_mut().find(|pod| pod.name == self.request.name)?;
        if pod.silence().is_none() || pod.is_running() {
            silences.invalidate(&pod.uid);
            return None;
        }
        let earlier = silences.get(&pod.uid).filter(|earlier| pod.is_silent_as(earlier));
        pod.silent_since = earlier.and_then(|earlier| earlier.silent_since);
        if pod.silent_since.is_none() {
            pod.silent_since = Some(taken_at);
            silences.insert(pod.uid.clone(), pod.clone());
        }
        pod.silent_since
    }

    /// Starts the evaluation again as soon as a second look can confirm the silence of the pod since this instant. Returns if the
    /// time does not suffice for it.
    async fn await_confirmation(&self, since: Instant) -> Result<(), Step> {
        let at = since + CONFIRMATION_TIME;
        if at.max(Instant::now()) + MIN_CONFIRMATION > self.deadline.minus(ANSWER_RESERVE) {
            return Ok(());
        }
        sleep_until(at).await;
        Err(Step::Retry(Why::Silence))
    }

    // --- assess ---

    /// Counts the voters that would remain.
    fn assess(&self, target: &Target, probed: &Probed) -> Result<Assessed, Step> {
        let Probed { snapshot, claim_error, evidence } = probed;
        let Some(pod) = snapshot.pod(&self.request.name) else {
            return Err(Step::Answer(Box::new(changed_owner(self.request))));
        };
        let membership = Membership::new(snapshot);
        let policy = &target.resolved.policy;
        let assessment =
            assess_with_claim(snapshot, &membership, pod, policy, *evidence, claim_error.as_ref());
        let assessment = assessment.map_err(|error| self.fail(EvaluationError::Lookup(error)))?;
        if let Some(tally) = &assessment.tally {
            self.services.ownership.voters.record(&target.cluster_key, tally.voters);
        }
        Ok(Assessed { assessment, is_proven: membership.is_ok() })
    }

    // --- reserve ---

    /// Reserves an approved deletion, after which it may be answered. A denial is answered at once.
    async fn reserve(
        &self,
        target: &Target,
        inputs: Inputs,
        mut snapshot: Snapshot,
        assessed: Assessed,
    ) -> Result<Verdict, Step> {
        let &Self { services, request, .. } = self;
        let (cluster_key, policy) = (&target.cluster_key, &target.resolved.policy);
        let Inputs { pods, ledger, reserved } = inputs;
        let Assessed { assessment, is_proven } = assessed;
        let Some(pod) = snapshot.pod(&request.name) else {
            return Err(Step::Answer(Box::new(changed_owner(request))));
        };
        let wants_transfer = assessment.wants_transfer(policy);
        let may_be_deleted = assessment.reason.allows() || wants_transfer;
        let removes_vote = wants_transfer || assessment.reason.removes_a_voter();

        let costs_serving_voter = wants_transfer || assessment.reason == Reason::SafeToDelete;
        let clock = &services.policies.wall_clock;
        if costs_serving_voter && ledger.is_transferee(&pod.uid, clock.now()) {
            return Ok(explain_transferee(&snapshot, pod, &assessment, Instant::now(), clock));
        }
        if !may_be_deleted {
            let verdict = self.explain(&snapshot, pod, &assessment);
            services.cache.store_snapshot(cluster_key, snapshot);
            return Ok(verdict);
        }
        if request.operation == Operation::Update(PodUpdate::End) && removes_vote {
            return Ok(explain_deadline(&snapshot, pod, &assessment, Instant::now(), clock));
        }
        if let Some(denial) = budget::denial(self, target, &snapshot, &assessment).await {
            services.cache.store_snapshot(cluster_key, snapshot);
            return Ok(denial);
        }
        let planned = if wants_transfer {
            if let Some(rest) = ledger.pause_between_moves(&snapshot, clock.now()) {
                return Ok(explain_recent_move(&snapshot, pod, &assessment, rest, Instant::now(), clock));
            }
            Some(transfer::plan(self, &pods, &snapshot, pod).await?)
        } else {
            None
        };
        let ledgers = ledger.select(self, cluster_key, &snapshot, is_proven).map_err(Step::Retry)?;
        if request.dry_run {
            // A dry run reserves nothing, but must not approve a deletion that could not be reserved.
            if let Err(error) = ledgers
                && removes_vote
            {
                return Err(Step::Answer(self.fail(error)));
            }
            let mut verdict = self.explain(&snapshot, pod, &assessment);
            if wants_transfer {
                verdict.reason = Reason::LeaderTransferred;
                verdict.message = format!("the guard would first move leadership away from pod {}", pod.name);
                verdict.remedy = None;
            }
            services.cache.store_snapshot(cluster_key, snapshot);
            return Ok(verdict);
        }

        let stored = match ledgers {
            Ok(mut ledgers) => {
                let member = assessment.member.map(|id| id.to_string()).unwrap_or_default();
                let entry = planned.as_ref().map(|planned| planned.entry(clock.now()));
                let reserve =
                    ledger::reserve(self, &mut ledgers, &snapshot, &pod.uid, member, &pods, entry.as_ref());
                match reserve.await {
                    Ok(Written::Stored) => Ok(ledgers),
                    Ok(Written::Conflict) => return Err(Step::Retry(Why::Conflict)),
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error),
        };
        match (stored, planned) {
            (Ok(mut ledgers), Some(planned)) => {
                let had_reservation = reserved.iter().any(|reservation| reservation.uid == pod.uid);
                let transfer =
                    transfer::transfer(self, target, &snapshot, &planned, &mut ledgers, had_reservation);
                let verdict = Box::pin(transfer).await;
                // The snapshot predates the transfer.
                services.cache.invalidate_snapshot(cluster_key);
                return verdict;
            }
            (Err(error), _) if removes_vote || request.is_by_name() => {
                return Err(Step::Answer(self.fail(error)));
            }
            // A pod without a vote needs no reservation. Its successor may have a vote.
            (Ok(_) | Err(_), _) => {}
        }
        let verdict = self.explain(&snapshot, pod, &assessment);
        let uid = pod.uid.clone();
        snapshot.mark_reserved(&uid);
        services.cache.store_snapshot(cluster_key, snapshot);
        Ok(verdict)
    }

    /// Reserves the name of a pod that is gone, terminating or finished, if its eviction names no uid: the eviction can still
    /// remove the successor of the pod. Returns a denial if that is not possible. A name that belongs to no StatefulSet is not
    /// reserved while no pod has it.
    async fn reserve_name(&self, pod: Option<&Pod>, approval: Verdict) -> Result<Verdict, Step> {
        let &Self { services, request, deadline } = self;
        let has_ended =
            matches!(approval.reason, Reason::AlreadyTerminating | Reason::PodFinished | Reason::PodGone);
        if !has_ended || !request.is_by_name() || request.dry_run {
            return Ok(approval);
        }
        let (namespace, observer) = (&request.namespace, &services.observer);
        let cluster_key = match pod.cloned() {
            Some(mut pod) => {
                let added = observer.add_inherited(namespace, std::slice::from_mut(&mut pod), deadline).await;
                if added.is_ok() && runs_no_member(&pod).is_some() {
                    return Ok(approval);
                }
                ClusterKey::from_pod(namespace, &pod)
            }
            None => match observer.annotations.stateful_set_by_pod_name(namespace, &request.name) {
                Some((set, uid)) => ClusterKey::from_stateful_set(namespace, set, uid),
                None => return Ok(approval),
            },
        };
        match ledger::reserve_ended(self, &cluster_key).await {
            Ok(true) => Ok(approval),
            Ok(false) => Err(Step::Retry(Why::NewPod)),
            Err(error) => Ok(*self.fail(error)),
        }
    }

    // --- answer ---

    /// Completes the verdict on a live pod, applies its policy, and records events.
    async fn answer(&self, target: &Target, mut verdict: Verdict) -> Verdict {
        let Target { pod, cluster_key, resolved, cascade, .. } = target;
        let is_denied = !verdict.reason.allows();
        self.complete(pod, resolved, cascade, &mut verdict);
        if is_denied && verdict.allows() && !self.request.dry_run {
            let reserve = ledger::reserve_overruled(self, cluster_key, &resolved.policy);
            if !Box::pin(reserve).await {
                self.warn_without_reservation(&mut verdict);
            }
        }
        events::record_pod(self, pod, &verdict);
        verdict
    }

    /// Returns the verdict on a pod that could not be read. So that break-glass and audit mode do not depend on the API
    /// server, the policy of the copy in the review applies. As it can be forged, nothing is reserved or counted.
    fn answer_from_copy(&self, copy: &Pod, resolved: &ResolvedPolicy, error: EvaluationError) -> Verdict {
        let mut verdict = error.into_verdict(self.request);
        self.advise(copy, &mut verdict);
        overrule(&resolved.policy, &mut verdict);
        if verdict.allows() && !self.request.dry_run {
            self.warn_without_reservation(&mut verdict);
        }
        for warning in &resolved.warnings {
            verdict.warn(warning);
        }
        events::record_unreadable_pod(self, &verdict);
        verdict
    }

    /// Returns the verdict on a pod that could not be read with the annotations of its owners. A break-glass of the live pod
    /// itself applies, because no owner can revoke it.
    async fn answer_without_owners(&self, error: EvaluationError) -> Verdict {
        let mut verdict = error.into_verdict(self.request);
        advise_inspection(&mut verdict, self.inspected_object());
        if let Ok(Some(pod)) = self.services.observer.live_pod(self.request, self.deadline).await {
            let mut resolved = self.services.policies.resolve_for_pod_alone(&pod);
            // An owner may require enforcement where the defaults of the configuration do not.
            resolved.policy.mode = Mode::Enforce;
            self.apply_policy(&resolved, &mut verdict);
            if verdict.allows() {
                if !self.request.dry_run {
                    self.warn_without_reservation(&mut verdict);
                }
                events::record_pod(self, &pod, &verdict);
                return verdict;
            }
        }
        events::record_unreadable_pod(self, &verdict);
        verdict
    }

    /// Adds the cause of the request and further advice to a denial, and applies the policy of the pod.
    fn complete(&self, pod: &Pod, resolved: &ResolvedPolicy, cascade: &Cascade, verdict: &mut Verdict) {
        cascade.explain(self, verdict);
        self.advise(pod, verdict);
        self.apply_policy(resolved, verdict);
    }

    /// Adds the command that excludes a pod from the guard, if the evaluation did not prove that the pod runs a member, and
    /// the command that shows what the guard reads of the pod.
    fn advise(&self, pod: &Pod, verdict: &mut Verdict) {
        let may_be_excluded = verdict.member.is_none()
            && verdict.reason.concerns_discovery()
            && self.services.observer.accepts_exclusion(pod);
        if may_be_excluded {
            // The annotation of the pod takes precedence over those of its StatefulSet and its namespace, and it is part of
            // the next review, while those depend on a watch.
            let Request { namespace, name, .. } = self.request;
            verdict.add_advice(&format!(
                "If pod {name} runs no etcd member, exclude it: kubectl -n {namespace} annotate --overwrite pod {name} \
                 {MEMBER}=false"
            ));
        }
        advise_inspection(verdict, self.inspected_object());
    }

    /// Applies break-glass annotations and audit mode to a denial, and adds a warning for each invalid annotation.
    fn apply_policy(&self, resolved: &ResolvedPolicy, verdict: &mut Verdict) {
        let ResolvedPolicy { policy, warnings, .. } = resolved;
        if !verdict.reason.allows() {
            overrule(policy, verdict);
        }
        if verdict.reason == Reason::BreakGlass && !self.request.dry_run {
            self.services.observer.metrics.record_break_glass();
        }
        for warning in warnings {
            verdict.warn(warning);
        }
    }

    /// Adds a warning that other evaluations may count the pod as serving.
    fn warn_without_reservation(&self, verdict: &mut Verdict) {
        verdict.warn(&format!(
            "the deletion of pod {} could not be reserved: delete no other member until the pod is ready again",
            self.request.name
        ));
    }

    /// Returns namespace and name of the object of a request that `inspect` accepts: a pod or a StatefulSet.
    fn inspected_object(&self) -> Option<(String, String)> {
        let object = match self.request.operation {
            Operation::Delete | Operation::Evict | Operation::Update(_) => self.request.name.clone(),
            Operation::Workload(operation) => {
                let set = operation.stateful_set(&self.request.name)?;
                format!("statefulset/{set}")
            }
        };
        Some((self.request.namespace.clone(), object))
    }

    /// Renders an assessment as a verdict.
    fn explain(&self, snapshot: &Snapshot, target: &MemberPod, assessment: &Assessment) -> Verdict {
        explain(snapshot, target, assessment, Instant::now(), &self.services.policies.wall_clock)
    }

    fn fail(&self, error: EvaluationError) -> Box<Verdict> {
        Box::new(error.into_verdict(self.request))
    }
}

// === impl Step ===

impl From<Box<Verdict>> for Step {
    fn from(verdict: Box<Verdict>) -> Self {
        Self::Answer(verdict)
    }
}

/// Selects the pod of a request among the pods that were read under the lock of this cluster. Returns `None` if the pod does
/// not exist. What belongs to another cluster than the pod is dropped with the lock.
fn select(lock: OwnedMutexGuard<()>, mut listed: Listed, cluster_key: &ClusterKey) -> Option<Found> {
    let pod = listed.target.take()?;
    let approval = verdict_of_stopped_pod(&pod)
        .or_else(|| (!listed.pods.runs_member(&pod)).then(|| not_etcd(&pod.metadata.name)));
    let is_in_cluster = cluster_key.contains(cluster_key.namespace(), &pod);
    let held = is_in_cluster.then(|| Held { lock, listed });
    Some(Found { pod, approval, held })
}

/// Denies what ends a pod with several members: each of their clusters would have to allow it, and the guard evaluates one member
/// of a pod. `object` has the arguments of `kubectl` for the object whose break-glass overrules the denial.
fn several_members(on: &Evaluation<'_>, pod: &Pod, object: &str) -> Option<Verdict> {
    let containers = recognition::several_members(pod, &pod.metadata.annotations);
    if containers.is_empty() {
        return None;
    }
    let text = format!(
        "pod {} runs several etcd members, in the containers {}, and the guard evaluates one member of a pod",
        pod.metadata.name,
        containers.join(" and ")
    );
    let overrule = break_glass_advice(object, &on.services.policies.wall_clock);
    let choose = format!(
        "If only one of them matters, name its container: kubectl annotate --overwrite {object} {MEMBER}=CONTAINER"
    );
    let mut denial = Verdict::new(Reason::AmbiguousMember, text).with_remedy(&choose);
    denial.add_advice(&format!("If every cluster can lose its member, {overrule}"));
    Some(denial)
}

/// Returns the approval of the deletion of a pod that runs no member.
fn runs_no_member(pod: &Pod) -> Option<Verdict> {
    (!etcd_pod::runs_member(pod, &pod.metadata.annotations)).then(|| not_etcd(&pod.metadata.name))
}

/// Turns a denial into an approval if a break-glass annotation or audit mode overrules it.
fn overrule(policy: &Policy, denial: &mut Verdict) {
    match (&policy.break_glass, policy.mode) {
        (Some(cause), _) => denial.overrule(cause),
        (None, Mode::Audit) => denial.audit(),
        (None, Mode::Enforce) => {}
    }
}

/// Returns the denial of a deletion if the pod left the cluster between two reads.
fn changed_owner(request: &Request) -> Verdict {
    let (namespace, pod) = (&request.namespace, &request.name);
    let text = format!("owner or labels of pod {pod} changed during the evaluation");
    let remedy = format!("Check the pod and retry: kubectl -n {namespace} get pod {pod} --show-labels");
    Verdict::new(Reason::LookupFailed, text).with_remedy(&remedy)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::{SignedDuration, Timestamp};
    use serde_json::json;

    use super::{
        fixture::{FakeServer, pair, request},
        *,
    };
    use etcd_guard_core::{
        annotations::{ALLOW_REASON, ALLOW_UNTIL},
        request::WorkloadOperation,
    };

    /// Most evictions of a drain concern no etcd.
    #[tokio::test]
    async fn eviction_of_a_pod_without_etcd_reads_no_lease() {
        let server = FakeServer::default();
        let services = Services::of_client(&server.client());
        services.observer.annotations.wait_until_known("a").await.unwrap();
        let request = request(Operation::Evict, "a", "web-0");
        let verdict = Evaluation::new(&services, &request, Deadline::from_timeout(None)).evaluate().await;
        assert_eq!(verdict.reason, not_etcd("web-0").reason);
        assert_eq!(server.reads(), Vec::<String>::new());
    }

    /// The API server evicts by name after the review, and can do so when the name belongs to the successor.
    #[tokio::test]
    async fn eviction_without_uid_reserves_name_of_pod_that_has_ended() {
        let server = FakeServer::default();
        server.terminate();
        let services = Services::of_client(&server.client());
        services.observer.annotations.wait_until_known("a").await.unwrap();
        let evict = async |name: &str, uid: Option<&str>| {
            let request = Request { uid: uid.map(str::to_owned), ..request(Operation::Evict, "a", name) };
            Evaluation::new(&services, &request, Deadline::from_timeout(None)).evaluate().await.reason
        };
        assert_eq!(evict("etcd-0", Some("a")).await, Reason::AlreadyTerminating);
        assert_eq!(evict("gone", None).await, Reason::PodGone);
        assert_eq!(server.reads(), Vec::<String>::new(), "nothing is reserved");

        assert_eq!(evict("etcd-0", None).await, Reason::AlreadyTerminating);
        assert_eq!(evict("web-7", None).await, Reason::PodGone);
        let reserved = server.reservations("a");
        let reserved: Vec<_> = reserved.iter().map(|known| (known.pod.as_str(), known.by_name)).collect();
        assert_eq!(reserved, [("etcd-0", true), ("web-7", true)]);
    }

    #[tokio::test]
    async fn pod_with_two_members_needs_break_glass() {
        let until = Timestamp::now().checked_add(SignedDuration::from_hours(1)).unwrap().to_string();
        for (annotations, allows) in
            [(json!({}), false), (json!({ALLOW_UNTIL: until, ALLOW_REASON: "both can spare it"}), true)]
        {
            let server = FakeServer::default();
            server.add_pod(pair(&annotations));
            let services = Services::of_client(&server.client());
            services.observer.annotations.wait_until_known("a").await.unwrap();
            let copy = serde_json::from_value(pair(&annotations)).unwrap();
            let request = Request { pod: Some(copy), ..request(Operation::Delete, "a", "pair-0") };
            let verdict = Evaluation::new(&services, &request, Deadline::from_timeout(None)).evaluate().await;
            assert_eq!(verdict.allows(), allows, "{}", verdict.text());
            assert!(verdict.text().contains("in the containers main and events"), "{}", verdict.text());
        }
    }

    /// The first container of the pod waits and answers nobody, which says nothing about the second.
    #[tokio::test]
    async fn operations_on_a_pod_with_two_members_need_break_glass() {
        let node = WorkloadOperation::DeleteNode { has_finalizers: false };
        let scale = WorkloadOperation::ScaleDown { first: 0, first_to_go: 0, relative: false, fewer: true };
        let (ambiguous, protected) = (Reason::AmbiguousMember, Reason::IntentProtected);
        for (operation, namespace, name, reason) in [
            (node, "", "worker", ambiguous),
            (scale, "a", "pair", ambiguous),
            (WorkloadOperation::DeleteStatefulSet, "a", "pair", protected),
            (WorkloadOperation::DeleteNamespace, "a", "a", protected),
        ] {
            let server = FakeServer::default();
            server.add_pod(pair(&json!({})));
            let services = Services::of_client(&server.client());
            services.observer.annotations.wait_until_known("a").await.unwrap();
            let request = request(Operation::Workload(operation), namespace, name);
            let verdict = Evaluation::new(&services, &request, Deadline::from_timeout(None)).evaluate().await;
            assert_eq!(verdict.reason, reason, "{operation:?}: {}", verdict.text());
            assert!(verdict.text().contains("allow-delete-until"), "{}", verdict.text());
        }
    }
}
