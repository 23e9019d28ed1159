//! The question that an apiserver sends, put together by hand.

use std::sync::atomic::{AtomicU32, Ordering};

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

/// "May this pod be deleted?"
pub fn deletion_of(pod: &Pod) -> String {
    review_of(pod, false)
}

/// "Might this pod be deleted?"
pub fn dry_run_of(pod: &Pod) -> String {
    review_of(pod, true)
}

/// "May this pod be evicted?" It tells nothing of the pod but its name.
pub fn eviction_of(pod: &Pod) -> String {
    review(json!({
        "kind": {"group": "policy", "version": "v1", "kind": "Eviction"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "subResource": "eviction",
        "name": pod.metadata.name,
        "namespace": pod.metadata.namespace,
        "operation": "CREATE",
        "userInfo": {"username": "admin"},
        "object": {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.metadata.name, "namespace": pod.metadata.namespace},
        },
        "oldObject": null,
        "dryRun": false,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
    }))
}

fn review_of(pod: &Pod, dry_run: bool) -> String {
    review(json!({
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "name": pod.metadata.name,
        "namespace": pod.metadata.namespace,
        "operation": "DELETE",
        "userInfo": {"username": "admin"},
        "object": null,
        "oldObject": pod,
        "dryRun": dry_run,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": "DeleteOptions", "gracePeriodSeconds": 30},
    }))
}

fn review(mut request: Value) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    request["uid"] = json!(format!("review-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string()
}

/// The response in an answer: whether it allows, and its message.
pub fn verdict(body: &str) -> (bool, String) {
    let answer: Value = serde_json::from_str(body).expect("an AdmissionReview");
    let response = &answer["response"];
    let allowed = response["allowed"].as_bool().unwrap_or_else(|| panic!("a verdict: {body}"));
    (allowed, response["status"]["message"].as_str().unwrap_or_default().to_owned())
}

/// A pod that runs no etcd: judged without a look at anything.
pub fn pod_without_etcd() -> Pod {
    let pod = json!({
        "metadata": {"name": "free", "namespace": "free", "uid": "free"},
        "spec": {"containers": [{"name": "app", "image": "app"}]},
    });
    serde_json::from_value(pod).expect("a Pod")
}
