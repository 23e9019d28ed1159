//! A double of the API server: objects of clusters that do not change, and Leases with optimistic concurrency.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::Ipv4Addr,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Collected, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use kube::{Client, client::Body};
use serde_json::{Value, json};

type ResponseBody = UnsyncBoxBody<Bytes, Infallible>;

/// The objects by path, and the Leases by name.
#[derive(Clone)]
pub(crate) struct ApiServer(Arc<Objects>);

struct Objects {
    by_path: BTreeMap<String, Value>,
    leases: Mutex<BTreeMap<String, Value>>,
}

// === impl ApiServer ===

impl ApiServer {
    /// Creates clusters with pods in a namespace of their own.
    pub(crate) fn new(
        clusters: usize,
        members: usize,
        port: u16,
        address: impl Fn(usize, usize) -> Ipv4Addr,
    ) -> Self {
        let mut by_path = BTreeMap::new();
        let mut namespaces = Vec::new();
        for cluster in 0..clusters {
            let namespace = namespace(cluster);
            namespaces.push(json!({
                "metadata": {"name": namespace, "labels": {"etcd-guard.io/guard": "enabled"}, "resourceVersion": "1"},
            }));
            let path = format!("/api/v1/namespaces/{namespace}");
            let pods: Vec<Value> =
                (0..members).map(|member| pod(&namespace, member, address(cluster, member), port)).collect();
            for pod in &pods {
                let name = pod["metadata"]["name"].as_str().expect("a name");
                by_path.insert(format!("{path}/pods/{name}"), pod.clone());
            }
            by_path.insert(format!("{path}/pods"), list(&pods));
            let claims = (0..members).map(|member| {
                json!({
                    "metadata": {"name": format!("data-etcd-{member}"), "namespace": namespace, "uid": format!("c-{namespace}-{member}"), "resourceVersion": "1"},
                    "status": {"phase": "Bound"},
                })
            });
            by_path.insert(format!("{path}/persistentvolumeclaims"), list(&claims.collect::<Vec<_>>()));
        }
        by_path.insert(String::from("/api/v1/namespaces"), list(&namespaces));
        by_path.insert(String::from("/version"), json!({"major": "1", "minor": "34"}));
        Self(Arc::new(Objects { by_path, leases: Mutex::default() }))
    }

    /// Returns a client.
    pub(crate) fn client(&self) -> Client {
        let objects = Arc::clone(&self.0);
        let service = tower::service_fn(move |request: Request<Body>| {
            let objects = Arc::clone(&objects);
            async move { Ok::<_, Infallible>(objects.respond(request).await) }
        });
        Client::new(service, "etcd-guard")
    }

    /// Returns the request to delete a pod.
    pub(crate) fn review(&self, cluster: usize, member: usize) -> Value {
        let (namespace, name) = (namespace(cluster), format!("etcd-{member}"));
        let pod = &self.0.by_path[&format!("/api/v1/namespaces/{namespace}/pods/{name}")];
        json!({
            "uid": "review", "resource": {"group": "", "version": "v1", "resource": "pods"}, "name": name,
            "namespace": namespace, "operation": "DELETE", "userInfo": {"username": "admin"}, "oldObject": pod,
            "options": {"kind": "DeleteOptions", "gracePeriodSeconds": 30},
        })
    }
}

// === impl Objects ===

impl Objects {
    async fn respond(&self, request: Request<Body>) -> Response<ResponseBody> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path();
        if parts.uri.query().is_some_and(|query| query.contains("watch=true")) {
            // Nothing changes.
            let events = futures::stream::pending::<Result<Frame<Bytes>, Infallible>>();
            return Response::new(StreamBody::new(events).boxed_unsync());
        }
        if let Some((_, name)) = path.split_once("/leases/") {
            let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
            return self.respond_for_lease(&parts.method, name, &body);
        }
        match self.by_path.get(path) {
            Some(object) if parts.method == Method::GET => response(200, object),
            // Writes of Events succeed, and lists of other resources are empty.
            _ if parts.method == Method::POST => response(201, &json!({})),
            _ if parts.method == Method::GET && is_list(path) => response(200, &list(&[])),
            _ => response(404, &failure(404, "NotFound")),
        }
    }

    fn respond_for_lease(&self, method: &Method, name: &str, body: &[u8]) -> Response<ResponseBody> {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        let stored = leases.get(name);
        match (method, stored) {
            (&Method::GET, Some(lease)) => response(200, lease),
            (&Method::PUT, _) => {
                let mut lease: Value = serde_json::from_slice(body).expect("a Lease");
                let version = stored.map(|stored| stored["metadata"]["resourceVersion"].clone());
                let given = &lease["metadata"]["resourceVersion"];
                if version.as_ref().is_some_and(|version| !given.is_null() && given != version) {
                    return response(409, &failure(409, "Conflict"));
                }
                let number = version.and_then(|version| version.as_str()?.parse::<u64>().ok()).unwrap_or(0);
                lease["metadata"]["resourceVersion"] = json!((number + 1).to_string());
                lease["metadata"]["uid"] = json!(format!("lease-{name}"));
                let written = response(200, &lease);
                leases.insert(name.to_owned(), lease);
                written
            }
            (&Method::DELETE, Some(_)) => {
                leases.remove(name);
                response(200, &json!({"kind": "Status", "status": "Success"}))
            }
            _ => response(404, &failure(404, "NotFound")),
        }
    }
}

fn namespace(cluster: usize) -> String {
    format!("scaling-{cluster}")
}

/// Whether the path names a resource, and not one object.
fn is_list(path: &str) -> bool {
    ["leases", "pods", "secrets", "statefulsets", "persistentvolumeclaims", "namespaces", "events"]
        .iter()
        .any(|resource| path.ends_with(resource))
}

fn list(items: &[Value]) -> Value {
    json!({"metadata": {"resourceVersion": "1"}, "items": items})
}

fn failure(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": reason, "reason": reason, "code": code})
}

fn response(status: u16, value: &Value) -> Response<ResponseBody> {
    let body = Full::from(value.to_string()).boxed_unsync();
    Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .body(body)
        .expect("a response")
}

fn pod(namespace: &str, member: usize, address: Ipv4Addr, port: u16) -> Value {
    let name = format!("etcd-{member}");
    json!({
        "metadata": {
            "name": name, "namespace": namespace, "uid": format!("p-{namespace}-{member}"), "resourceVersion": "1",
            "labels": {"app": "etcd"},
        },
        "spec": {
            "nodeName": format!("node-{member}"),
            "containers": [{
                "name": "etcd", "image": "etcd",
                "command": [
                    "etcd", format!("--name={name}"), "--data-dir=/data",
                    format!("--listen-client-urls=http://0.0.0.0:{port}"),
                ],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": format!("data-{name}")}}],
        },
        "status": {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "etcd", "ready": true, "state": {"running": {}}}],
        },
    })
}
