//! Namespaces and pods, as tests want them.

use std::{
    net::Ipv4Addr,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::{wait::until, webhook};

/// A new namespace has no service account for a moment.
const CREATE_LIMIT: Duration = Duration::from_secs(60);

/// Makes a namespace, guarded or not. Its name is its label's value.
pub async fn new_namespace(client: &Client, guarded: bool) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("test-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let labels = if guarded { json!({webhook::LABEL: name}) } else { json!({}) };
    let namespace = json!({"metadata": {"name": name, "labels": labels}});
    let namespace = serde_json::from_value(namespace).expect("a Namespace");
    Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await
        .expect("a namespace");
    name
}

/// Makes a pod that runs no etcd, if it is not there.
pub async fn create_pod(pods: &Api<Pod>, name: &str) {
    let spec = json!({
        "automountServiceAccountToken": false,
        "containers": [{"name": "app", "image": "app"}],
        "terminationGracePeriodSeconds": 1,
    });
    create(pods, name, spec).await;
}

/// Makes a pod whose containers have ended for good, as a kubelet leaves it behind.
pub async fn create_failed_pod(pods: &Api<Pod>, name: &str) {
    let containers = json!([{"name": "app", "image": "app"}]);
    let spec = json!({"schedulerName": "nobody", "restartPolicy": "Never", "containers": containers});
    create(pods, name, spec).await;
    set_status(pods, name, json!({"phase": "Failed"})).await;
}

/// Makes a pod that says that it runs etcd, at an address where nothing may listen.
pub async fn create_etcd_pod(pods: &Api<Pod>, name: &str, address: Ipv4Addr) -> Pod {
    let container = json!({"name": "etcd", "image": "etcd", "command": ["etcd"]});
    create(pods, name, json!({"schedulerName": "nobody", "containers": [container]})).await;
    set_status(pods, name, json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]})).await
}

async fn create(pods: &Api<Pod>, name: &str, spec: Value) {
    let pod = json!({"metadata": {"name": name, "labels": {"name": name}}, "spec": spec});
    let pod = serde_json::from_value(pod).expect("a Pod");
    until(&format!("pod {name}"), CREATE_LIMIT, async || {
        match pods.create(&PostParams::default(), &pod).await {
            Ok(_) => true,
            Err(kube::Error::Api(status)) => status.code == 409,
            Err(_) => false,
        }
    })
    .await;
}

async fn set_status(pods: &Api<Pod>, name: &str, status: Value) -> Pod {
    let patch = Patch::Merge(json!({"status": status}));
    pods.patch_status(name, &PatchParams::default(), &patch).await.expect("a status that is accepted")
}

/// Deletes a pod; the error is what the API says.
pub async fn delete(pods: &Api<Pod>, name: &str) -> Result<(), String> {
    match pods.delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) => Err(status.message),
        Err(error) => panic!("deleting {name}: {error}"),
    }
}

pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|it| it.type_ == "Ready" && it.status == "True")
}
