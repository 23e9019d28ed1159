//! The whole program in front of clusters with TLS and users. Its apiserver is made of a few answers here: what bears on
//! Secrets, claims and pods.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
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
    etcd_cluster::{Cluster, Layout, PASSWORD},
    support::{guard_process::GuardProcess, http_client::Connection, review::dry_run_of},
};

/// Longer than the guard's last look may deny.
const AFTER_LAST_LOOK: Duration = Duration::from_millis(600);

/// What the apiserver answers to a GET of these paths. Writes are taken and shown again; everything else is empty.
#[derive(Clone, Default)]
struct Objects(Arc<Mutex<BTreeMap<String, (u16, Value)>>>);

/// A guard, and what it sees of Kubernetes.
struct Scene {
    guard: GuardProcess,
    objects: Objects,
    _files: tempfile::TempDir,
}

impl Objects {
    fn put(&self, path: &str, status: u16, object: Value) {
        self.0.lock().unwrap().insert(path.to_owned(), (status, object));
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
    let known = objects.0.lock().unwrap().get(&path).cloned();
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
    async fn before(pods: &[Value]) -> Self {
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
    async fn ask(&self, pod: &Value) -> (String, String) {
        tokio::time::sleep(AFTER_LAST_LOOK).await;
        let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        let mut connection = Connection::tls(self.guard.https(), &self.guard.ca_pem).await.unwrap();
        let answer = connection.post("/validate?timeout=10s", dry_run_of(&pod)).await.unwrap();
        let answer: Value = serde_json::from_str(&answer.body).unwrap();
        let response = &answer["response"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&response["auditAnnotations"]["reason"]), text(&response["status"]["message"]))
    }
}

/// The pod of a member, as a StatefulSet with a claim per pod makes it.
fn pod(cluster: &Cluster, n: usize) -> Value {
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

fn secret(pairs: &[(&str, &[u8])]) -> Value {
    let data: serde_json::Map<String, Value> =
        pairs.iter().map(|(key, value)| ((*key).to_owned(), json!(ByteString(value.to_vec())))).collect();
    json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "s"}, "data": data})
}

fn forbidden() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "reason": "Forbidden", "code": 403})
}

#[tokio::test]
async fn certificates_come_from_a_secret_that_is_found_by_name() {
    let cluster = Cluster::start(Layout { version: "3.6", members: 3, spare: 0, tls: true }).await;
    let pods: Vec<Value> = (0..3).map(|n| pod(&cluster, n)).collect();
    let (leader, follower) = (&pods[cluster.leader().await], &pods[cluster.followers().await[0]]);
    let scene = Scene::before(&pods).await;
    let path = "/api/v1/namespaces/prod/secrets/etcd-client-tls";

    scene.objects.put(path, 403, forbidden());
    let (reason, message) = scene.ask(follower).await;
    assert_eq!(reason, "CredentialsRejected", "{message}");
    let words =
        "the guard may not read Secret prod/etcd-client-tls: apply Role etcd-guard-secrets in namespace prod";
    assert!(message.contains(words), "{message}");

    // The Role was applied: the next try reads anew.
    let (ca, certificate, key) = cluster.client_files();
    scene.objects.put(path, 200, secret(&[("ca.crt", ca), ("tls.crt", certificate), ("tls.key", key)]));
    assert_eq!(scene.ask(leader).await.0, "LeaderProtected");
    assert_eq!(scene.ask(follower).await.0, "SafeToDelete");

    // Somebody deletes the follower's claim: its pod is all that keeps it.
    let claim = format!("data-{}", follower["metadata"]["name"].as_str().unwrap());
    let deleted = json!({"metadata": {"name": claim, "deletionTimestamp": "2026-01-01T00:00:00Z"}});
    scene.objects.put(&format!("/api/v1/namespaces/prod/persistentvolumeclaims/{claim}"), 200, deleted);
    let (reason, message) = scene.ask(follower).await;
    assert_eq!(reason, "PermanentLoss", "{message}");
    assert!(message.contains("goes with it"), "{message}");
}

/// The member that is missing among the pods runs in another namespace. Edge cases 13 and 16.
#[tokio::test]
async fn a_password_comes_from_an_annotated_secret_and_reaches_members_without_a_pod() {
    let mut cluster = Cluster::of_three("3.6").await;
    let (leader, followers) = (cluster.leader().await, cluster.followers().await);
    cluster.switch_auth_on().await;
    let mut pods: Vec<Value> = [leader, followers[0]].map(|n| pod(&cluster, n)).into();
    for pod in &mut pods {
        pod["metadata"]["annotations"] = json!({"etcd-guard.io/auth-secret": "etcd-guard-user"});
    }
    let scene = Scene::before(&pods).await;
    let path = "/api/v1/namespaces/prod/secrets/etcd-guard-user";

    let (reason, message) = scene.ask(&pods[1]).await;
    assert_eq!(reason, "CredentialsRejected", "{message}");
    assert!(message.contains("Secret prod/etcd-guard-user does not exist"), "{message}");

    scene.objects.put(path, 200, secret(&[("username", b"root"), ("password", b"wrong horse")]));
    let (reason, message) = scene.ask(&pods[1]).await;
    assert_eq!(reason, "CredentialsRejected", "{message}");
    assert!(message.contains("invalid user ID or password") && !message.contains("wrong horse"), "{message}");

    scene.objects.put(path, 200, secret(&[("username", b"root"), ("password", PASSWORD.as_bytes())]));
    assert_eq!(scene.ask(&pods[1]).await.0, "SafeToDelete");
    assert_eq!(scene.ask(&pods[0]).await.0, "LeaderProtected");
    cluster.kill(followers[1]);
    assert_eq!(scene.ask(&pods[1]).await.0, "QuorumAtRisk");
}
