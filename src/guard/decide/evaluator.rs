//! The evaluation of a request, from the pod or parent object to the verdict.

use std::sync::Arc;

use crate::guard::{
    decide::{
        cascade::{Cascade, CascadeDetector, acceptance::AcceptedDeletions},
        cluster_cache::ClusterCache,
        context::{EvaluationContext, EvaluationError},
        effective_policy::operation_policy,
        events::VerdictEvents,
        eviction::{NamedPod, find_named_pod},
        inputs::InputReader,
        member_evaluator::{LockedInputs, MemberEvaluator},
        workload_operations::{OperationVerdict, WorkloadEvaluator, harmless_verdict},
    },
    discovery::{
        etcd_pod,
        settled::{not_etcd, pod_gone, settled_verdict},
    },
    metrics::Metrics,
    model::{
        annotations::MEMBER,
        cluster_key::ClusterKey,
        deadline::Deadline,
        request::WorkloadOperation,
        request::{Operation, Request},
        verdict::Verdict,
    },
    observe::observer::ClusterObserver,
    ownership::store::OwnershipStore,
    policy::{
        effective::{Mode, Policy, ResolvedPolicy},
        resolver::PolicyResolver,
    },
    reserve::store::ReservationStore,
};
use crate::k8s::{AnnotationCache, EventRecorder, pod::Pod};

/// Evaluates deletions and evictions of pods, and workload operations.
pub(in crate::guard) struct Evaluator {
    observer: Arc<ClusterObserver>,
    policies: Arc<PolicyResolver>,
    cache: Arc<ClusterCache>,
    members: MemberEvaluator,
    workloads: WorkloadEvaluator,
    cascades: CascadeDetector,
    accepted: AcceptedDeletions,
    events: VerdictEvents,
    annotations: AnnotationCache,
    metrics: Metrics,
}

// === impl Evaluator ===

impl Evaluator {
    /// Creates an evaluator that takes snapshots with `observer`, stores approvals in `reservations`, reads the owners
    /// of members from `ownership`, and records events in `events`.
    pub(in crate::guard) fn new(
        observer: Arc<ClusterObserver>,
        policies: Arc<PolicyResolver>,
        reservations: Arc<ReservationStore>,
        ownership: Arc<OwnershipStore>,
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
                    cache: Arc::clone(&cache),
                },
                reservations: Arc::clone(&reservations),
                cache: Arc::clone(&cache),
                connections: observer.connections.clone(),
                metrics: metrics.clone(),
            },
            workloads: WorkloadEvaluator {
                observer: Arc::clone(&observer),
                policies: Arc::clone(&policies),
                reservations: Arc::clone(&reservations),
            },
            cascades: CascadeDetector {
                annotations: annotations.clone(),
                pods: observer.pods.clone(),
                claims: observer.claims.clone(),
                ownership: Arc::clone(&ownership),
            },
            accepted: AcceptedDeletions {
                observer: Arc::clone(&observer),
                cache: Arc::clone(&cache),
                reservations,
                ownership,
            },
            events: VerdictEvents::new(events, annotations.clone()),
            observer,
            policies,
            cache,
            annotations,
            metrics,
        }
    }

    /// Returns the verdict on a request before the deadline.
    pub(in crate::guard) async fn evaluate(&self, request: &Request, deadline: Deadline) -> Verdict {
        if request.runs_no_etcd {
            return not_etcd(&request.name);
        }
        // The future of a full evaluation is large. A boxed future does not enlarge the futures of fast-path reviews.
        Box::pin(self.evaluate_fully(request, deadline)).await
    }

    async fn evaluate_fully(&self, request: &Request, deadline: Deadline) -> Verdict {
        if let Operation::Workload(operation) = request.operation {
            return self.evaluate_operation(request, operation, deadline).await;
        }
        let inputs = &self.members.inputs;
        match find_named_pod(inputs, &self.cache, &self.annotations, request, deadline).await {
            Ok(NamedPod::Found(pod, locked)) => {
                return self.evaluate_pod(request, &pod, Some(*locked), deadline).await;
            }
            Ok(NamedPod::NotFound) => return pod_gone(request),
            Ok(NamedPod::ReadIndividually) => {}
            Err(error) => return self.unreadable_pod_verdict(request, error),
        }
        match self.observer.requested_pod(request, deadline).await {
            Ok(pod) => self.evaluate_pod(request, &pod, None, deadline).await,
            Err(error) => self.unreadable_pod_verdict(request, error.into()),
        }
    }

    /// Returns the verdict on a pod that could not be read.
    fn unreadable_pod_verdict(&self, request: &Request, error: EvaluationError) -> Verdict {
        let verdict = error.into_verdict(request);
        self.events.record_unreadable_pod(request, &verdict);
        verdict
    }

    /// Returns the verdict on a pod. `locked` contains the inputs of its cluster, if they were already read.
    async fn evaluate_pod(
        &self,
        request: &Request,
        pod: &Pod,
        locked: Option<LockedInputs>,
        deadline: Deadline,
    ) -> Verdict {
        if let Some(verdict) = settled_verdict(pod) {
            return verdict;
        }
        if etcd_pod::read(pod, &pod.metadata.annotations).is_none() {
            return not_etcd(&pod.metadata.name);
        }
        let cluster_key = ClusterKey::from_pod(&request.namespace, pod);
        let ResolvedPolicy { policy, warnings, .. } = self.policies.resolve_for_pod(&request.namespace, pod);
        let context = EvaluationContext { request, cluster_key: &cluster_key, policy: &policy, deadline };
        let cascade = self.cascades.of_pod(request, pod, deadline).await;
        if let Cascade::Proven(verdict) = cascade {
            if !request.dry_run {
                // Without a reservation, members outside the cascade would count this pod until it terminates.
                self.members.reserve_cascade(&context).await;
            }
            return verdict;
        }
        let mut verdict = match self.members.evaluate(&context, locked).await {
            Ok(verdict) => verdict,
            Err(error) => error.into_verdict(request),
        };
        explain_cascade(request, &cascade, &mut verdict);
        if verdict.member.is_none()
            && verdict.reason.may_concern_pod_without_member()
            && self.observer.accepts_exclusion(pod)
        {
            verdict.add_advice(&exclusion_advice(request));
        }
        let is_denied = !verdict.reason.allows();
        self.apply_policy(request, &policy, &warnings, &mut verdict);
        let is_overruled = is_denied && verdict.allows() && !request.dry_run;
        if is_overruled && !self.members.reserve_overruled(&context).await {
            verdict.warn(&format!(
                "the deletion of pod {} could not be reserved: delete no other member until the pod is ready again",
                request.name
            ));
        }
        self.events.record_pod(request, pod, &verdict);
        verdict
    }

    async fn evaluate_operation(
        &self,
        request: &Request,
        operation: WorkloadOperation,
        deadline: Deadline,
    ) -> Verdict {
        if let Some(verdict) = harmless_verdict(request, operation) {
            return verdict;
        }
        let cascade = match operation {
            WorkloadOperation::DeleteNamespace => Cascade::No,
            _ => self.cascades.of_operation(request, operation, deadline).await,
        };
        if let Cascade::Proven(verdict) = cascade {
            return self.record_accepted(request, operation, verdict, deadline).await;
        }
        let of_owners = operation_policy(&self.observer, &self.policies, request, operation, deadline).await;
        let result = self.workloads.evaluate(request, operation, &of_owners.policy, deadline).await;
        let OperationVerdict { mut verdict, stateful_set, policy } =
            result.unwrap_or_else(|error| error.into_verdict(request).into());
        let ResolvedPolicy { policy, warnings, .. } = policy.unwrap_or(of_owners);
        let is_denied = !verdict.reason.allows();
        explain_cascade(request, &cascade, &mut verdict);
        self.apply_policy(request, &policy, &warnings, &mut verdict);
        if is_denied && verdict.allows() {
            verdict = self.record_accepted(request, operation, verdict, deadline).await;
        }
        self.events.record_operation(request, operation, stateful_set, &verdict);
        verdict
    }

    /// Records an operation that is approved although members are deleted with its object.
    async fn record_accepted(
        &self,
        request: &Request,
        operation: WorkloadOperation,
        mut verdict: Verdict,
        deadline: Deadline,
    ) -> Verdict {
        if !request.dry_run {
            for warning in self.accepted.record(request, operation, deadline).await {
                verdict.warn(&warning);
            }
        }
        verdict
    }

    /// Applies break-glass annotations and audit mode to a denial, and adds a warning for each invalid annotation.
    fn apply_policy(&self, request: &Request, policy: &Policy, warnings: &[String], verdict: &mut Verdict) {
        if !verdict.reason.allows() {
            match (&policy.break_glass, policy.mode) {
                (Some(cause), _) => {
                    if !request.dry_run {
                        self.metrics.record_break_glass();
                    }
                    verdict.overrule(cause);
                }
                (None, Mode::Audit) => verdict.audit(),
                (None, Mode::Enforce) => {}
            }
        }
        for warning in warnings {
            verdict.warn(warning);
        }
    }
}

/// Returns the advice to exclude the request's pod from the guard. The annotation of the pod takes precedence over those
/// of its StatefulSet and its namespace, and it is part of the next review, while those depend on a watch.
fn exclusion_advice(request: &Request) -> String {
    let Request { namespace, name, .. } = request;
    format!(
        "if pod {name} runs no etcd member, exclude it: kubectl -n {namespace} annotate --overwrite pod {name} {MEMBER}=false"
    )
}

/// Adds the cause to the denial of a garbage collector's request that no record proves to be a cascade.
fn explain_cascade(request: &Request, cascade: &Cascade, verdict: &mut Verdict) {
    if let Cascade::Unproven(missing) = cascade
        && !verdict.reason.allows()
    {
        missing.explain(request, verdict);
    }
}
