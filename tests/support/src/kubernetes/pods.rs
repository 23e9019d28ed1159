//! Namespaces and pods for tests.

use std::{
    cell::RefCell,
    mem,
    net::Ipv4Addr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{kubernetes::webhook, wait::wait_until};

/// A new namespace has no service account for a moment, so the creation of pods is retried.
const CREATE_TIMEOUT: Duration = Duration::from_secs(60);

/// The guarded namespaces of tests that have ended.
static ENDED: Mutex<Vec<String>> = Mutex::new(Vec::new());

thread_local! {
    /// The guarded namespaces that were created on this thread. Each test has a thread of its own.
    static CREATED: RefCell<Created> = RefCell::default();
}

/// Names of namespaces; they are added to [`ENDED`] when their thread ends.
#[derive(Default)]
struct Created(Vec<String>);

impl Drop for Created {
    fn drop(&mut self) {
        ENDED.lock().unwrap_or_else(PoisonError::into_inner).append(&mut self.0);
    }
}

/// Creates a namespace, guarded or not. Its name is also the value of the label of its test. The guard's label is removed
/// after the test: every guard of later tests would watch the namespace.
pub async fn new_namespace(client: &Client, guarded: bool) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let ended = mem::take(&mut *ENDED.lock().unwrap_or_else(PoisonError::into_inner));
    for name in ended {
        let patch = Patch::Merge(json!({"metadata": {"labels": {webhook::LABEL: null}}}));
        // The namespace may have been deleted, or its API server has ended.
        let _ = Api::<Namespace>::all(client.clone()).patch(&name, &PatchParams::default(), &patch).await;
    }
    let name = format!("test-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let mut labels = json!({webhook::TEST_LABEL: name});
    if guarded {
        labels[webhook::LABEL] = json!(webhook::VALUE);
    }
    let namespace = json!({"metadata": {"name": name, "labels": labels}});
    let namespace = serde_json::from_value(namespace).expect("a Namespace");
    Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await
        .expect("a namespace");
    if guarded {
        CREATED.with_borrow_mut(|created| created.0.push(name.clone()));
    }
    name
}

/// Creates a pod that does not run etcd, unless it exists.
pub async fn create_pod(pods: &Api<Pod>, name: &str) {
    let spec = json!({
        "automountServiceAccountToken": false,
        "containers": [{"name": "app", "image": "app"}],
        "terminationGracePeriodSeconds": 1,
    });
    create_pod_with(pods, name, spec).await;
}

/// Creates a pod whose containers have failed, as a kubelet leaves it.
pub async fn create_failed_pod(pods: &Api<Pod>, name: &str) {
    let containers = json!([{"name": "app", "image": "app"}]);
    let spec = json!({"schedulerName": "no-scheduler", "restartPolicy": "Never", "containers": containers});
    create_pod_with(pods, name, spec).await;
    set_status(pods, name, json!({"phase": "Failed"})).await;
}

/// Creates a pod that is recognized as an etcd pod, at an address that may have no listener.
pub async fn create_etcd_pod(pods: &Api<Pod>, name: &str, address: Ipv4Addr) -> Pod {
    let container = json!({"name": "etcd", "image": "etcd", "command": ["etcd"]});
    create_pod_with(pods, name, json!({"schedulerName": "no-scheduler", "containers": [container]})).await;
    let running = json!({
        "name": "etcd", "image": "etcd", "imageID": "", "ready": true, "restartCount": 0,
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    });
    let ips = json!([{"ip": address}]);
    let status = json!({"phase": "Running", "podIP": address, "podIPs": ips, "containerStatuses": [running]});
    set_status(pods, name, status).await
}

/// Creates a pod with this specification, unless it exists.
pub async fn create_pod_with(pods: &Api<Pod>, name: &str, spec: Value) {
    let pod = json!({"metadata": {"name": name, "labels": {"name": name}}, "spec": spec});
    let pod = serde_json::from_value(pod).expect("a Pod");
    wait_until(&format!("pod {name}"), CREATE_TIMEOUT, async || {
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
    pods.patch_status(name, &PatchParams::default(), &patch).await.expect("the status is accepted")
}

/// Deletes a pod. The error is the message of the API server.
pub async fn delete(pods: &Api<Pod>, name: &str) -> Result<(), String> {
    match pods.delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) => Err(status.message),
        Err(error) => panic!("deleting {name}: {error}"),
    }
}

/// Returns the uid of a pod.
pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// Whether the pod's condition `Ready` is true.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
