//! The evaluation of a request, from the pod or parent object to the verdict.

mod unreadable;

use std::sync::Arc;

use crate::guard::{
    decide::{
        cascade::{Cascade, CascadeDetector, acceptance::AcceptedDeletions},
        cluster_cache::ClusterCache,
        context::{EvaluationContext, EvaluationError},
        effective_policy::operation_policy,
        events::VerdictEvents,
        inputs::InputReader,
        member_evaluator::MemberEvaluator,
        target::{LiveTarget, Target},
        workload_operations::{OperationVerdict, WorkloadEvaluator, harmless_verdict},
    },
    discovery::{
        etcd_pod,
        settled::{namespace_not_guarded, not_etcd, settled_verdict, warn_not_guarded},
    },
    explain::advise_inspection,
    metrics::Metrics,
    model::{
        annotations::MEMBER,
        cluster_key::ClusterKey,
        deadline::Deadline,
        reason::Reason,
        request::WorkloadOperation,
        request::{Operation, Request},
        verdict::Verdict,
        wall_clock::WallClock,
    },
    observe::observer::ClusterObserver,
    ownership::store::OwnershipStore,
    policy::{
        effective::{Mode, Policy, ResolvedPolicy},
        owner_chain::OwnerReader,
        resolver::PolicyResolver,
    },
    reserve::store::ReservationStore,
};
use crate::k8s::{AnnotationCache, EventRecorder, pod::Pod};

/// Evaluates deletions and evictions of pods, and workload operations.
pub(in crate::guard) struct Evaluator {
    observer: Arc<ClusterObserver>,
    policies: Arc<PolicyResolver>,
    members: MemberEvaluator,
    workloads: WorkloadEvaluator,
    cascades: CascadeDetector,
    accepted: AcceptedDeletions,
    events: VerdictEvents,
    annotations: AnnotationCache,
    metrics: Metrics,
}

/// The namespaces in which requests are evaluated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Guarded,
    All,
}

// === impl Evaluator ===

impl Evaluator {
    /// Creates an evaluator that takes snapshots with `observer`, stores approvals in `reservations`, reads the owners
    /// of members from `ownership` and `owners`, and records events in `events`.
    pub(in crate::guard) fn new(
        observer: Arc<ClusterObserver>,
        policies: Arc<PolicyResolver>,
        reservations: Arc<ReservationStore>,
        ownership: Arc<OwnershipStore>,
        owners: OwnerReader,
        events: EventRecorder,
    ) -> Self {
        let cache = Arc::new(ClusterCache::new());
        let annotations = observer.annotations.clone();
        let metrics = observer.metrics.clone();
        Self {
            members: MemberEvaluator {
                inputs: InputReader {
                    observer: Arc::clone(&observer),
                    reservations: Arc::clone(&reservations),
                    ownership: Arc::clone(&ownership),
                    cache: Arc::clone(&cache),
                },
                reservations: Arc::clone(&reservations),
                cache: Arc::clone(&cache),
                connections: observer.connections.clone(),
                metrics: metrics.clone(),
                wall_clock: policies.wall_clock.clone(),
            },
            workloads: WorkloadEvaluator {
                observer: Arc::clone(&observer),
                policies: Arc::clone(&policies),
                reservations: Arc::clone(&reservations),
                ownership: Arc::clone(&ownership),
                owners: owners.clone(),
            },
            cascades: CascadeDetector {
                annotations: annotations.clone(),
                pods: observer.pods.clone(),
                claims: observer.claims.clone(),
                ownership: Arc::clone(&ownership),
                owners: owners.clone(),
            },
            accepted: AcceptedDeletions {
                observer: Arc::clone(&observer),
                cache,
                reservations,
                ownership,
                owners,
            },
            events: VerdictEvents::new(events, annotations.clone()),
            observer,
            policies,
            annotations,
            metrics,
        }
    }

    /// Returns the verdict on a request before the deadline. A request in a namespace that is not guarded is approved and
    /// has no effects.
    pub(in crate::guard) async fn evaluate(&self, request: &Request, deadline: Deadline) -> Verdict {
        // The futures of evaluations that wait for etcd or for the API server are boxed: moving them costs more than a
        // denial that follows from the last snapshot.
        Box::pin(self.evaluate_in(Scope::Guarded, request, deadline)).await
    }

    /// Returns the verdict that a dry run would get if its namespace were guarded. A warning states that it is not.
    pub(in crate::guard) async fn preview(&self, request: &Request, deadline: Deadline) -> Verdict {
        let request = Request { dry_run: true, ..request.clone() };
        let mut verdict = Box::pin(self.evaluate_in(Scope::All, &request, deadline)).await;
        if matches!(self.is_guarded(&request, deadline).await, Ok(false)) {
            warn_not_guarded(&mut verdict, &request.namespace, self.annotations.opt_in_label());
        }
        verdict
    }

    async fn evaluate_in(&self, scope: Scope, request: &Request, deadline: Deadline) -> Verdict {
        if let Some(verdict) = request.pod.as_ref().and_then(settled_verdict) {
            return verdict;
        }
        // Before the watch shows the label of a namespace, the annotations in it are unknown, so that a copy cannot prove that the
        // pod runs no etcd. Before the first list of namespaces, operations without a copy are checked below, if they have effects.
        if scope == Scope::Guarded
            && !self.annotations.is_guarded(&request.namespace)
            && (request.pod.is_some() || self.annotations.are_namespaces_listed())
            && let Some(verdict) = self.unguarded_verdict(request, deadline).await
        {
            return verdict;
        }
        let copy = match self.observer.copied_pod(request, deadline).await {
            Ok(copy) => copy,
            Err(error) => {
                return Box::pin(self.unknown_owners_verdict(request, error.into(), deadline)).await;
            }
        };
        if let Some(verdict) = verdict_without_effects(request, copy.as_deref()) {
            return verdict;
        }
        if scope == Scope::Guarded
            && let Some(verdict) = self.unguarded_verdict(request, deadline).await
        {
            return verdict;
        }
        match (request.operation, copy) {
            (Operation::Workload(operation), _) => {
                Box::pin(self.evaluate_operation(request, operation, deadline)).await
            }
            (_, Some(copy)) => self.evaluate_copied_pod(request, &copy, deadline).await,
            (_, None) => Box::pin(self.evaluate_named_pod(request, deadline)).await,
        }
    }

    /// Returns the verdict on a request whose namespace is not guarded or cannot be read.
    async fn unguarded_verdict(&self, request: &Request, deadline: Deadline) -> Option<Verdict> {
        match self.is_guarded(request, deadline).await {
            Ok(true) => None,
            Ok(false) => Some(namespace_not_guarded(request, self.annotations.opt_in_label())),
            Err(error) => Some(error.into_verdict(request)),
        }
    }

    /// Whether the request's namespace is guarded. A live read is required only if the watch does not show the label: the
    /// namespace may have received it a moment ago. The watch then has to show the label as well, because the
    /// annotations in the namespace are read from watches.
    async fn is_guarded(&self, request: &Request, deadline: Deadline) -> Result<bool, EvaluationError> {
        let namespace = &request.namespace;
        // Nodes have no namespace. Their evaluation considers only members in guarded namespaces.
        let is_on_node =
            matches!(request.operation, Operation::Workload(operation) if operation.is_on_node());
        if is_on_node || self.annotations.is_guarded(namespace) {
            return Ok(true);
        }
        Box::pin(self.is_guarded_now(namespace, deadline)).await
    }

    /// Whether the live namespace has the label of the guard. Returns after the watch shows the label.
    async fn is_guarded_now(&self, namespace: &str, deadline: Deadline) -> Result<bool, EvaluationError> {
        let read = self.observer.pods.is_namespace_guarded(namespace, self.annotations.opt_in_label());
        let read = deadline.within("reading the namespace from the API server", read).await?;
        let is_guarded = read.map_err(EvaluationError::Lookup)?;
        if is_guarded && !self.annotations.is_guarded(namespace) {
            let shown = self.annotations.wait_until_guarded(namespace);
            deadline
                .within("waiting for the watch of namespaces to show the label of the guard", shown)
                .await?;
        }
        Ok(is_guarded)
    }

    /// Returns the verdict on a pod of which the review contains a copy. The copy can be forged: it determines which cluster
    /// is read, and may deny, but every effect rests on the live pod.
    async fn evaluate_copied_pod(&self, request: &Request, copy: &Pod, deadline: Deadline) -> Verdict {
        let cluster_key = ClusterKey::from_pod(&request.namespace, copy);
        let resolved = self.policies.resolve_for_copy(&request.namespace, copy);
        let policy = &resolved.policy;
        let context = EvaluationContext { request, cluster_key: &cluster_key, policy, deadline };
        let target = if self.cascades.may_be_cascade(request) {
            let read = Box::pin(self.members.read_individually(request, deadline));
            read.await.map(Target::Live)
        } else {
            // The annotations of an owner that was not read may overrule a denial.
            let may_deny = policy.enforces_denials() && !resolved.has_unreadable_owner;
            self.members.find_copied_pod(&context, may_deny).await
        };
        match target {
            Ok(Target::Live(target)) => Box::pin(self.evaluate_pod(request, target, deadline)).await,
            Ok(Target::Denied(mut denial)) => {
                self.complete(request, copy, &resolved, &Cascade::No, &mut denial);
                self.events.record_pod(request, copy, &denial);
                *denial
            }
            Err(error) => self.unreadable_pod_verdict(request, copy, &resolved, error),
        }
    }

    /// Returns the verdict on a pod of which the review contains only the name.
    async fn evaluate_named_pod(&self, request: &Request, deadline: Deadline) -> Verdict {
        match self.members.find_named_pod(request, deadline).await {
            Ok(target) => self.evaluate_pod(request, target, deadline).await,
            Err(error) => self.unknown_owners_verdict(request, error, deadline).await,
        }
    }

    /// Returns the verdict on a live pod.
    async fn evaluate_pod(&self, request: &Request, target: LiveTarget, deadline: Deadline) -> Verdict {
        let LiveTarget { pod, locked } = target;
        if let Some(verdict) = verdict_without_member(&pod) {
            return verdict;
        }
        let cluster_key = ClusterKey::from_pod(&request.namespace, &pod);
        let cascade = self.cascades.pod_cascade(request, &pod, deadline).await;
        let resolved = self.policies.resolve_for_pod(&request.namespace, &pod, deadline).await;
        let policy = &resolved.policy;
        let context = EvaluationContext { request, cluster_key: &cluster_key, policy, deadline };
        if let Cascade::Proven(verdict) = cascade {
            if !request.dry_run {
                // Without a reservation, members outside the cascade would count this pod until it terminates.
                self.members.reserve_cascade(&context).await;
            }
            return verdict;
        }
        let mut verdict = match self.members.evaluate(&context, locked.map(|locked| *locked)).await {
            Ok(verdict) => verdict,
            Err(error) => error.into_verdict(request),
        };
        let is_denied = !verdict.reason.allows();
        self.complete(request, &pod, &resolved, &cascade, &mut verdict);
        let is_overruled = is_denied && verdict.allows();
        if is_overruled && !request.dry_run && !self.members.reserve_overruled(&context).await {
            warn_without_reservation(request, &mut verdict);
        }
        self.events.record_pod(request, &pod, &verdict);
        verdict
    }

    /// Adds the cause of the request and further advice to a denial, and applies the policy of the pod.
    fn complete(
        &self,
        request: &Request,
        pod: &Pod,
        resolved: &ResolvedPolicy,
        cascade: &Cascade,
        verdict: &mut Verdict,
    ) {
        explain_cascade(request, cascade, &self.policies.wall_clock, verdict);
        self.advise(request, pod, verdict);
        self.apply_policy(request, resolved, verdict);
    }

    /// Adds the command that excludes a pod from the guard, if the evaluation did not prove that the pod runs a member, and
    /// the command that shows what the guard reads of the pod.
    fn advise(&self, request: &Request, pod: &Pod, verdict: &mut Verdict) {
        let may_be_excluded = verdict.member.is_none()
            && verdict.reason.concerns_discovery()
            && self.observer.accepts_exclusion(pod);
        if may_be_excluded {
            verdict.add_advice(&exclusion_advice(request));
        }
        advise_inspection(verdict, inspected_object(request));
    }

    async fn evaluate_operation(
        &self,
        request: &Request,
        operation: WorkloadOperation,
        deadline: Deadline,
    ) -> Verdict {
        let cascade = match operation {
            WorkloadOperation::DeleteNamespace => Cascade::No,
            _ => self.cascades.operation_cascade(request, operation, deadline).await,
        };
        if let Cascade::Proven(verdict) = cascade {
            return self.record_accepted(request, operation, verdict, false, deadline).await;
        }
        // Without the annotations of its owners, a denial must not be overruled by the policy of the namespace. The evaluation of a
        // node waits itself.
        if !operation.is_on_node()
            && let Err(error) = self.observer.wait_for_annotations(&request.namespace, deadline).await
        {
            let verdict = EvaluationError::from(error).into_verdict(request);
            self.events.record_operation(request, operation, None, &verdict);
            return verdict;
        }
        let of_owners = operation_policy(&self.observer, &self.policies, request, operation, deadline).await;
        let is_unproven = matches!(cascade, Cascade::Unproven(_));
        let result =
            self.workloads.evaluate(request, operation, &of_owners.policy, is_unproven, deadline).await;
        let OperationVerdict { mut verdict, stateful_set, policy, member, has_cascade } =
            result.unwrap_or_else(|error| error.into_verdict(request).into());
        let resolved = policy.unwrap_or(of_owners);
        let is_denied = !verdict.reason.allows();
        explain_cascade(request, &cascade, &self.policies.wall_clock, &mut verdict);
        advise_inspection(&mut verdict, inspected_object(request).or_else(|| member.clone()));
        self.apply_policy(request, &resolved, &mut verdict);
        // A member that does not run can still start before the garbage collector deletes its pod.
        if verdict.allows() && (is_denied || has_cascade && operation.deletes_owner()) {
            verdict = self.record_accepted(request, operation, verdict, has_cascade, deadline).await;
        }
        self.events.record_operation(request, operation, stateful_set, &verdict);
        verdict
    }

    /// Records an approved operation. Does nothing for a dry run. `owns_members`: see [`AcceptedDeletions::record`].
    async fn record_accepted(
        &self,
        request: &Request,
        operation: WorkloadOperation,
        mut verdict: Verdict,
        owns_members: bool,
        deadline: Deadline,
    ) -> Verdict {
        if !request.dry_run {
            for warning in self.accepted.record(request, operation, owns_members, deadline).await {
                verdict.warn(&warning);
            }
        }
        verdict
    }

    /// Applies break-glass annotations and audit mode to a denial, and adds a warning for each invalid annotation.
    fn apply_policy(&self, request: &Request, resolved: &ResolvedPolicy, verdict: &mut Verdict) {
        let ResolvedPolicy { policy, warnings, .. } = resolved;
        if !verdict.reason.allows() {
            overrule(policy, verdict);
        }
        if verdict.reason == Reason::BreakGlass && !request.dry_run {
            self.metrics.record_break_glass();
        }
        for warning in warnings {
            verdict.warn(warning);
        }
    }
}

/// Returns the approval that follows from a review alone: the pod runs no member, or the operation removes no pod. The
/// guard does nothing for such a request, so that a forged review gains nothing.
fn verdict_without_effects(request: &Request, copy: Option<&Pod>) -> Option<Verdict> {
    match request.operation {
        Operation::Workload(operation) => harmless_verdict(request, operation),
        Operation::Delete | Operation::Evict => verdict_without_member(copy?),
    }
}

/// Returns the approval of a deletion that stops no member.
fn verdict_without_member(pod: &Pod) -> Option<Verdict> {
    let runs_etcd = || etcd_pod::runs_member(pod, &pod.metadata.annotations);
    settled_verdict(pod).or_else(|| (!runs_etcd()).then(|| not_etcd(&pod.metadata.name)))
}

/// Turns a denial into an approval if a break-glass annotation or audit mode overrules it.
fn overrule(policy: &Policy, denial: &mut Verdict) {
    match (&policy.break_glass, policy.mode) {
        (Some(cause), _) => denial.overrule(cause),
        (None, Mode::Audit) => denial.audit(),
        (None, Mode::Enforce) => {}
    }
}

/// Adds a warning that other evaluations may count the pod as serving.
fn warn_without_reservation(request: &Request, verdict: &mut Verdict) {
    verdict.warn(&format!(
        "the deletion of pod {} could not be reserved: delete no other member until the pod is ready again",
        request.name
    ));
}

/// Returns the advice to exclude the request's pod from the guard. The annotation of the pod takes precedence over those
/// of its StatefulSet and its namespace, and it is part of the next review, while those depend on a watch.
fn exclusion_advice(request: &Request) -> String {
    let Request { namespace, name, .. } = request;
    format!(
        "if pod {name} runs no etcd member, exclude it: kubectl -n {namespace} annotate --overwrite pod {name} {MEMBER}=false"
    )
}

/// Returns namespace and name of the object of a request that `inspect` accepts: a pod or a StatefulSet.
fn inspected_object(request: &Request) -> Option<(String, String)> {
    let object = match request.operation {
        Operation::Delete | Operation::Evict => request.name.clone(),
        Operation::Workload(operation) => {
            let set = operation.stateful_set(&request.name)?;
            format!("statefulset/{set}")
        }
    };
    Some((request.namespace.clone(), object))
}

/// Adds the cause to the denial of a garbage collector's request that no record proves to be a cascade.
fn explain_cascade(request: &Request, cascade: &Cascade, clock: &WallClock, verdict: &mut Verdict) {
    if let Cascade::Unproven(missing) = cascade
        && !verdict.reason.allows()
    {
        missing.explain(request, clock, verdict);
    }
}
