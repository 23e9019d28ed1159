//! A proxy between the guard and the API server that records the calls, and delays calls at breakpoints.

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use http::{Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use kube::{Client, client::Body};
use serde_json::json;
use tokio::{net::TcpListener, task::JoinHandle};

use crate::{
    breakpoint::{ActiveBreakpoint, Breakpoints},
    kubernetes::api_client,
};

/// A call of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The HTTP method.
    pub method: String,
    /// The path without the query.
    pub path: String,
    /// The query, empty if there is none.
    pub query: String,
    /// The user agent, empty if there is none.
    pub user_agent: String,
}

/// A running proxy. It ends when this is dropped.
pub struct ApiServerProxy {
    /// A kubeconfig for clients of the proxy.
    pub kubeconfig: PathBuf,
    shared: Shared,
    task: JoinHandle<()>,
}

#[derive(Clone)]
struct Shared {
    apiserver: Client,
    calls: Arc<Mutex<Vec<Call>>>,
    breakpoints: Breakpoints<Call>,
}

impl ApiServerProxy {
    /// Forwards every call with this identity, and writes a kubeconfig for clients of the proxy.
    pub async fn start(identity: &Path, kubeconfig: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let server = format!("http://{}", listener.local_addr().expect("an address"));
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "proxy", "cluster": {"server": server}}],
            "users": [{"name": "guard", "user": {}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "guard"}}],
            "current-context": "proxy",
        });
        std::fs::write(&kubeconfig, config.to_string()).expect("the proxy's kubeconfig is written");
        let apiserver = api_client::client(identity).await;
        let shared = Shared { apiserver, calls: Arc::default(), breakpoints: Breakpoints::default() };
        let task = tokio::spawn(serve(listener, shared.clone()));
        Self { kubeconfig, shared, task }
    }

    /// Returns the calls since the last time.
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut *self.shared.calls.lock().expect("the lock is not poisoned"))
    }

    /// Delays the calls that match. They are recorded on arrival.
    pub fn hold(&self, matches: impl Fn(&Call) -> bool + Send + 'static) -> ActiveBreakpoint {
        self.shared.breakpoints.hold(matches)
    }
}

impl Drop for ApiServerProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, shared: Shared) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let shared = shared.clone();
        let service = service_fn(move |request| pass_on(request, shared.clone()));
        // The task ends when the guard closes the connection.
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

async fn pass_on(request: Request<Incoming>, shared: Shared) -> Result<Response<Body>, Infallible> {
    let call = Call {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        query: request.uri().query().unwrap_or_default().to_owned(),
        user_agent: request
            .headers()
            .get(header::USER_AGENT)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned(),
    };
    shared.calls.lock().expect("the lock is not poisoned").push(call.clone());
    shared.breakpoints.pass(&call).await;
    Ok(forward(request, &shared.apiserver).await.unwrap_or_else(|cause| {
        let mut response = Response::new(Body::from(cause.into_bytes()));
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        response
    }))
}

async fn forward(request: Request<Incoming>, apiserver: &Client) -> Result<Response<Body>, String> {
    let (mut parts, body) = request.into_parts();
    parts.headers.remove(header::HOST);
    let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
    let request = Request::from_parts(parts, Body::from(body.to_vec()));
    apiserver.send(request).await.map_err(|error| error.to_string())
}

/// The resources that the guard watches, independent of reviews.
const WATCHED: [&str; 3] = ["/namespaces", "/statefulsets", "/persistentvolumeclaims"];

/// The prefix of the Leases that a background task of the guard writes.
const OWNERS: &str = "/leases/etcd-guard-owners.";

impl Call {
    /// Whether the call belongs to a watch (the watch itself, or the initial list) or to a background task. Their times
    /// do not depend on reviews.
    pub fn is_background(&self) -> bool {
        if self.user_agent.ends_with(" background") || self.path.contains(OWNERS) {
            return true;
        }
        let lists = WATCHED.iter().any(|resource| self.path.ends_with(resource))
            && !self.query.contains("fieldSelector");
        // A watch that is shared by many namespaces begins with the read of the present version.
        let reads_version = self.query.split('&').any(|parameter| parameter == "limit=1");
        self.method == "GET" && (lists || reads_version || self.query.contains("watch="))
    }

    /// Whether the call lists pods.
    pub fn lists_pods(&self) -> bool {
        self.method == "GET" && self.path.ends_with("/pods") && !self.is_background()
    }

    /// Whether the call reads one pod by its name.
    pub fn reads_pod(&self) -> bool {
        self.method == "GET" && self.path.contains("/pods/") && !self.is_background()
    }

    /// Whether the call reads a Lease.
    pub fn reads_lease(&self) -> bool {
        self.method == "GET" && self.path.contains("/leases/") && !self.is_background()
    }

    /// Whether the call creates, changes or deletes a Lease.
    pub fn writes_lease(&self) -> bool {
        self.method != "GET" && self.path.contains("/leases") && !self.is_background()
    }
}
