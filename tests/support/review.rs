//! The question that an apiserver sends, put together by hand, and pods to ask about.

use std::{
    net::Ipv4Addr,
    sync::atomic::{AtomicU32, Ordering},
};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::{guarded_cluster::START_LIMIT, wait::some};

/// Makes a pod that says that it runs etcd, at an address where nothing may listen.
pub async fn create_etcd_pod(pods: &Api<Pod>, name: &str, address: Ipv4Addr) -> Pod {
    let container = json!({"name": "etcd", "image": "etcd", "command": ["etcd"]});
    let metadata = json!({"name": name, "labels": {"app": name}});
    let spec = json!({"containers": [container], "schedulerName": "nobody"});
    let pod = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a Pod");
    // A new namespace has no service account for a moment.
    some("a pod", START_LIMIT, async || pods.create(&PostParams::default(), &pod).await.ok()).await;
    let status = json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}});
    pods.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.expect("a Pod's status")
}

/// "May this pod be deleted?"
pub fn deletion_of(pod: &Pod) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": format!("review-{}", NEXT.fetch_add(1, Ordering::Relaxed)),
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "name": pod.metadata.name,
            "namespace": pod.metadata.namespace,
            "operation": "DELETE",
            "userInfo": {"username": "admin"},
            "object": null,
            "oldObject": pod,
            "dryRun": false,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "DeleteOptions", "gracePeriodSeconds": 30},
        },
    })
    .to_string()
}

/// The response in an answer: whether it allows, and its message.
pub fn verdict(body: &str) -> (bool, String) {
    let answer: Value = serde_json::from_str(body).expect("an AdmissionReview");
    let response = &answer["response"];
    let allowed = response["allowed"].as_bool().unwrap_or_else(|| panic!("a verdict: {body}"));
    (allowed, response["status"]["message"].as_str().unwrap_or_default().to_owned())
}
