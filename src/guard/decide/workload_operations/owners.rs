//! Deletions and scale-downs of owners that are no StatefulSet: Deployments, `ReplicaSets`, and the custom resources that the
//! configuration lists.

use std::collections::BTreeSet;

use crate::guard::{
    assess::scale_down::evaluate_any_pods,
    decide::{
        context::EvaluationError,
        workload_operations::{
            WorkloadEvaluator,
            data::{MemberPods, are_stopped, holds_ephemeral_data, is_etcd_template},
            verdicts::{OperationVerdict, harmless, protected},
        },
    },
    model::{
        cluster_key::ClusterKey,
        deadline::Deadline,
        reason::Reason,
        request::{Request, WorkloadOperation},
        verdict::Verdict,
    },
    policy::{
        effective::{Permission, Policy},
        owner_chain::Kinds,
    },
};
use crate::{
    config::OwnerKind,
    k8s::{
        LookupError, StatefulSet,
        pod::{Metadata, Pod},
    },
};

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

// === impl WorkloadEvaluator ===

impl WorkloadEvaluator {
    /// Evaluates the scale-down or the deletion of an owner.
    pub(super) async fn evaluate_owner(
        &self,
        request: &Request,
        operation: WorkloadOperation,
        policy: &Policy,
        is_unproven_cascade: bool,
        pods: &[Pod],
        deadline: Deadline,
    ) -> Result<OperationVerdict, EvaluationError> {
        let owned = match self.owned_pods(request, pods, deadline).await? {
            Ok(owned) => owned,
            Err(verdict) => return Ok(verdict.into()),
        };
        if let WorkloadOperation::ScaleOwner { replicas, .. } = operation {
            return self.evaluate_owner_scale(request, &owned, replicas, pods, deadline).await;
        }
        self.evaluate_owner_deletion(request, &owned, policy, is_unproven_cascade, pods, deadline).await
    }

    /// Evaluates the deletion of an owner: it is denied while a member runs that the owner owns, directly or through other
    /// owners, and if data of a member is deleted with the owner.
    async fn evaluate_owner_deletion(
        &self,
        request: &Request,
        owned: &OwnedPods<'_>,
        policy: &Policy,
        is_unproven_cascade: bool,
        pods: &[Pod],
        deadline: Deadline,
    ) -> Result<OperationVerdict, EvaluationError> {
        let (object, namespace) = (&owned.object, &request.namespace);
        let advice = self.break_glass_advice(&owned.arguments);
        let remedy = format!("To orphan the dependents, add --cascade=orphan; to {advice}");
        let protect =
            |text: String, pod: &Pod| OperationVerdict::with_member(protected(text, &remedy), namespace, pod);
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
        if let Some(claim) = self.deleted_claim(request, owned, deadline).await? {
            let text = format!(
                "{object} owns the data of etcd members, including PersistentVolumeClaim {claim}: deleting the object \
                 deletes the data permanently"
            );
            return Ok(protected(text, &remedy).into());
        }
        let Some(first) = owned.pods.first() else {
            // A pod of a member can be absent for a moment, and the object creates its successor.
            return Ok(match self.members_to_start(request, owned, deadline).await? {
                Some(count) if is_unproven_cascade => {
                    let text = format!(
                        "{object} runs no etcd member at the moment, and it starts {count} of them again as long as it \
                         exists"
                    );
                    protected(text, &remedy).into()
                }
                Some(_) => {
                    let text =
                        format!("{object} runs no etcd member, and the data of its members is retained");
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
        if !self.are_stopped(namespace, owned, pods, deadline).await {
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
    async fn evaluate_owner_scale(
        &self,
        request: &Request,
        owned: &OwnedPods<'_>,
        replicas: u32,
        pods: &[Pod],
        deadline: Deadline,
    ) -> Result<OperationVerdict, EvaluationError> {
        let (object, namespace) = (&owned.object, &request.namespace);
        let members: Vec<&Pod> = owned.pods.iter().copied().filter(|pod| !pod.is_terminating()).collect();
        let count = members.len().saturating_sub(usize::try_from(replicas).unwrap_or(usize::MAX));
        let Some(first) = members.first().filter(|_| count > 0) else {
            return Ok(harmless(format!("scaling {object} down deletes no etcd member")).into());
        };
        let cluster_key = ClusterKey::from_pod(namespace, first);
        let reserved = self.active_reservations(deadline).await?;
        let snapshot = self.observer.observe_listed(&cluster_key, pods, &reserved, deadline).await;
        let names: Vec<&str> = members.iter().map(|pod| pod.metadata.name.as_str()).collect();
        let verdict = evaluate_any_pods(&snapshot, object, &names, count);
        Ok(OperationVerdict::with_member(verdict, namespace, first))
    }

    /// Returns the member pods that the object of a request owns, or the verdict if the object does not exist or its kind is
    /// not listed.
    async fn owned_pods<'a>(
        &self,
        request: &Request,
        pods: &'a [Pod],
        deadline: Deadline,
    ) -> Result<Result<OwnedPods<'a>, Verdict>, EvaluationError> {
        let (name, namespace) = (&request.name, &request.namespace);
        let Some(kind) = self.owners.kind_of(request) else { return Ok(Err(unlisted(request))) };
        let object = format!("{} {name}", kind.kind);
        let metadata = self.owners.object(request, &kind, deadline).await.map_err(EvaluationError::Lookup)?;
        let Some(metadata) = metadata else {
            return Ok(Err(harmless(format!("{object} does not exist"))));
        };
        // Between a custom resource and the pods there may be owners of kinds that are not listed.
        let kinds = if kind.is_built_in() { Kinds::Listed } else { Kinds::All };
        let mut reads = self.owners.reads(namespace, kinds, deadline);
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
        &self,
        request: &Request,
        owned: &OwnedPods<'_>,
        deadline: Deadline,
    ) -> Result<Option<String>, EvaluationError> {
        let namespace = &request.namespace;
        let sets = self.owned_sets(namespace, owned, deadline).await?;
        if owned.pods.is_empty() && sets.is_empty() {
            return Ok(None);
        }
        let mounted: BTreeSet<&str> = owned
            .pods
            .iter()
            .flat_map(|pod| &pod.spec.volumes)
            .filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str()))
            .collect();
        let claims = self.claims(namespace, deadline).await?;
        let deleted = claims.iter().find(|claim| {
            let is_owned =
                claim.metadata.owner_references.iter().any(|owner| owned.uids.contains(&owner.uid));
            (is_owned && mounted.contains(claim.metadata.name.as_str()))
                || sets.iter().any(|set| set.deletes_claim(claim))
        });
        Ok(deleted.map(|claim| claim.metadata.name.clone()))
    }

    /// Returns the etcd StatefulSets that an object owns. Those of a custom resource may have no pods at present. A
    /// Deployment owns no StatefulSet.
    async fn owned_sets(
        &self,
        namespace: &str,
        owned: &OwnedPods<'_>,
        deadline: Deadline,
    ) -> Result<Vec<StatefulSet>, EvaluationError> {
        if owned.kind.is_built_in() {
            return Ok(Vec::new());
        }
        let mut sets = self.etcd_sets(namespace, deadline).await?;
        sets.retain(|set| {
            owned.uids.contains(&set.metadata.uid)
                || set.metadata.owner_references.iter().any(|owner| owned.uids.contains(&owner.uid))
        });
        Ok(sets)
    }

    /// Returns the number of members that an object without pods creates as long as it exists; `None` if it creates none.
    async fn members_to_start(
        &self,
        request: &Request,
        owned: &OwnedPods<'_>,
        deadline: Deadline,
    ) -> Result<Option<u32>, EvaluationError> {
        let (name, namespace) = (&request.name, &request.namespace);
        let count = if owned.kind.is_built_in() {
            let read = self.observer.pods.get_pod_template(namespace, &owned.kind.resource, name);
            match deadline.within("reading the owner from the API server", read).await? {
                Ok(template) => {
                    let runs_etcd =
                        is_etcd_template(&self.observer.inherit(namespace, template.pod(namespace)));
                    if runs_etcd { template.replicas() } else { 0 }
                }
                Err(LookupError::NotFound { .. }) => 0,
                Err(error) => return Err(EvaluationError::Lookup(error)),
            }
        } else {
            let sets = self.owned_sets(namespace, owned, deadline).await?;
            sets.iter().fold(0, |count: u32, set| count.saturating_add(set.replicas()))
        };
        Ok((count > 0).then_some(count))
    }

    /// Returns whether a probe round proves that no member runs in these pods.
    async fn are_stopped(
        &self,
        namespace: &str,
        owned: &OwnedPods<'_>,
        pods: &[Pod],
        deadline: Deadline,
    ) -> bool {
        let keys = owned.pods.iter().map(|pod| ClusterKey::from_pod(namespace, pod));
        let mut observed: Vec<ClusterKey> = Vec::new();
        for key in keys {
            if observed.contains(&key) {
                continue;
            }
            let snapshot = self.observer.observe_listed(&key, pods, &[], deadline).await;
            let is_owned = |name: &str| owned.pods.iter().any(|pod| pod.metadata.name == name);
            if !are_stopped(&snapshot, is_owned) {
                return false;
            }
            observed.push(key);
        }
        true
    }
}

/// Returns the denial of an operation on an object of a kind that is not listed.
fn unlisted(request: &Request) -> Verdict {
    let owner = request.owner.clone().unwrap_or_default();
    let text = format!(
        "could not evaluate {} {}: guard.ownerKinds of the configuration does not list {} of {}",
        owner.kind, request.name, owner.resource, owner.group
    );
    let remedy =
        "List this kind (docs/policies.md), or remove its rule from the webhook configuration etcd-guard";
    Verdict::new(Reason::LookupFailed, text).with_remedy(remedy)
}
