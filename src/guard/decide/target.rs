//! The live pod of a request. Policies and owners are read from it, because a review can be forged.
//!
//! A separate read of the pod before the list of its siblings would cost one call more for each decision. The copy in the
//! review of a deletion names the cluster of the pod, and for an eviction, which contains only the name of the pod, the
//! watch of StatefulSets maps this name to a cluster. The cluster's pods and the record are then read in parallel, and the
//! pod is one of these pods. A list is as recent as a single read, because both are consistent reads.
//!
//! All other pods are read individually first: most of them run no etcd, and a list may contain thousands of pods.

use tokio::sync::OwnedMutexGuard;

use crate::guard::{
    decide::{
        context::{EvaluationContext, EvaluationError},
        inputs::RawInputs,
        member_evaluator::{Acquired, LockedInputs, MemberEvaluator},
    },
    discovery::{etcd_pod, settled::pod_gone},
    model::{cluster_key::ClusterKey, deadline::Deadline, request::Request, verdict::Verdict},
};
use crate::k8s::pod::Pod;

/// The live pod of a request.
pub(super) struct LiveTarget {
    pub(super) pod: Box<Pod>,
    /// The inputs of its evaluation, if they were read with the pod.
    pub(super) locked: Option<Box<LockedInputs>>,
}

/// Result of finding the live pod of a request that contains a copy of it.
pub(super) enum Target {
    /// The live pod.
    Live(LiveTarget),
    /// The last snapshot denies the deletion, so that the live pod is not required.
    Denied(Box<Verdict>),
}

// === impl MemberEvaluator ===

impl MemberEvaluator {
    /// Finds the live pod of a request that contains a copy of it. `context` has the cluster and the policy of the copy.
    /// They select a cached denial, if `may_deny`: the policy is complete, and overrules no denial.
    ///
    /// # Errors
    ///
    /// Fails if the pod cannot be read, or does not exist.
    pub(super) async fn find_copied_pod(
        &self,
        context: &EvaluationContext<'_>,
        may_deny: bool,
    ) -> Result<Target, EvaluationError> {
        let &EvaluationContext { request, cluster_key, deadline, .. } = context;
        match self.acquire(context).await? {
            Acquired::Denied(denial) if may_deny => Ok(Target::Denied(denial)),
            Acquired::Denied(_) => {
                Box::pin(self.read_individually(request, deadline)).await.map(Target::Live)
            }
            Acquired::Lock(lock) => {
                let raw = Box::pin(self.inputs.read_raw(request, cluster_key, deadline)).await?;
                let target = select(request, cluster_key, lock, raw);
                target.map(Target::Live).ok_or_else(|| EvaluationError::Settled(pod_gone(request)))
            }
        }
    }

    /// Finds the live pod of a request that contains only its name. The pod is also read individually while another
    /// evaluation holds the cluster lock: inputs that are read before the lock is acquired would be outdated when it is
    /// acquired, and the cached snapshot may deny the request without a list.
    ///
    /// # Errors
    ///
    /// Fails if the pod cannot be read, or does not exist.
    pub(super) async fn find_named_pod(
        &self,
        request: &Request,
        deadline: Deadline,
    ) -> Result<LiveTarget, EvaluationError> {
        let (namespace, name) = (&request.namespace, &request.name);
        let observer = &self.inputs.observer;
        let Some((set, uid)) = observer.annotations.stateful_set_by_pod_name(namespace, name) else {
            return self.read_individually(request, deadline).await;
        };
        let cluster_key = ClusterKey::from_stateful_set(namespace, set, uid);
        let Ok(lock) = self.cache.lock(&cluster_key).try_lock_owned() else {
            return self.read_individually(request, deadline).await;
        };
        let raw = match self.cache.cluster_id(&cluster_key) {
            Some(_) => self.inputs.read_raw(request, &cluster_key, deadline).await,
            None => {
                let pods = observer.list_pods(namespace, deadline).await;
                pods.map(|pods| RawInputs { pods, are_read_by_name: false, records: None, connecting: None })
                    .map_err(Into::into)
            }
        };
        match raw {
            Ok(raw) => {
                let target = select(request, &cluster_key, lock, raw);
                target.ok_or_else(|| EvaluationError::Settled(pod_gone(request)))
            }
            Err(error @ EvaluationError::DeadlineExceeded(_)) => Err(error),
            Err(_) => {
                drop(lock);
                self.read_individually(request, deadline).await
            }
        }
    }

    /// Reads the live pod without the other inputs of its evaluation.
    pub(super) async fn read_individually(
        &self,
        request: &Request,
        deadline: Deadline,
    ) -> Result<LiveTarget, EvaluationError> {
        let pod = self.inputs.observer.live_pod(request, deadline).await?;
        Ok(LiveTarget { pod: Box::new(pod), locked: None })
    }
}

/// Selects the pod of a request from inputs that were read under the lock of this cluster. Returns `None` if the pod does
/// not exist. Inputs of another cluster than that of the live pod are dropped with the lock.
fn select(
    request: &Request,
    cluster_key: &ClusterKey,
    lock: OwnedMutexGuard<()>,
    raw: RawInputs,
) -> Option<LiveTarget> {
    let pod = raw.pods.iter().find(|pod| request.matches(pod)).cloned()?;
    let is_member = etcd_pod::read(&pod, &pod.metadata.annotations).is_some();
    let is_in_cluster = cluster_key.contains(&request.namespace, &pod);
    let locked = (is_in_cluster || !is_member).then(|| Box::new(LockedInputs { lock, raw }));
    Some(LiveTarget { pod: Box::new(pod), locked })
}
