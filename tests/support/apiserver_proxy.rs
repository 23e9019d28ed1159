//! Between the guard and the apiserver: counts the calls, and holds one up where a test wants it.

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

use super::{
    api_client,
    gate::{Gates, Held},
};

/// A call of the apiserver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub method: String,
    pub path: String,
    pub query: String,
}

/// A running proxy; it ends with this.
pub struct ApiserverProxy {
    pub kubeconfig: PathBuf,
    shared: Shared,
    task: JoinHandle<()>,
}

#[derive(Clone)]
struct Shared {
    apiserver: Client,
    calls: Arc<Mutex<Vec<Call>>>,
    gates: Gates<Call>,
}

impl ApiserverProxy {
    /// Passes everything on with this identity, and writes a kubeconfig that leads here.
    pub async fn start(identity: &Path, kubeconfig: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let server = format!("http://{}", listener.local_addr().expect("an address"));
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "proxy", "cluster": {"server": server}}],
            "users": [{"name": "nobody", "user": {}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "nobody"}}],
            "current-context": "proxy",
        });
        std::fs::write(&kubeconfig, config.to_string()).expect("the proxy's kubeconfig is written");
        let apiserver = api_client::client(identity).await;
        let shared = Shared { apiserver, calls: Arc::default(), gates: Gates::default() };
        let task = tokio::spawn(serve(listener, shared.clone()));
        Self { kubeconfig, shared, task }
    }

    /// The calls since the last time that somebody asked.
    pub fn news(&self) -> Vec<Call> {
        std::mem::take(&mut *self.shared.calls.lock().expect("nobody panics here"))
    }

    /// Holds up the calls that this says yes to. They are counted when they come.
    pub fn hold(&self, stops: impl Fn(&Call) -> bool + Send + 'static) -> Held {
        self.shared.gates.hold(stops)
    }
}

impl Drop for ApiserverProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, shared: Shared) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let shared = shared.clone();
        let service = service_fn(move |request| pass_on(request, shared.clone()));
        // It ends when the guard does.
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

async fn pass_on(request: Request<Incoming>, shared: Shared) -> Result<Response<Body>, Infallible> {
    let call = Call {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        query: request.uri().query().unwrap_or_default().to_owned(),
    };
    shared.calls.lock().expect("nobody panics here").push(call.clone());
    shared.gates.pass(&call).await;
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

/// What the guard watches, however often anybody asks it.
const WATCHED: [&str; 3] = ["/namespaces", "/statefulsets", "/persistentvolumeclaims"];

impl Call {
    /// Whether a watch called, or listed what it goes on from: that happens when it will, at no one's request.
    pub fn is_of_a_watch(&self) -> bool {
        let lists = WATCHED.iter().any(|it| self.path.ends_with(it)) && !self.query.contains("fieldSelector");
        self.method == "GET" && (lists || self.query.contains("watch="))
    }

    pub fn lists_pods(&self) -> bool {
        self.method == "GET" && self.path.ends_with("/pods") && !self.query.contains("watch")
    }

    /// Whether it asks for one pod by its name.
    pub fn reads_pod(&self) -> bool {
        self.method == "GET" && self.path.contains("/pods/")
    }

    pub fn reads_lease(&self) -> bool {
        self.method == "GET" && self.path.contains("/leases/")
    }

    pub fn writes_lease(&self) -> bool {
        self.method != "GET" && self.path.contains("/leases")
    }
}
