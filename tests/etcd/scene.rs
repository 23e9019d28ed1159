//! The whole program in front of real members. Its apiserver is made of a few answers here: what bears on Secrets, claims
//! and pods.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use http::header;
use k8s_openapi::{ByteString, api::core::v1::Pod};
use serde_json::{Value, json};

use crate::{
    etcd_cluster::Cluster,
    support::{
        guard_process::GuardProcess,
        http_client::Connection,
        review::{deletion_of, dry_run_of},
    },
};

/// Longer than the guard's last look may deny.
const AFTER_LAST_LOOK: Duration = Duration::from_millis(600);

/// What the apiserver answers to a GET of these paths. Writes are taken and shown again, as long as they do not fail;
/// everything else is empty.
#[derive(Clone, Default)]
pub(crate) struct Objects {
    known: Arc<Mutex<BTreeMap<String, (u16, Value)>>>,
    writes_fail: Arc<AtomicBool>,
}

/// A guard, and what it sees of Kubernetes.
pub(crate) struct Scene {
    guard: GuardProcess,
    pub(crate) objects: Objects,
    _files: tempfile::TempDir,
}

impl Objects {
    pub(crate) fn put(&self, path: &str, status: u16, object: Value) {
        self.known.lock().unwrap().insert(path.to_owned(), (status, object));
    }

    /// From now on writes fail, or do so no longer.
    pub(crate) fn fail_writes(&self, fail: bool) {
        self.writes_fail.store(fail, Ordering::SeqCst);
    }

    /// Serves them for as long as the test runs.
    async fn serve(&self) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(answer).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }
}

async fn answer(State(objects): State<Objects>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    if parts.uri.query().is_some_and(|query| query.contains("watch")) {
        std::future::pending::<()>().await;
    }
    let known = objects.known.lock().unwrap().get(&path).cloned();
    let (status, object) = if parts.method == http::Method::GET {
        // A list of nothing, for what nobody put here; an object that is not there.
        let is_object = ["/secrets/", "/persistentvolumeclaims/", "/leases/", "/pods/"]
            .iter()
            .any(|it| path.contains(it));
        let missing = json!({"kind": "Status", "status": "Failure", "message": "not found", "reason": "NotFound", "code": 404});
        let nothing = if is_object {
            (404, missing)
        } else {
            (200, json!({"metadata": {"resourceVersion": "1"}, "items": []}))
        };
        known.unwrap_or(nothing)
    } else if objects.writes_fail.load(Ordering::SeqCst) {
        (500, json!({"kind": "Status", "status": "Failure", "message": "no write today", "code": 500}))
    } else {
        let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
        let mut object: Value = serde_json::from_slice(&body).unwrap_or_default();
        object["metadata"]["resourceVersion"] = json!("1");
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let own = if path.ends_with(name) { path } else { format!("{path}/{name}") };
        objects.put(&own, 200, object.clone());
        (200, object)
    };
    let json = [(header::CONTENT_TYPE, "application/json")];
    (StatusCode::from_u16(status).unwrap(), json, object.to_string()).into_response()
}

impl Scene {
    pub(crate) async fn before(pods: &[Value]) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let objects = Objects::default();
        objects.put("/api/v1/namespaces/prod/pods", 200, json!({"items": pods}));
        for pod in pods {
            let name = pod["metadata"]["name"].as_str().unwrap();
            let claim = format!("/api/v1/namespaces/prod/persistentvolumeclaims/data-{name}");
            objects.put(&claim, 200, json!({"metadata": {"name": format!("data-{name}")}}));
        }
        let files = tempfile::tempdir().unwrap();
        let kubeconfig = files.path().join("kubeconfig");
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", objects.serve().await)}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x"
        });
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        Self { guard: GuardProcess::start(&kubeconfig, files.path()).await, objects, _files: files }
    }

    /// What the guard says to a dry run of this pod's deletion: its reason, and its message.
    pub(crate) async fn ask(&self, pod: &Value) -> (String, String) {
        self.judge(pod, true).await
    }

    /// The same to a deletion that is meant. Nothing comes of it: the pod stays.
    pub(crate) async fn delete(&self, pod: &Value) -> (String, String) {
        self.judge(pod, false).await
    }

    async fn judge(&self, pod: &Value, dry_run: bool) -> (String, String) {
        tokio::time::sleep(AFTER_LAST_LOOK).await;
        let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        let review = if dry_run { dry_run_of(&pod) } else { deletion_of(&pod) };
        let mut connection = Connection::tls(self.guard.https(), &self.guard.ca_pem).await.unwrap();
        let answer = connection.post("/validate?timeout=10s", review).await.unwrap();
        let answer: Value = serde_json::from_str(&answer.body).unwrap();
        let response = &answer["response"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&response["auditAnnotations"]["reason"]), text(&response["status"]["message"]))
    }
}

/// The pod of a member, as a StatefulSet with a claim per pod makes it.
pub(crate) fn pod(cluster: &Cluster, n: usize) -> Value {
    let (name, address) = (format!("etcd-{n}"), cluster.address(n));
    let url = cluster.endpoint(n).url;
    let mut command = vec![
        json!("etcd"),
        json!(format!("--name={name}")),
        json!(format!("--advertise-client-urls={url}")),
        json!("--data-dir=/data"),
    ];
    if url.starts_with("https") {
        command.extend([json!("--cert-file=/tls/server.crt"), json!("--trusted-ca-file=/tls/ca.crt")]);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "prod",
            "uid": format!("uid-{n}"),
            "annotations": {},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "etcd", "uid": "set", "controller": true}]
        },
        "spec": {
            "containers": [{
                "name": "etcd",
                "image": "etcd",
                "command": command,
                "volumeMounts": [{"name": "data", "mountPath": "/data"}]
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": format!("data-{name}")}}]
        },
        "status": {
            "phase": "Running",
            "podIP": address,
            "containerStatuses": [{"name": "etcd", "state": {"running": {}}}]
        }
    })
}

pub(crate) fn secret(pairs: &[(&str, &[u8])]) -> Value {
    let data: serde_json::Map<String, Value> =
        pairs.iter().map(|(key, value)| ((*key).to_owned(), json!(ByteString(value.to_vec())))).collect();
    json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "s"}, "data": data})
}

pub(crate) fn forbidden() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "reason": "Forbidden", "code": 403})
}
