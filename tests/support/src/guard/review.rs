//! Admission reviews as the API server sends them.

use std::sync::atomic::{AtomicU32, Ordering};

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

/// Returns the review of a pod's deletion.
pub fn deletion_review(pod: &Pod) -> String {
    pod_deletion_review(pod, false)
}

/// Returns the review of a dry run of a pod's deletion.
pub fn dry_run_review(pod: &Pod) -> String {
    pod_deletion_review(pod, true)
}

/// Returns the review of a pod's eviction, which contains only the name of the pod.
pub fn eviction_review(pod: &Pod) -> String {
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

/// Returns the review of a node's deletion.
pub fn node_deletion_review(name: &str) -> String {
    review(json!({
        "kind": {"group": "", "version": "v1", "kind": "Node"},
        "resource": {"group": "", "version": "v1", "resource": "nodes"},
        "name": name,
        "operation": "DELETE",
        "userInfo": {"username": "admin"},
        "object": null,
        "oldObject": {"metadata": {"name": name}},
        "dryRun": false,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": "DeleteOptions"},
    }))
}

/// Returns the review of a StatefulSet's deletion.
pub fn stateful_set_deletion_review(namespace: &str, name: &str) -> String {
    review(json!({
        "kind": {"group": "apps", "version": "v1", "kind": "StatefulSet"},
        "resource": {"group": "apps", "version": "v1", "resource": "statefulsets"},
        "name": name,
        "namespace": namespace,
        "operation": "DELETE",
        "userInfo": {"username": "admin"},
        "object": null,
        "oldObject": {"metadata": {"name": name, "namespace": namespace}},
        "dryRun": false,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": "DeleteOptions", "propagationPolicy": "Background"},
    }))
}

/// Returns the review of an update of a StatefulSet that reduces its replicas.
pub fn scale_down_review(namespace: &str, name: &str, (before, after): (u32, u32)) -> String {
    let set = |replicas: u32| json!({"metadata": {"name": name, "namespace": namespace}, "spec": {"replicas": replicas}});
    review(json!({
        "kind": {"group": "apps", "version": "v1", "kind": "StatefulSet"},
        "resource": {"group": "apps", "version": "v1", "resource": "statefulsets"},
        "name": name,
        "namespace": namespace,
        "operation": "UPDATE",
        "userInfo": {"username": "admin"},
        "object": set(after),
        "oldObject": set(before),
        "dryRun": false,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": "UpdateOptions"},
    }))
}

fn pod_deletion_review(pod: &Pod, dry_run: bool) -> String {
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

/// Returns the verdict of a response: whether the request is allowed, and the message.
pub fn verdict(body: &str) -> (bool, String) {
    let answer: Value = serde_json::from_str(body).expect("an AdmissionReview");
    let response = &answer["response"];
    let allowed = response["allowed"].as_bool().unwrap_or_else(|| panic!("a verdict: {body}"));
    (allowed, response["status"]["message"].as_str().unwrap_or_default().to_owned())
}

/// Returns the reason code of a response.
pub fn reason(body: &str) -> String {
    let answer: Value = serde_json::from_str(body).expect("an AdmissionReview");
    let reason = answer["response"]["auditAnnotations"]["reason"].as_str();
    reason.unwrap_or_else(|| panic!("a reason: {body}")).to_owned()
}

/// Returns a pod that does not run etcd: the guard allows its deletion without a probe.
pub fn pod_without_etcd() -> Pod {
    let pod = json!({
        "metadata": {"name": "free", "namespace": "free", "uid": "free"},
        "spec": {"containers": [{"name": "app", "image": "app"}]},
    });
    serde_json::from_value(pod).expect("a Pod")
}
