//! A fake API server for the tests of evaluations.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use serde_json::{Value, json};

use etcd_guard_core::{
    objects::pod::Pod,
    request::{Operation, Request},
    reservation::Reservation,
};
use etcd_guard_kubernetes::fake;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/etcd-guard/leases";
const ANNOTATION: &str = "etcd-guard.io/reservations";

/// Two guarded namespaces `a` and `z`. Each has a member `etcd-0`, which does not answer, on the node `worker`, and the pod `web-0` of
/// a StatefulSet that runs no etcd.
#[derive(Clone, Default)]
pub(crate) struct FakeServer {
    leases: Arc<Mutex<BTreeMap<String, Value>>>,
    /// Paths of the reads of Leases.
    reads: Arc<Mutex<Vec<String>>>,
    /// Whether the members are terminating.
    terminating: Arc<AtomicBool>,
    /// Further pods.
    pods: Arc<Mutex<Vec<Value>>>,
}

impl FakeServer {
    pub(crate) fn client(&self) -> kube::Client {
        let Self { leases, reads, terminating, pods } = self.clone();
        let member = move |namespace: &str| {
            let mut pod = member(namespace);
            if terminating.load(Ordering::Relaxed) {
                pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            pod
        };
        let list = |items: &[Value]| (200, json!({"metadata": {"resourceVersion": "1"}, "items": items}));
        fake::api_server_with(move |call, body| {
            if call.uri.query().is_some_and(|query| query.contains("watch=true")) {
                return (200, json!(null));
            }
            let mut leases = leases.lock().unwrap();
            match (call.method.as_str(), call.uri.path()) {
                ("GET", "/api/v1/namespaces") => {
                    list(&["a", "z"].map(|name| json!({"metadata": {"name": name}})))
                }
                ("GET", "/api/v1/pods") => {
                    let others = pods.lock().unwrap();
                    let on_node = others.iter().filter(|pod| pod["spec"]["nodeName"] == "worker").cloned();
                    list(&["a", "z"].map(&member).into_iter().chain(on_node).collect::<Vec<_>>())
                }
                ("GET", path) if path.ends_with("/pods/etcd-0") => {
                    (200, member(path.split('/').nth(4).unwrap()))
                }
                ("GET", path) if path.ends_with("/pods/web-0") => (200, web(path.split('/').nth(4).unwrap())),
                ("GET", path) if path.contains("/pods/") => (404, missing()),
                ("GET", path) if path.starts_with(LEASES) => {
                    reads.lock().unwrap().push(path.to_owned());
                    let name = path.trim_start_matches(LEASES).trim_start_matches('/');
                    leases.get(name).cloned().map_or((404, missing()), |lease| (200, lease))
                }
                ("GET", path) if path.ends_with("/pods") => {
                    let namespace = path.split('/').nth(4).unwrap();
                    let pods = pods.lock().unwrap();
                    let others = pods.iter().filter(|pod| pod["metadata"]["namespace"] == namespace);
                    list(
                        &[member(namespace), web(namespace)]
                            .iter()
                            .chain(others)
                            .cloned()
                            .collect::<Vec<_>>(),
                    )
                }
                ("GET", path) if path.ends_with("/statefulsets") => {
                    list(&[json!({"metadata": {"name": "web", "uid": "web"}})])
                }
                ("GET", path) if path.ends_with("/statefulsets/pair") => {
                    (200, json!({"metadata": {"name": "pair", "uid": "pair"}, "spec": {"replicas": 1}}))
                }
                ("GET", _) => list(&[]),
                (_, path) if path.starts_with(LEASES) => {
                    leases.insert(body["metadata"]["name"].as_str().unwrap().to_owned(), body.clone());
                    (200, body.clone())
                }
                (method, path) => panic!("{method} {path}"),
            }
        })
    }

    /// Begins the deletion of the members.
    pub(crate) fn terminate(&self) {
        self.terminating.store(true, Ordering::Relaxed);
    }

    /// Adds a pod.
    pub(crate) fn add_pod(&self, pod: Value) {
        self.pods.lock().unwrap().push(pod);
    }

    /// Stores the text of the reservations of a namespace.
    pub(crate) fn store(&self, namespace: &str, reservations: &str) {
        let name = format!("etcd-guard.ns.{namespace}");
        let annotations = json!({ANNOTATION: reservations});
        let metadata = json!({"name": name, "uid": name, "resourceVersion": "1", "annotations": annotations});
        self.leases.lock().unwrap().insert(name, json!({"metadata": metadata}));
    }

    /// Returns the reservations of a namespace.
    pub(crate) fn reservations(&self, namespace: &str) -> Vec<Reservation> {
        let lease = self.leases.lock().unwrap()[&format!("etcd-guard.ns.{namespace}")].clone();
        serde_json::from_str(lease["metadata"]["annotations"][ANNOTATION].as_str().unwrap()).unwrap()
    }

    /// Returns the paths of the reads of Leases.
    pub(crate) fn reads(&self) -> Vec<String> {
        self.reads.lock().unwrap().clone()
    }
}

fn missing() -> Value {
    let mut missing = fake::status_failure(404, "not found");
    missing["reason"] = json!("NotFound");
    missing
}

/// The pod `etcd-0` of this namespace.
pub(crate) fn member_pod(namespace: &str) -> Pod {
    serde_json::from_value(member(namespace)).unwrap()
}

fn member(namespace: &str) -> Value {
    json!({
        "metadata": {"name": "etcd-0", "namespace": namespace, "uid": namespace},
        "spec": {"nodeName": "worker", "containers": [{"name": "etcd", "image": "quay.io/coreos/etcd:v3.6.16"}]},
        "status": {"phase": "Running"},
    })
}

/// The pod `pair-0` of the StatefulSet `pair` in namespace `a`, which runs two members on the node `worker`. The container of the first
/// waits.
pub(crate) fn pair(annotations: &Value) -> Value {
    let etcd = |name: &str, port: u16| {
        let listen = format!("--listen-client-urls=http://0.0.0.0:{port}");
        json!({"name": name, "image": "quay.io/coreos/etcd:v3.6.16", "command": ["etcd", listen]})
    };
    let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "pair", "uid": "pair", "controller": true});
    json!({
        "metadata": {
            "name": "pair-0", "namespace": "a", "uid": "pair-0", "annotations": annotations, "ownerReferences": [owner],
        },
        "spec": {"nodeName": "worker", "containers": [etcd("main", 2379), etcd("events", 4002)]},
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
                {"name": "events", "state": {"running": {}}},
            ],
        },
    })
}

fn web(namespace: &str) -> Value {
    let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "web", "controller": true});
    json!({
        "metadata": {"name": "web-0", "namespace": namespace, "uid": "web-0", "ownerReferences": [owner]},
        "spec": {"containers": [{"name": "web", "image": "nginx"}]},
        "status": {"phase": "Running"},
    })
}

/// Returns a request for this object.
pub(crate) fn request(operation: Operation, namespace: &str, name: &str) -> Request {
    Request {
        operation,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        pod: None,
        uid: None,
        dry_run: false,
        grace_period_seconds: None,
        selector: BTreeMap::new(),
        owner: None,
        user: String::from("admin"),
    }
}
