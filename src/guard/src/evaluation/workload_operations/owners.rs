//! Deletions and scale-downs of owners that are no StatefulSet: Deployments, `ReplicaSets`, and the custom resources that the
//! configuration lists.

use std::collections::BTreeSet;

use crate::{
    evaluation::{
        Evaluation, ledger, several_members,
        workload_operations::{
            break_glass_advice, claims,
            data::{MemberPods, are_stopped, holds_ephemeral_data, is_etcd_template},
            etcd_sets,
            verdicts::{OperationVerdict, harmless, protected},
        },
    },
    observe::error::EvaluationError,
    policy::owner_chain::Kinds,
};
use etcd_guard_core::{
    assess::scale_down::evaluate_any_pods,
    cluster_key::ClusterKey,
    config::owner_kinds::OwnerKind,
    objects::{
        pod::{Metadata, Pod},
        stateful_set::StatefulSet,
    },
    policy::{Permission, Policy},
    reason::Reason,
    request::{Request, WorkloadOperation},
    verdict::Verdict,
};
use etcd_guard_kubernetes::LookupError;

/// The object of a request, and the member pods that it owns.
struct OwnedPods<'a> {
    /// Kind and name.
    object: String,
    /// Arguments of `kubectl` for the object.
    arguments: String,
    kind: OwnerKind,
    metadata: Metadata,
    pods: Vec<&'a Pod>,
    /// The uids of the object and of the owners between it and the pods, which are deleted with it.
    uids: BTreeSet<String>,
}

/// Evaluates the scale-down or the deletion of an owner.
pub(super) async fn evaluate(
    on: &Evaluation<'_>,
    operation: WorkloadOperation,
    policy: &Policy,
    is_unproven_cascade: bool,
    pods: &[Pod],
) -> Result<OperationVerdict, EvaluationError> {
    let owned = match owned_pods(on, pods).await? {
        Ok(owned) => owned,
        Err(verdict) => return Ok(verdict.into()),
    };
    if let WorkloadOperation::ScaleOwner { replicas, .. } = operation {
        return evaluate_scale(on, &owned, replicas, pods).await;
    }
    evaluate_deletion(on, &owned, policy, is_unproven_cascade, pods).await
}

/// Evaluates the deletion of an owner: it is denied while a member runs that the owner owns, directly or through other
/// owners, and if data of a member is deleted with the owner.
async fn evaluate_deletion(
    on: &Evaluation<'_>,
    owned: &OwnedPods<'_>,
    policy: &Policy,
    is_unproven_cascade: bool,
    pods: &[Pod],
) -> Result<OperationVerdict, EvaluationError> {
    let request = on.request;
    let (object, namespace) = (&owned.object, &request.namespace);
    let advice = break_glass_advice(on, &owned.arguments);
    let orphan =
        format!("To keep its pods, orphan them: kubectl delete {} --cascade=orphan", owned.arguments);
    let remedies = [orphan.as_str(), advice.as_str()];
    let protect =
        |text: String, pod: &Pod| OperationVerdict::with_member(protected(text, &remedies), namespace, pod);
    let running = MemberPods::new(pods).running;
    let is_running = |pod: &&Pod| running.iter().any(|running| running.metadata.uid == pod.metadata.uid);
    let running: Vec<&Pod> = owned.pods.iter().copied().filter(is_running).collect();
    if let Some(first) = running.first() {
        let text = format!(
            "{object} owns {} running etcd members, including {}: deleting the object deletes their pods",
            running.len(),
            first.metadata.name
        );
        return Ok(protect(text, first));
    }
    if let Some(claim) = deleted_claim(on, owned).await? {
        let text = format!(
            "{object} owns the data of etcd members, including PersistentVolumeClaim {claim}: deleting the object \
             deletes the data permanently"
        );
        return Ok(protected(text, &remedies).into());
    }
    let Some(first) = owned.pods.first() else {
        // A pod of a member can be absent for a moment, and the object creates its successor.
        return Ok(match members_to_start(on, owned).await? {
            Some(count) if is_unproven_cascade => {
                let text = format!(
                    "{object} runs no etcd member at the moment, and it starts {count} of them again as long as it \
                     exists"
                );
                protected(text, &remedies).into()
            }
            Some(_) => {
                let text = format!("{object} runs no etcd member, and the data of its members is retained");
                OperationVerdict { has_cascade: true, ..harmless(text).into() }
            }
            None => harmless(format!("{object} owns no etcd member")).into(),
        });
    };
    if policy.ephemeral_data == Permission::Deny
        && let Some(pod) = owned.pods.iter().find(|pod| holds_ephemeral_data(pod))
    {
        let text = format!(
            "pod {} of {object} holds the data of an etcd member, and no volume outlives the pod: deleting the object \
             deletes the data permanently",
            pod.metadata.name
        );
        return Ok(protect(text, pod));
    }
    if !are_owned_stopped(on, namespace, owned, pods).await {
        let text = format!(
            "{object} may own running etcd members: their containers do not run according to the kubelet, but not \
             every pod refuses connections"
        );
        return Ok(protect(text, first));
    }
    if is_unproven_cascade {
        let text = format!(
            "{object} owns no running etcd member at the moment, and its {} pods can start again as long as it exists",
            owned.pods.len()
        );
        return Ok(protect(text, first));
    }
    let text = format!("{object} owns no running etcd member, and the data of its members is retained");
    Ok(OperationVerdict::with_member(harmless(text), namespace, first))
}

/// Evaluates a scale-down of a Deployment or a `ReplicaSet`: it is denied if the remaining members would be no quorum.
async fn evaluate_scale(
    on: &Evaluation<'_>,
    owned: &OwnedPods<'_>,
    replicas: u32,
    pods: &[Pod],
) -> Result<OperationVerdict, EvaluationError> {
    let (object, namespace) = (&owned.object, &on.request.namespace);
    let members: Vec<&Pod> = owned.pods.iter().copied().filter(|pod| !pod.is_terminating()).collect();
    let count = members.len().saturating_sub(usize::try_from(replicas).unwrap_or(usize::MAX));
    let Some(first) = members.first().filter(|_| count > 0) else {
        return Ok(harmless(format!("scaling {object} down deletes no etcd member")).into());
    };
    if let Some(denial) = members.iter().find_map(|pod| several_members(on, pod, &owned.arguments)) {
        return Ok(OperationVerdict::with_member(denial, namespace, first));
    }
    let cluster_key = ClusterKey::from_pod(namespace, first);
    let snapshot = ledger::observe(on, &cluster_key, pods).await?;
    let names: Vec<&str> = members.iter().map(|pod| pod.metadata.name.as_str()).collect();
    let verdict = evaluate_any_pods(&snapshot, object, &names, count);
    Ok(OperationVerdict::with_member(verdict, namespace, first))
}

/// Returns the member pods that the object of a request owns, or the verdict if the object does not exist or its kind is
/// not listed.
async fn owned_pods<'a>(
    on: &Evaluation<'_>,
    pods: &'a [Pod],
) -> Result<Result<OwnedPods<'a>, Verdict>, EvaluationError> {
    let &Evaluation { services, request, deadline } = on;
    let (name, namespace) = (&request.name, &request.namespace);
    let Some(kind) = services.owners.kind_of(request) else { return Ok(Err(unlisted(request))) };
    let object = format!("{} {name}", kind.kind);
    let metadata = services.owners.object(request, &kind, deadline).await.map_err(EvaluationError::Lookup)?;
    let Some(metadata) = metadata else {
        return Ok(Err(harmless(format!("{object} does not exist"))));
    };
    // Between a custom resource and the pods there may be owners of kinds that are not listed.
    let kinds = if kind.is_built_in() { Kinds::Configured } else { Kinds::All };
    let mut reads = services.owners.reads(namespace, kinds, deadline);
    let mut owned = OwnedPods {
        arguments: format!("-n {namespace} {} {name}", kind.resource_name()),
        uids: BTreeSet::from([metadata.uid.clone()]),
        object,
        kind,
        metadata,
        pods: Vec::new(),
    };
    for pod in MemberPods::new(pods).with_data {
        let uids = reads.owners_up_to(pod, &owned.metadata.uid, &owned.kind).await;
        if let Some(uids) = uids.map_err(EvaluationError::Lookup)? {
            owned.pods.push(pod);
            owned.uids.extend(uids);
        }
    }
    Ok(Ok(owned))
}

/// Returns a claim with data of a member that is deleted with an object: the object, or an owner between it and the pods,
/// owns the claim.
async fn deleted_claim(
    on: &Evaluation<'_>,
    owned: &OwnedPods<'_>,
) -> Result<Option<String>, EvaluationError> {
    let request = on.request;
    let namespace = &request.namespace;
    let sets = owned_sets(on, namespace, owned).await?;
    if owned.pods.is_empty() && sets.is_empty() {
        return Ok(None);
    }
    let mounted: BTreeSet<&str> = owned
        .pods
        .iter()
        .flat_map(|pod| &pod.spec.volumes)
        .filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str()))
        .collect();
    let claims = claims(on, namespace).await?;
    let deleted = claims.iter().find(|claim| {
        let is_owned = claim.metadata.owner_references.iter().any(|owner| owned.uids.contains(&owner.uid));
        (is_owned && mounted.contains(claim.metadata.name.as_str()))
            || sets.iter().any(|set| set.deletes_claim(claim))
    });
    Ok(deleted.map(|claim| claim.metadata.name.clone()))
}

/// Returns the etcd StatefulSets that an object owns. Those of a custom resource may have no pods at present. A
/// Deployment owns no StatefulSet.
async fn owned_sets(
    on: &Evaluation<'_>,
    namespace: &str,
    owned: &OwnedPods<'_>,
) -> Result<Vec<StatefulSet>, EvaluationError> {
    if owned.kind.is_built_in() {
        return Ok(Vec::new());
    }
    let mut sets = etcd_sets(on, namespace).await?;
    sets.retain(|set| {
        owned.uids.contains(&set.metadata.uid)
            || set.metadata.owner_references.iter().any(|owner| owned.uids.contains(&owner.uid))
    });
    Ok(sets)
}

/// Returns the number of members that an object without pods creates as long as it exists; `None` if it creates none.
async fn members_to_start(
    on: &Evaluation<'_>,
    owned: &OwnedPods<'_>,
) -> Result<Option<u32>, EvaluationError> {
    let &Evaluation { services, request, deadline } = on;
    let (name, namespace) = (&request.name, &request.namespace);
    let count = if owned.kind.is_built_in() {
        let read = services.observer.pods.get_pod_template(namespace, &owned.kind.resource, name);
        match deadline.within("reading the owner from the API server", read).await? {
            Ok(template) => {
                let runs_etcd =
                    is_etcd_template(&services.observer.with_inherited(namespace, template.pod(namespace)));
                if runs_etcd { template.replicas() } else { 0 }
            }
            Err(LookupError::NotFound { .. }) => 0,
            Err(error) => return Err(EvaluationError::Lookup(error)),
        }
    } else {
        let sets = owned_sets(on, namespace, owned).await?;
        sets.iter().fold(0, |count: u32, set| count.saturating_add(set.replicas()))
    };
    Ok((count > 0).then_some(count))
}

/// Returns whether a probe round proves that no member runs in these pods.
async fn are_owned_stopped(
    on: &Evaluation<'_>,
    namespace: &str,
    owned: &OwnedPods<'_>,
    pods: &[Pod],
) -> bool {
    let &Evaluation { services, deadline, .. } = on;
    let keys = owned.pods.iter().map(|pod| ClusterKey::from_pod(namespace, pod));
    let mut observed: Vec<ClusterKey> = Vec::new();
    for key in keys {
        if observed.contains(&key) {
            continue;
        }
        let snapshot = services.observer.observe_listed(&key, pods, &[], deadline).await;
        let is_owned = |name: &str| owned.pods.iter().any(|pod| pod.metadata.name == name);
        if !are_stopped(&snapshot, is_owned) {
            return false;
        }
        observed.push(key);
    }
    true
}

/// Returns the denial of an operation on an object of a kind that is not listed.
fn unlisted(request: &Request) -> Verdict {
    let owner = request.owner.clone().unwrap_or_default();
    let text = format!(
        "could not evaluate {} {}: guard.ownerKinds of the configuration does not list {} of {}",
        owner.kind, request.name, owner.resource, owner.group
    );
    let remedy = "List this kind there, or remove its rule from the webhook configuration: kubectl edit \
                  validatingwebhookconfiguration etcd-guard";
    Verdict::new(Reason::LookupFailed, text).with_remedy(remedy)
}
