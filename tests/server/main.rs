//! The real server over TLS without an API server, or with one that only lists: malformed input, and verdicts that read no object
//! by its name.

// A test fails by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod api_server_outage;
mod bad_input;
mod client_ca;
mod connection_limit;
mod direct_verdicts;
mod metrics;
mod mutations;
mod tls;
mod traces;

use std::{net::SocketAddr, path::PathBuf};

use axum::{Json, Router, response::IntoResponse as _};
use http::{Method, Request, StatusCode, Uri, header};
use serde_json::{Value, json};
use tempfile::TempDir;
use test_support::{
    guard::process::GuardProcess,
    http_client::{Connection, RequestError, Response},
};

/// A guard and its files. The address of its API server may have no listener.
struct Server {
    guard: GuardProcess,
    files: TempDir,
}

/// An address without a listener.
const UNREACHABLE: &str = "127.0.0.1:1";

/// Starts an API server that lists the guarded namespace `prod` and no StatefulSet in it, and rejects all other calls except for its
/// version. Returns the address.
async fn listing_api_server() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let list =
        |items: Value| Json(json!({"metadata": {"resourceVersion": "1"}, "items": items})).into_response();
    let router = Router::new().fallback(async move |uri: Uri| {
        if uri.query().is_some_and(|query| query.contains("watch=true")) {
            // A watch without events.
            std::future::pending::<()>().await;
        }
        match uri.path() {
            "/api/v1/namespaces" => {
                let labels = json!({"etcd-guard.io/guard": "enabled"});
                list(json!([{"metadata": {"name": "prod", "labels": labels}}]))
            }
            path if path.ends_with("/statefulsets") => list(json!([])),
            "/version" => Json(json!({"major": "1", "minor": "34"})).into_response(),
            _ => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        }
    });
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

impl Server {
    fn start(apiserver: &str) -> Self {
        Self::with_files(apiserver, tempfile::tempdir().unwrap())
    }

    /// Starts a guard that has listed the namespaces, and waits until it is ready. Before the list, the guard approves no deletion.
    async fn start_with_lists() -> Self {
        let server = Self::start(&listing_api_server().await);
        server.guard.wait_until_ready().await;
        server
    }

    /// Starts a guard with files that the test has written.
    fn with_files(apiserver: &str, files: TempDir) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let kubeconfig: PathBuf = files.path().join("kubeconfig");
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{apiserver}")}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x"
        });
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        Self { guard: GuardProcess::launch(&kubeconfig, files.path()), files }
    }

    /// Returns the folder of the certificate.
    fn files(&self) -> &std::path::Path {
        self.files.path()
    }

    fn address(&self) -> SocketAddr {
        self.guard.https()
    }

    async fn send(&self, path: &str, content_type: Option<&str>, body: Vec<u8>) -> Response {
        self.try_send(path, content_type, body).await.unwrap()
    }

    async fn try_send(
        &self,
        path: &str,
        content_type: Option<&str>,
        body: Vec<u8>,
    ) -> Result<Response, RequestError> {
        let mut connection = Connection::tls(self.address(), &self.guard.ca_pem).await.unwrap();
        let mut request = Request::builder().method(Method::POST).uri(path).header(header::HOST, "localhost");
        if let Some(content_type) = content_type {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        connection.send(request.body(http_body_util::Full::from(body)).unwrap()).await
    }

    /// Sends a review, and returns the `response` of the answer.
    async fn review(&self, review: &Value) -> Value {
        self.review_within("10s", review).await
    }

    async fn review_within(&self, timeout: &str, review: &Value) -> Value {
        let path = format!("/validate?timeout={timeout}");
        let response = self.send(&path, Some("application/json"), review.to_string().into_bytes()).await;
        assert_eq!(response.status, StatusCode::OK, "{}", response.body);
        let answer: Value = serde_json::from_str(&response.body).unwrap();
        assert_eq!(answer["apiVersion"], review["apiVersion"]);
        assert_eq!(answer["kind"], "AdmissionReview");
        assert_eq!(answer["response"]["uid"], review["request"]["uid"]);
        answer["response"].clone()
    }
}

/// Returns a review of the deletion of this pod.
fn deletion_review(pod: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "5a1b-4711",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "name": pod["metadata"]["name"],
            "namespace": "prod",
            "operation": "DELETE",
            "userInfo": {"username": "kubernetes-admin", "groups": ["system:masters"]},
            "object": null,
            "oldObject": pod,
            "dryRun": false,
            "options": {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "gracePeriodSeconds": 30}
        }
    })
}

fn eviction_review(name: &str) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "5a1b-4712",
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "subResource": "eviction",
            "name": name,
            "namespace": "prod",
            "operation": "CREATE",
            "userInfo": {"username": "kubernetes-admin"},
            "object": {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}},
            "oldObject": null,
            "dryRun": false,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}
        }
    })
}

/// Returns a pod that runs etcd.
fn etcd_pod() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "etcd-0", "namespace": "prod", "uid": "u-0"},
        "spec": {"containers": [{"name": "etcd", "image": "etcd:3.6", "command": ["etcd"]}]},
        "status": {"phase": "Running", "podIP": "127.0.0.1"}
    })
}
