//! Evictions. The review of an eviction contains the name of the pod, but not the pod.
//!
//! Reading the pod first and listing its siblings afterwards would cost one call more than a deletion. The watch of
//! StatefulSets maps the name of a StatefulSet's pod to its cluster. The cluster's pods and the record are then read in
//! parallel, and the pod is one of these pods. A list is as recent as a single read, because both are consistent reads.
//!
//! All other pods are read individually first: most of them run no etcd, and a list may contain thousands of pods.

use crate::guard::{
    decide::{
        cluster_cache::ClusterCache,
        context::EvaluationError,
        inputs::{InputReader, RawInputs},
        member_evaluator::LockedInputs,
    },
    discovery::etcd_pod,
    model::{cluster_key::ClusterKey, deadline::Deadline, request::Request},
};
use crate::k8s::{AnnotationCache, pod::Pod};

/// Result of finding a pod by the name in a request.
pub(super) enum NamedPod {
    /// The pod and the inputs of its evaluation.
    Found(Box<Pod>, Box<LockedInputs>),
    /// The pod does not exist.
    NotFound,
    /// The pod must be read individually.
    ReadIndividually,
}

/// Finds the pod of a request that contains only its name. Also returns [`NamedPod::ReadIndividually`] while another
/// evaluation holds the cluster lock: inputs that are read before the lock is acquired would be outdated when it is
/// acquired, and the cached snapshot may deny the request without a list.
///
/// # Errors
///
/// Fails if the deadline is exceeded. After any other error, the pod must be read individually.
pub(super) async fn find_named_pod(
    inputs: &InputReader,
    cache: &ClusterCache,
    annotations: &AnnotationCache,
    request: &Request,
    deadline: Deadline,
) -> Result<NamedPod, EvaluationError> {
    if request.pod.is_some() {
        return Ok(NamedPod::ReadIndividually);
    }
    let (namespace, name) = (&request.namespace, &request.name);
    let Some((set, uid)) = annotations.stateful_set_by_pod_name(namespace, name) else {
        return Ok(NamedPod::ReadIndividually);
    };
    let cluster_key = ClusterKey::from_stateful_set(namespace, set, uid);
    let Ok(lock) = cache.lock(&cluster_key).try_lock_owned() else { return Ok(NamedPod::ReadIndividually) };
    let raw = match cache.cluster_id(&cluster_key) {
        Some(_) => inputs.read_raw(request, &cluster_key, deadline).await,
        None => {
            let pods = inputs.observer.list_pods(namespace, deadline).await;
            pods.map(|pods| RawInputs { pods, are_read_by_name: false, records: None }).map_err(Into::into)
        }
    };
    let raw = match raw {
        Ok(raw) => raw,
        Err(error @ EvaluationError::DeadlineExceeded(_)) => return Err(error),
        Err(_) => return Ok(NamedPod::ReadIndividually),
    };
    let Some(pod) = raw.pods.iter().find(|pod| request.matches(pod)).cloned() else {
        return Ok(NamedPod::NotFound);
    };
    let is_member = etcd_pod::read(&pod, &pod.metadata.annotations).is_some();
    if is_member && !cluster_key.contains(namespace, &pod) {
        return Ok(NamedPod::ReadIndividually);
    }
    Ok(NamedPod::Found(Box::new(pod), Box::new(LockedInputs { lock, raw })))
}
