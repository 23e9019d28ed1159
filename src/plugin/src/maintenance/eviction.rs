//! Evictions through the eviction API, and previews of their verdicts.

use std::time::Duration;

use k8s_openapi::{
    api::{core::v1::Pod, policy::v1::Eviction},
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions},
};
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::guard_client::GuardClient;
use etcd_guard_api::Preview;

/// Pause between two attempts. `kubectl drain` waits 5 s.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// The user of a preview. The guard gives the same verdict on an eviction for every user.
const PREVIEW_USER: &str = "etcd-guard";

/// The response to an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EvictionResult {
    /// The pod is being deleted.
    Accepted,
    /// The pod does not exist any more, or another pod has its name.
    Gone,
    /// The guard, a budget or the API server denied the eviction for this cause, or the call failed.
    Denied(String),
}

/// Requests the eviction of the pod with this uid. The precondition excludes the successor of the pod.
pub(crate) async fn evict(guard: &GuardClient, namespace: &str, pod: &str, uid: &str) -> EvictionResult {
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    let eviction = Eviction {
        metadata: ObjectMeta { name: Some(pod.to_owned()), ..ObjectMeta::default() },
        delete_options: Some(DeleteOptions {
            preconditions: Some(preconditions),
            ..DeleteOptions::default()
        }),
    };
    let pods = guard.api_server.namespaced::<Pod>(namespace);
    let parameters = PostParams::default();
    let request = pods.create_subresource::<_, Value>("eviction", pod, &parameters, &eviction);
    match guard.api_server.call(format!("failed to evict pod {namespace}/{pod}"), request).await {
        Ok(_) => EvictionResult::Accepted,
        Err(error) if matches!(error.code, Some(404 | 409)) => EvictionResult::Gone,
        Err(error) => EvictionResult::Denied(error.cause),
    }
}

/// Returns the guard's verdict on the eviction of a pod. The preview changes nothing.
pub(crate) async fn preview(guard: &GuardClient, namespace: &str, pod: &str) -> anyhow::Result<Preview> {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": format!("check-{}", std::process::id()),
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "subResource": "eviction",
            "operation": "CREATE",
            "name": pod,
            "namespace": namespace,
            "userInfo": {"username": PREVIEW_USER},
            "object": {"metadata": {"name": pod, "namespace": namespace}},
            "dryRun": true,
        },
    });
    guard.post("/check", serde_json::to_vec(&review)?).await
}
