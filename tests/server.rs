//! The real server over TLS, without an apiserver behind it: bad input, and what can be told without one.

// A test says by a panic what is not as it should be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "server/answers.rs"]
mod answers;
#[path = "server/bad_input.rs"]
mod bad_input;
#[path = "server/client_ca.rs"]
mod client_ca;
#[path = "server/metrics.rs"]
mod metrics;
#[path = "server/mutations.rs"]
mod mutations;
#[path = "server/tls.rs"]
mod tls;
#[path = "server/traces.rs"]
mod traces;
#[path = "server/without_apiserver.rs"]
mod without_apiserver;

#[allow(dead_code, unreachable_pub, reason = "what the control-plane tests use as well")]
#[path = "support"]
mod support {
    pub mod child;
    pub mod guard_process;
    pub mod http_client;
    pub mod trace_receiver;
    pub mod wait;
}

use std::{net::SocketAddr, path::PathBuf};

use http::{Method, Request, StatusCode, header};
use serde_json::{Value, json};
use support::{
    guard_process::GuardProcess,
    http_client::{Connection, Response},
};
use tempfile::TempDir;

/// A guard whose apiserver listens at this address, or does not.
struct Guarded {
    guard: GuardProcess,
    files: TempDir,
}

/// An address where nobody listens.
const NOBODY: &str = "127.0.0.1:1";

impl Guarded {
    fn by(apiserver: &str) -> Self {
        Self::with_files(apiserver, tempfile::tempdir().unwrap())
    }

    /// With the files that a test has put there before.
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

    /// Where its certificate is.
    fn files(&self) -> &std::path::Path {
        self.files.path()
    }

    fn address(&self) -> SocketAddr {
        self.guard.https()
    }

    async fn send(&self, path: &str, content_type: Option<&str>, body: Vec<u8>) -> Response {
        let mut connection = Connection::tls(self.address(), &self.guard.ca_pem).await.unwrap();
        let mut request = Request::builder().method(Method::POST).uri(path).header(header::HOST, "localhost");
        if let Some(content_type) = content_type {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        connection.send(request.body(http_body_util::Full::from(body)).unwrap()).await.unwrap()
    }

    /// Sends a review, and returns the response in the answer.
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

/// A review of the deletion of this pod.
fn deletion_of(pod: &Value) -> Value {
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

fn eviction_of(name: &str) -> Value {
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

/// A pod that runs etcd.
fn etcd_pod() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "etcd-0", "namespace": "prod", "uid": "u-0"},
        "spec": {"containers": [{"name": "etcd", "image": "etcd:3.6", "command": ["etcd"]}]},
        "status": {"phase": "Running", "podIP": "127.0.0.1"}
    })
}
