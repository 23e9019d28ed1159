//! Evaluates workload operations: deletions and scaling of the objects to which member pods belong.
//!
//! An operation is harmless if no member runs that it affects, and no data of a member is deleted. Data counts also
//! while its container is stopped.

mod data;
mod nodes;
mod owners;
mod resources;
mod verdicts;

pub(super) use self::verdicts::OperationVerdict;
#[cfg(any(test, feature = "fixtures"))]
pub(crate) use self::verdicts::owner_arguments;
use self::{
    data::{
        MemberPods, are_stopped, claims_of_set, has_absent_pod_no_vote, has_several_members,
        holds_ephemeral_data, is_controlled_by, is_etcd_template,
    },
    verdicts::{harmless, protected},
};
use crate::{
    evaluation::{
        Evaluation, cascade,
        cascade::{Cascade, acceptance},
        effective_policy::operation_policy,
        events, ledger, several_members,
    },
    observe::error::EvaluationError,
};
use etcd_guard_core::{
    assess::{assess, scale_down},
    cluster_key::ClusterKey,
    explain,
    explain::{advise_inspection, capitalized},
    objects::{claim::Claim, pod::Pod, stateful_set::StatefulSet},
    policy::{Permission, Policy},
    reason::Reason,
    request::{Request, WorkloadOperation},
    verdict::Verdict,
};
use etcd_guard_kubernetes::LookupError;

/// The patch with which the claims of a StatefulSet outlive the StatefulSet.
const RETAIN_PATCH: &str = r#"{"spec":{"persistentVolumeClaimRetentionPolicy":{"whenDeleted":"Retain"}}}"#;

/// Returns the verdict on an operation, applies the policies of its owners, and records events.
pub(super) async fn evaluate(on: &Evaluation<'_>, operation: WorkloadOperation) -> Verdict {
    let &Evaluation { services, request, deadline } = on;
    let cascade = match operation {
        WorkloadOperation::DeleteNamespace => Cascade::No,
        _ => cascade::of_operation(on, operation).await,
    };
    if let Cascade::Proven(verdict) = cascade {
        return record_accepted(on, operation, *verdict, false).await;
    }
    // Without the annotations of its owners, a denial must not be overruled by the policy of the namespace. The evaluation of a
    // node waits itself.
    if !operation.is_on_node()
        && let Err(error) = services.observer.wait_for_annotations(&request.namespace, deadline).await
    {
        let verdict = error.into_verdict(request);
        events::record_operation(on, operation, None, &verdict);
        return verdict;
    }
    let of_owners = operation_policy(services, request, operation, deadline).await;
    let is_unproven = matches!(cascade, Cascade::Unproven(_));
    let result = verdict(on, operation, &of_owners.policy, is_unproven).await;
    let OperationVerdict { mut verdict, stateful_set, policy, member, has_cascade } =
        result.unwrap_or_else(|error| error.into_verdict(request).into());
    let resolved = policy.unwrap_or(of_owners);
    let is_denied = !verdict.reason.allows();
    cascade.explain(on, &mut verdict);
    advise_inspection(&mut verdict, on.inspected_object().or_else(|| member.clone()));
    on.apply_policy(&resolved, &mut verdict);
    // A member that does not run can still start before the garbage collector deletes its pod.
    if verdict.allows() && (is_denied || has_cascade && operation.deletes_owner()) {
        verdict = record_accepted(on, operation, verdict, has_cascade).await;
    }
    events::record_operation(on, operation, stateful_set, &verdict);
    verdict
}

/// Records an approved operation. Does nothing for a dry run. `owns_members`: see [`acceptance::record`].
async fn record_accepted(
    on: &Evaluation<'_>,
    operation: WorkloadOperation,
    mut verdict: Verdict,
    owns_members: bool,
) -> Verdict {
    if !on.request.dry_run {
        for warning in acceptance::record(on, operation, owns_members).await {
            verdict.warn(&warning);
        }
    }
    verdict
}

/// Returns the verdict on an operation, before the policies of its owners are applied. `policy` is the policy of
/// these owners. `is_unproven_cascade` means that the garbage collector requests the deletion, and that the owner
/// of the object may never have existed.
async fn verdict(
    on: &Evaluation<'_>,
    operation: WorkloadOperation,
    policy: &Policy,
    is_unproven_cascade: bool,
) -> Result<OperationVerdict, EvaluationError> {
    let &Evaluation { services, request, deadline } = on;
    match operation {
        WorkloadOperation::DeleteResource(kind) => {
            return resources::evaluate(on, kind).await;
        }
        WorkloadOperation::DeleteNode { .. } => return Ok(nodes::evaluate(on).await),
        _ => {}
    }
    let (name, namespace) = (&request.name, &request.namespace);
    let list = services.observer.list_pods(namespace, deadline);
    // Each list waits for a cache of the API server, for up to 0.1 s.
    let needs_sets = matches!(operation, WorkloadOperation::DeleteNamespace | WorkloadOperation::DeleteClaim);
    let (pods, sets) = if needs_sets {
        tokio::try_join!(list, etcd_sets(on, namespace))?
    } else {
        (list.await?, Vec::new())
    };
    let members = MemberPods::new(&pods);
    match operation {
        WorkloadOperation::DeleteNamespace => evaluate_namespace(on, namespace, &members, &sets).await,
        WorkloadOperation::DeleteStatefulSet => {
            evaluate_stateful_set(on, policy, is_unproven_cascade, &pods).await
        }
        WorkloadOperation::DeleteClaim => {
            match members.with_data.iter().find(|pod| mounts_claim(pod, name)) {
                Some(pod) => {
                    let has_vote = has_several_members(pod) || !has_no_vote(on, namespace, pod, &pods).await;
                    Ok(evaluate_claim(on, namespace, name, pod, has_vote))
                }
                None => Ok(evaluate_unmounted_claim(on, namespace, name, &pods, &sets).await.into()),
            }
        }
        WorkloadOperation::ScaleDown { first, first_to_go, relative, .. } => {
            let of_set = members.running.iter().copied().filter(|pod| is_controlled_by(pod, name));
            let of_set: Vec<&Pod> = of_set.collect();
            let Some(member) = of_set.first() else {
                return Ok(harmless(format!("StatefulSet {name} runs no etcd cluster")).into());
            };
            let object = format!("-n {namespace} statefulset {name}");
            if let Some(denial) = of_set.iter().find_map(|pod| several_members(on, pod, &object)) {
                return Ok(denial.into());
            }
            let cluster_key = ClusterKey::from_pod(namespace, member);
            let start = if relative { first_ordinal(on, namespace, name).await? } else { 0 };
            let snapshot = ledger::observe(on, &cluster_key, &pods).await?;
            let kept = first.saturating_add(start)..first_to_go.saturating_add(start);
            Ok(scale_down::evaluate_scale_down(&snapshot, name, kept).into())
        }
        WorkloadOperation::DeleteOwner | WorkloadOperation::ScaleOwner { .. } => {
            owners::evaluate(on, operation, policy, is_unproven_cascade, &pods).await
        }
        // Evaluated above, or harmless.
        WorkloadOperation::DeleteResource(_)
        | WorkloadOperation::DeleteNode { .. }
        | WorkloadOperation::OrphanOwner
        | WorkloadOperation::OrphanStatefulSet => Ok(orphan_verdict(request).into()),
    }
}

/// Evaluates the deletion of a StatefulSet: it is denied while a member of the StatefulSet runs, and if data of a
/// member is deleted with the StatefulSet. If no member runs and the data is retained, the deletion loses no data,
/// and a new StatefulSet continues with the same claims. A dangling ownerReference is no reason to lose a StatefulSet
/// whose pods start again.
async fn evaluate_stateful_set(
    on: &Evaluation<'_>,
    policy: &Policy,
    is_unproven_cascade: bool,
    pods: &[Pod],
) -> Result<OperationVerdict, EvaluationError> {
    let &Evaluation { services, request, deadline } = on;
    let (name, namespace) = (&request.name, &request.namespace);
    let of_set = |pods: &[&Pod]| pods.iter().filter(|pod| is_controlled_by(pod, name)).count();
    let members = MemberPods::new(pods);
    let advice = break_glass_advice(on, &format!("-n {namespace} statefulset {name}"));
    let orphan = format!(
        "To keep the pods, orphan them: kubectl -n {namespace} delete statefulset {name} --cascade=orphan"
    );
    let remedies = [orphan.as_str(), advice.as_str()];
    let running = of_set(&members.running);
    if running > 0 {
        let text = format!(
            "StatefulSet {name} runs an etcd cluster ({running} pods): deleting the StatefulSet deletes all of them"
        );
        return Ok(protected(text, &remedies).into());
    }
    let Some(set) = stateful_set(on, namespace, name).await? else {
        return Ok(harmless(format!("StatefulSet {name} does not exist")).into());
    };
    if of_set(&members.with_data) == 0 && !runs_etcd(on, namespace, &set) {
        return Ok(harmless(format!("StatefulSet {name} runs no etcd cluster")).into());
    }
    let claims = claims(on, namespace).await?;
    let deleted: Vec<&Claim> = claims.iter().filter(|claim| set.deletes_claim(claim)).collect();
    if let Some(claim) = deleted.first() {
        let text = format!(
            "StatefulSet {name} owns the data of etcd members ({} PersistentVolumeClaims, including {}): deleting \
             the StatefulSet deletes the data permanently",
            deleted.len(),
            claim.metadata.name
        );
        let retain = format!(
            "To keep the data, first run: kubectl -n {namespace} patch statefulset {name} --type=merge -p '{RETAIN_PATCH}'"
        );
        return Ok(protected(text, &[&retain, &advice]).into());
    }
    let mut of_set = pods.iter().filter(|pod| is_controlled_by(pod, name));
    if policy.ephemeral_data == Permission::Deny
        && let Some(pod) = of_set.clone().find(|pod| holds_ephemeral_data(pod))
    {
        let text = format!(
            "pod {} of StatefulSet {name} holds the data of an etcd member, and no volume outlives the pod: deleting \
             the StatefulSet deletes the data permanently",
            pod.metadata.name
        );
        return Ok(protected(text, &remedies).into());
    }
    if let Some(pod) = of_set.next() {
        let snapshot = services
            .observer
            .observe_listed(&ClusterKey::from_pod(namespace, pod), pods, &[], deadline)
            .await;
        let is_of_set = |pod: &str| {
            members
                .with_data
                .iter()
                .any(|member| member.metadata.name == pod && is_controlled_by(member, name))
        };
        if !are_stopped(&snapshot, is_of_set) {
            let text = format!(
                "StatefulSet {name} may run an etcd cluster: its containers do not run according to the kubelet, \
                 but not every pod refuses connections"
            );
            return Ok(protected(text, &remedies).into());
        }
    }
    let replicas = set.replicas();
    if is_unproven_cascade && replicas > 0 {
        let text = format!(
            "StatefulSet {name} runs no etcd member at the moment, and it starts {replicas} of them again as long as \
             it exists"
        );
        return Ok(protected(text, &remedies).into());
    }
    let text = format!("StatefulSet {name} runs no etcd member, and the data of its members is retained");
    Ok(OperationVerdict { has_cascade: true, ..harmless(text).into() })
}

async fn evaluate_namespace(
    on: &Evaluation<'_>,
    namespace: &str,
    members: &MemberPods<'_>,
    sets: &[StatefulSet],
) -> Result<OperationVerdict, EvaluationError> {
    let advice = break_glass_advice(on, &format!("namespace {namespace}"));
    if let Some(member) = members.with_data.first() {
        let text = format!(
            "namespace {namespace} contains an etcd cluster ({} pods, including {}): deleting the namespace \
             destroys the cluster permanently",
            members.with_data.len(),
            member.metadata.name
        );
        return Ok(OperationVerdict::with_member(protected(text, &[&advice]), namespace, member));
    }
    let claims = if sets.is_empty() { Vec::new() } else { claims(on, namespace).await? };
    for set in sets {
        let of_set = claims_of_set(set, &claims);
        let Some(claim) = of_set.first() else { continue };
        let text = format!(
            "namespace {namespace} contains the data of etcd StatefulSet {} ({} PersistentVolumeClaims, including \
             {claim}): deleting the namespace deletes the data permanently",
            set.metadata.name,
            of_set.len(),
        );
        return Ok(protected(text, &[&advice]).into());
    }
    Ok(harmless(format!("namespace {namespace} contains no etcd cluster")).into())
}

/// Evaluates the deletion of a claim that no pod mounts. The claim still holds the data of a member if its
/// StatefulSet runs etcd, for instance with fewer replicas at the moment.
async fn evaluate_unmounted_claim(
    on: &Evaluation<'_>,
    namespace: &str,
    name: &str,
    pods: &[Pod],
    sets: &[StatefulSet],
) -> Verdict {
    let &Evaluation { services, deadline, .. } = on;
    let owner = sets.iter().find_map(|set| Some((set, set.ordinal_of_claim(name)?)));
    let Some((set, ordinal)) = owner else {
        return harmless(format!("no etcd member uses claim {name}"));
    };
    let set_name = &set.metadata.name;
    let pod = format!("{set_name}-{ordinal}");
    let of_set: Vec<&Pod> = pods.iter().filter(|other| is_controlled_by(other, set_name)).collect();
    if !of_set.is_empty() && !of_set.into_iter().any(has_several_members) {
        let uid = set.metadata.uid.clone();
        let cluster_key = ClusterKey::from_stateful_set(namespace, set_name.clone(), uid);
        let snapshot = services.observer.observe_listed(&cluster_key, pods, &[], deadline).await;
        if has_absent_pod_no_vote(&snapshot, &pod) {
            let text = format!("claim {name} belongs to pod {pod}, whose member has no vote");
            return harmless(text);
        }
    }
    let text = format!(
        "no pod mounts claim {name} of etcd StatefulSet {set_name}: deleting the claim permanently deletes the data of \
         the member of pod {pod}"
    );
    let advice = break_glass_advice(on, &format!("-n {namespace} pvc {name}"));
    protected(text, &[&remove_first(namespace), &advice])
}

/// Returns the StatefulSets of a namespace that run etcd.
async fn etcd_sets(on: &Evaluation<'_>, namespace: &str) -> Result<Vec<StatefulSet>, EvaluationError> {
    let &Evaluation { services, deadline, .. } = on;
    let list = services.observer.pods.list_stateful_sets(namespace);
    let sets = deadline.within("listing the StatefulSets from the API server", list).await?;
    let mut sets = sets.map_err(EvaluationError::Lookup)?;
    sets.retain(|set| runs_etcd(on, namespace, set));
    Ok(sets)
}

/// Returns whether pods of this StatefulSet run etcd, also if none exists.
fn runs_etcd(on: &Evaluation<'_>, namespace: &str, set: &StatefulSet) -> bool {
    is_etcd_template(&on.services.observer.pod_of_set(namespace, set))
}

/// Returns the StatefulSet, or `None` if it does not exist.
async fn stateful_set(
    on: &Evaluation<'_>,
    namespace: &str,
    name: &str,
) -> Result<Option<StatefulSet>, EvaluationError> {
    let &Evaluation { services, deadline, .. } = on;
    let read = services.observer.pods.get_stateful_set(namespace, name);
    match deadline.within("reading the StatefulSet from the API server", read).await? {
        Ok(set) => Ok(Some(set)),
        Err(LookupError::NotFound { .. }) => Ok(None),
        Err(error) => Err(EvaluationError::Lookup(error)),
    }
}

async fn claims(on: &Evaluation<'_>, namespace: &str) -> Result<Vec<Claim>, EvaluationError> {
    let &Evaluation { services, deadline, .. } = on;
    let list = services.observer.pods.list_claims(namespace);
    let claims = deadline.within("listing the claims from the API server", list).await?;
    claims.map_err(EvaluationError::Lookup)
}

/// Returns whether a probe proves that this pod's member has no vote, because it was removed or is a learner.
async fn has_no_vote(on: &Evaluation<'_>, namespace: &str, pod: &Pod, pods: &[Pod]) -> bool {
    let &Evaluation { services, deadline, .. } = on;
    let cluster_key = ClusterKey::from_pod(namespace, pod);
    let snapshot = services.observer.observe_listed(&cluster_key, pods, &[], deadline).await;
    let target = snapshot.pod(&pod.metadata.name);
    target.is_some_and(|target| assess(&snapshot, target, &Policy::default()).reason == Reason::NotAVoter)
}

fn evaluate_claim(
    on: &Evaluation<'_>,
    namespace: &str,
    name: &str,
    pod: &Pod,
    has_vote: bool,
) -> OperationVerdict {
    let pod_name = &pod.metadata.name;
    if !has_vote {
        let text =
            format!("claim {name} holds the data of pod {pod_name}, and the member of that pod has no vote");
        return harmless(text).into();
    }
    let text = format!(
        "claim {name} holds the data of pod {pod_name}, which runs an etcd member: the next deletion of the pod would \
         permanently delete the data"
    );
    let advice = break_glass_advice(on, &format!("-n {namespace} pvc {name}"));
    OperationVerdict::with_member(protected(text, &[&remove_first(namespace), &advice]), namespace, pod)
}

fn remove_first(namespace: &str) -> String {
    format!(
        "Remove the member from the cluster first. See the members: kubectl etcd-guard status -n {namespace}"
    )
}

/// Returns the advice to overrule a denial by annotations of this object.
fn break_glass_advice(on: &Evaluation<'_>, object: &str) -> String {
    capitalized(&explain::break_glass_advice(object, &on.services.policies.wall_clock))
}

async fn first_ordinal(on: &Evaluation<'_>, namespace: &str, name: &str) -> Result<u32, EvaluationError> {
    let &Evaluation { services, deadline, .. } = on;
    let read = services.observer.pods.first_ordinal(namespace, name);
    let read = deadline.within("reading the StatefulSet from the API server", read).await?;
    read.map_err(EvaluationError::Lookup)
}

/// Returns the approval of an operation that removes no pod. It requires neither pods nor policies.
pub(super) fn harmless_verdict(request: &Request, operation: WorkloadOperation) -> Option<Verdict> {
    match operation {
        WorkloadOperation::OrphanStatefulSet | WorkloadOperation::OrphanOwner => {
            Some(orphan_verdict(request))
        }
        WorkloadOperation::ScaleDown { fewer: false, .. }
        | WorkloadOperation::ScaleOwner { fewer: false, .. } => {
            Some(harmless(format!("scaling {} {} removes no pod", kind(request), request.name)))
        }
        // The deletions of its pods are evaluated one by one. During a rollout, the new pods follow afterwards.
        WorkloadOperation::ScaleOwner { by_deployment: true, .. } => {
            Some(harmless(format!("the Deployment of ReplicaSet {} replaces its pods", request.name)))
        }
        WorkloadOperation::DeleteNode { has_finalizers: true } => {
            let text =
                format!("finalizers delay the deletion of node {}, which is drained first", request.name);
            Some(harmless(text))
        }
        _ => None,
    }
}

fn orphan_verdict(request: &Request) -> Verdict {
    let (kind, name) = (kind(request), &request.name);
    harmless(format!("deleting {kind} {name} orphans its pods, which continue to run"))
}

/// Returns the kind of the owner that is the object of a request.
fn kind(request: &Request) -> &str {
    request.owner.as_ref().map_or("StatefulSet", |owner| owner.kind.as_str())
}

fn mounts_claim(pod: &Pod, claim: &str) -> bool {
    pod.spec.volumes.iter().any(|volume| {
        volume.persistent_volume_claim.as_ref().is_some_and(|source| source.claim_name == claim)
    })
}
