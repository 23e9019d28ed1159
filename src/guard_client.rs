//! Client of the guard's admin port, for commands that people run.
//!
//! It connects by a port-forward through the API server to a ready replica, with the kubeconfig and the rights of the
//! user; or directly to an address, if a port is forwarded already or the guard runs on the same machine.

pub(crate) mod webhook_coverage;

use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{Request, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::ListParams};
use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};

/// Timeout of one call, including the port-forward. The guard itself answers within 15 s.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(25);

/// The admin port of a guard pod that has no container port named `admin`.
const ADMIN_PORT: u16 = 8080;

/// Location of the guard.
pub(crate) enum GuardEndpoint {
    /// This address.
    Url(Uri),
    /// A ready pod of this namespace with these labels, by a port-forward.
    PortForward { namespace: String, selector: String },
}

/// Clients of the API server and of the guard, with the identity of the user.
pub(crate) struct GuardClient {
    pub(crate) client: Client,
    /// The namespace that the user selected, or the default of the kubeconfig context.
    pub(crate) namespace: String,
    /// URL of the API server.
    pub(crate) server: Uri,
    pub(crate) endpoint: GuardEndpoint,
}

// === impl GuardClient ===

impl GuardClient {
    /// Sends a GET request for this path to the guard and returns the JSON response.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.send(Request::get(path).body(Full::default())?).await
    }

    /// Sends a POST request with a JSON body to the guard and returns the JSON response.
    pub(crate) async fn post<T: DeserializeOwned>(&self, path: &str, body: Vec<u8>) -> anyhow::Result<T> {
        let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
        self.send(request.body(Full::from(body))?).await
    }

    async fn send<T: DeserializeOwned>(&self, request: Request<Full<Bytes>>) -> anyhow::Result<T> {
        let response = async {
            match &self.endpoint {
                GuardEndpoint::Url(address) => {
                    let host = address.host().unwrap_or_default();
                    let stream = TcpStream::connect((host, address.port_u16().unwrap_or(80))).await;
                    let stream =
                        stream.with_context(|| format!("failed to connect to the guard at {address}"))?;
                    exchange(stream, request).await
                }
                GuardEndpoint::PortForward { namespace, selector } => {
                    self.send_by_port_forward(namespace, selector, request).await
                }
            }
        };
        let body = timeout(CALL_TIMEOUT, response).await.with_context(|| {
            format!("the guard did not respond within {}", humantime::format_duration(CALL_TIMEOUT))
        })??;
        serde_json::from_slice(&body).context(
            "the response of the guard is not readable; use the etcd-guard release that runs in the cluster",
        )
    }

    async fn send_by_port_forward(
        &self,
        guard_namespace: &str,
        guard_selector: &str,
        request: Request<Full<Bytes>>,
    ) -> anyhow::Result<Bytes> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), guard_namespace);
        let listed = pods.list(&ListParams::default().labels(guard_selector)).await;
        let listed = listed.with_context(|| {
            format!("failed to list the pods of the guard in namespace {guard_namespace}")
        })?;
        let Some(pod) = listed.items.iter().find(|pod| is_ready(pod)) else {
            bail!(
                "no ready guard pod in namespace {guard_namespace} ({} pods match {guard_selector}); inspect them with \
                 `kubectl -n {guard_namespace} get pods`, or pass --guard-namespace or --guard",
                listed.items.len()
            )
        };
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let port = admin_port(pod);
        let forward = pods.portforward(name, &[port]).await;
        let mut forward = forward.with_context(|| {
            format!(
                "port-forward to pod {guard_namespace}/{name} failed; it requires the permission to create \
                 pods/portforward in that namespace"
            )
        })?;
        let stream = forward.take_stream(port).context("the port-forward returned no stream")?;
        exchange(stream, request)
            .await
            .with_context(|| format!("request to pod {guard_namespace}/{name} failed"))
    }
}

/// Sends one HTTP request on a new connection and returns the body of a successful response.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    mut request: Request<Full<Bytes>>,
) -> anyhow::Result<Bytes> {
    let (mut requests, connection) = handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    request.headers_mut().insert(header::HOST, http::HeaderValue::from_static("localhost"));
    let response = requests.send_request(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    connection.abort();
    if !status.is_success() {
        bail!("the guard responded with {status}: {}", String::from_utf8_lossy(&body).trim_end());
    }
    Ok(body)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    pod.metadata.deletion_timestamp.is_none()
        && conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn admin_port(pod: &Pod) -> u16 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some("admin"));
    port.and_then(|port| port.container_port.try_into().ok()).unwrap_or(ADMIN_PORT)
}
