//! Previews of the verdicts on evictions.

use serde_json::json;

use super::api::ClusterApi;
use crate::server::Preview;

/// The user of a preview. The guard evaluates the same facts for every user that is no controller.
const PREVIEW_USER: &str = "etcd-guard";

/// Returns the guard's verdict on the eviction of a pod. The preview changes nothing.
pub(crate) async fn preview(api: &ClusterApi, namespace: &str, pod: &str) -> anyhow::Result<Preview> {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": format!("drain-{}", std::process::id()),
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
    api.guard.post("/check", serde_json::to_vec(&review)?).await
}
