//! The start of the guard on a full node while no replica of it answers.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use test_support::{
    guard::process::make_certificate,
    guarded_cluster::START_TIMEOUT,
    kubernetes::{
        control_plane::ControlPlane,
        pods::new_namespace,
        scheduler::{SCHEDULER, Scheduler},
        webhook::register_at,
    },
    project,
    wait::wait_until,
};

/// The class of the guard's pods.
const CRITICAL: &str = "system-cluster-critical";

/// The number of failed deletions after which the guard counts as blocked; each follows a longer pause.
const FAILED_DELETIONS: u32 = 3;

/// A full node with an older pod of another namespace and a newer pod of a guarded one, and the pod of the guard, which has
/// no room.
struct FullNode {
    guarded: Api<Pod>,
    own: Api<Pod>,
}

impl FullNode {
    async fn start(client: &Client, namespace: &str, node: &str, image: &str, class: Option<&str>) -> Self {
        create_node(client, node).await;
        let guarded: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let own: Api<Pod> = Api::namespaced(client.clone(), "default");
        let name = format!("web-{node}");
        create(&own, pod(&name, "app", json!({"nodeName": node}))).await;
        set_running(&own, &name, "2026-01-01T00:00:00Z").await;
        create(&guarded, pod(node, image, json!({"nodeName": node, "priorityClassName": class}))).await;
        set_running(&guarded, node, "2026-01-02T00:00:00Z").await;
        let spec = json!({
            "schedulerName": SCHEDULER,
            "nodeSelector": {"kubernetes.io/hostname": node},
            "priorityClassName": CRITICAL,
        });
        create(&own, pod(&format!("guard-{node}"), "etcd-guard", spec)).await;
        Self { guarded, own }
    }

    async fn is_guard_scheduled(&self, node: &str) -> bool {
        let pod = self.own.get(&format!("guard-{node}")).await.unwrap();
        pod.spec.unwrap().node_name.is_some()
    }

    async fn guarded_pod_runs(&self, node: &str) -> bool {
        let pod = self.guarded.get_opt(node).await.unwrap();
        pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none())
    }
}

/// A pod that uses half of a node.
fn pod(name: &str, image: &str, spec: Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": name},
        "spec": {
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "app", "image": image, "resources": {"requests": {"cpu": "1"}}}],
        },
    });
    let Value::Object(spec) = spec else { panic!("a map: {spec}") };
    pod["spec"].as_object_mut().unwrap().extend(spec);
    pod
}

async fn create(pods: &Api<Pod>, pod: Value) {
    let pod: Pod = serde_json::from_value(pod).unwrap();
    // The service account of a namespace exists a moment later.
    wait_until("the pod is accepted", START_TIMEOUT, async || {
        pods.create(&PostParams::default(), &pod).await.is_ok()
    })
    .await;
}

/// Of pods with the same priority, the scheduler preempts the newest one.
async fn set_running(pods: &Api<Pod>, name: &str, since: &str) {
    let status = json!({"status": {"phase": "Running", "startTime": since}});
    pods.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

async fn create_node(client: &Client, name: &str) {
    let nodes: Api<Node> = Api::all(client.clone());
    let labels = json!({"kubernetes.io/hostname": name});
    let node: Node = serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let amounts = json!({"cpu": "2", "memory": "1Gi", "pods": "10"});
    let status = json!({"status": {"allocatable": amounts, "capacity": amounts}});
    nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    let ready = json!({"spec": {"taints": null}});
    nodes.patch(name, &PatchParams::default(), &Patch::Merge(ready)).await.unwrap();
}

/// Closes every connection, and counts them: the API server cannot call the guard.
async fn unavailable_guard() -> (SocketAddr, Arc<AtomicU32>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, calls) = (listener.local_addr().unwrap(), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&calls);
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            drop(connection);
        }
    });
    (address, calls)
}

/// The priority class of the shipped example.
fn shipped_class() -> Option<String> {
    let text = std::fs::read_to_string(project::path("etcd-manifests/plain.yaml")).unwrap();
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let set = objects.iter().find(|object| object["kind"] == "StatefulSet").unwrap();
    set["spec"]["template"]["spec"]["priorityClassName"].as_str().map(str::to_owned)
}

#[tokio::test]
async fn guard_starts_on_full_node_beside_critical_members() {
    let control_plane = ControlPlane::start(&[]);
    let client = control_plane.client().await;
    let _scheduler = Scheduler::start(&control_plane);
    let namespace = new_namespace(&client, true).await;
    let (address, calls) = unavailable_guard().await;
    let ca = make_certificate(&control_plane.dir);
    register_at(&client, &namespace, address, &ca, |_| {}).await;

    let blocked = FullNode::start(&client, &namespace, "lower", "etcd", None).await;
    wait_until("the scheduler tries to delete the member", START_TIMEOUT, async || {
        calls.load(Ordering::Relaxed) >= FAILED_DELETIONS
    })
    .await;
    assert!(blocked.guarded_pod_runs("lower").await && !blocked.is_guard_scheduled("lower").await);

    let class = shipped_class();
    let full = FullNode::start(&client, &namespace, "critical", "etcd", class.as_deref()).await;
    wait_until("the guard is scheduled", START_TIMEOUT, async || full.is_guard_scheduled("critical").await)
        .await;
    assert!(full.guarded_pod_runs("critical").await);

    // Of a pod that runs no etcd, the priority does not matter.
    let plain = FullNode::start(&client, &namespace, "plain", "nginx", None).await;
    wait_until("the guard is scheduled", START_TIMEOUT, async || plain.is_guard_scheduled("plain").await)
        .await;
    assert!(!plain.guarded_pod_runs("plain").await);
    assert!(blocked.guarded_pod_runs("lower").await && !blocked.is_guard_scheduled("lower").await);
}
