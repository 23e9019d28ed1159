//! Client of the guard's admin port, for commands that people run.
//!
//! It connects by a port-forward through the API server to a ready replica, with the kubeconfig and the rights of the
//! user; or directly to an address, if a port is forwarded already or the guard runs on the same machine.

pub(crate) mod replica;
pub(crate) mod webhook_coverage;

use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{Request, Response, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};

use self::replica::{Connection, Replica, serves};
use crate::api_server::{ApiServer, CALL_TIMEOUT};
use etcd_guard_api::Survey;
use etcd_guard_cli::terminal::waiting::with_notice;
use etcd_guard_core::escape::{MAX_TEXT_CHARS, escape_texts, to_bounded_line};

/// Timeout of a call for the status of all namespaces, which the guard answers within 60 s.
const ALL_NAMESPACES_TIMEOUT: Duration = Duration::from_secs(70);

/// Location of the guard.
#[derive(Clone)]
pub(crate) enum GuardEndpoint {
    /// This address.
    Url(Uri),
    /// A ready pod of this namespace with these labels, by a port-forward.
    PortForward { namespace: String, selector: String },
}

/// Clients of the API server and of the guard, with the identity of the user.
#[derive(Clone)]
pub(crate) struct GuardClient {
    pub(crate) api_server: ApiServer,
    pub(crate) endpoint: GuardEndpoint,
}

// === impl GuardClient ===

impl GuardClient {
    /// Returns the status of the guarded clusters of a namespace, or of all namespaces.
    pub(crate) async fn status(&self, namespace: Option<&str>) -> anyhow::Result<Survey> {
        let (path, limit) = match namespace {
            Some(namespace) => (format!("/status?namespace={namespace}"), CALL_TIMEOUT),
            None => (String::from("/status"), ALL_NAMESPACES_TIMEOUT),
        };
        self.send(Request::get(path).body(Full::default())?, limit).await
    }

    /// Sends a POST request with a JSON body to the guard and returns the JSON response.
    pub(crate) async fn post<T: DeserializeOwned>(&self, path: &str, body: Vec<u8>) -> anyhow::Result<T> {
        let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
        self.send(request.body(Full::from(body))?, CALL_TIMEOUT).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        request: Request<Full<Bytes>>,
        limit: Duration,
    ) -> anyhow::Result<T> {
        let exchange = async {
            let replicas = self.replicas().await?;
            let replica = replicas.first().context("no replica of the guard is known")?;
            self.exchange_with(replica, request).await
        };
        let response = within_limit(limit, exchange).await?;
        read_answer(response.body())
    }

    /// Sends a GET request for this path to a replica and returns the successful response.
    pub(crate) async fn get_from(&self, replica: &Replica, path: &str) -> anyhow::Result<Response<Bytes>> {
        let request = Request::get(path).body(Full::default())?;
        within_limit(CALL_TIMEOUT, self.exchange_with(replica, request)).await
    }

    /// Opens a connection to the webhook port of the replica in a pod.
    pub(crate) async fn connect_to_webhook(&self, replica: &Replica) -> anyhow::Result<Connection> {
        match replica {
            Replica::Url(address) => bail!("the webhook port of the guard at {address} is unknown"),
            Replica::Pod { namespace, name, webhook, .. } => {
                within_limit(CALL_TIMEOUT, self.forward(namespace, name, *webhook)).await
            }
        }
    }

    async fn exchange_with(
        &self,
        replica: &Replica,
        request: Request<Full<Bytes>>,
    ) -> anyhow::Result<Response<Bytes>> {
        let subject = format!("the response of {}", replica.describe());
        with_notice(&subject, self.exchange_without_notice(replica, request)).await
    }

    async fn exchange_without_notice(
        &self,
        replica: &Replica,
        request: Request<Full<Bytes>>,
    ) -> anyhow::Result<Response<Bytes>> {
        match replica {
            Replica::Url(address) => {
                let host = address.host().unwrap_or_default();
                let stream = TcpStream::connect((host, address.port_u16().unwrap_or(80))).await;
                let stream =
                    stream.with_context(|| format!("failed to connect to the guard at {address}"))?;
                exchange(stream, request).await
            }
            Replica::Pod { namespace, name, admin, .. } => {
                let connection = self.forward(namespace, name, *admin).await?;
                let Connection { stream, _forward } = connection;
                exchange(stream, request)
                    .await
                    .with_context(|| format!("request to pod {namespace}/{name} failed"))
            }
        }
    }

    /// Returns the replica at the configured address, or all ready replicas, at least one.
    pub(crate) async fn replicas(&self) -> anyhow::Result<Vec<Replica>> {
        let (namespace, selector) = match &self.endpoint {
            GuardEndpoint::Url(address) => return Ok(vec![Replica::Url(address.clone())]),
            GuardEndpoint::PortForward { namespace, selector } => (namespace, selector),
        };
        let subject = format!("{}: list of the pods of the guard", self.api_server.describe());
        let listed = with_notice(&subject, self.api_server.pods_in(namespace, selector)).await?;
        let ready: Vec<Replica> = listed.iter().filter(|pod| serves(pod)).map(Replica::from_pod).collect();
        if ready.is_empty() {
            bail!(
                "no ready guard pod in namespace {namespace} ({} pods match {selector}); inspect them with \
                 `kubectl -n {namespace} get pods`, or pass --guard-namespace or --guard",
                listed.len()
            )
        }
        Ok(ready)
    }

    async fn forward(&self, namespace: &str, name: &str, port: u16) -> anyhow::Result<Connection> {
        let pods = self.api_server.namespaced::<Pod>(namespace);
        let operation = format!(
            "port-forward to pod {namespace}/{name} failed; it requires the permissions to get and \
             create pods/portforward in that namespace, for instance by the Role etcd-guard-users"
        );
        let mut forward = self.api_server.call(operation, pods.portforward(name, &[port])).await?;
        let stream = forward.take_stream(port).context("the port-forward returned no stream")?;
        Ok(Connection { stream: Box::new(stream), _forward: Some(forward) })
    }
}

/// Limits the time of a call to the guard.
async fn within_limit<T>(
    limit: Duration,
    call: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    timeout(limit, call)
        .await
        .with_context(|| format!("the guard did not respond within {}", crate::durations::text(limit)))?
}

/// Sends one HTTP request on a new connection and returns a successful response.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    mut request: Request<Full<Bytes>>,
) -> anyhow::Result<Response<Bytes>> {
    let (mut requests, connection) = handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    request.headers_mut().insert(header::HOST, http::HeaderValue::from_static("localhost"));
    let response = requests.send_request(request).await?;
    let (head, body) = response.into_parts();
    let status = head.status;
    let body = body.collect().await?.to_bytes();
    connection.abort();
    if !status.is_success() {
        let cause = to_bounded_line(String::from_utf8_lossy(&body).trim_end(), MAX_TEXT_CHARS);
        bail!("the guard responded with {status}: {cause}");
    }
    Ok(Response::from_parts(head, body))
}

/// Reads a response of the guard, with every text escaped and cut for the terminal: the process behind a port-forward may
/// be an older guard, or none.
pub(crate) fn read_answer<T: DeserializeOwned>(body: &[u8]) -> anyhow::Result<T> {
    let read = |body| -> serde_json::Result<T> {
        let mut value = serde_json::from_slice(body)?;
        escape_texts(&mut value, &|text| to_bounded_line(text, MAX_TEXT_CHARS));
        serde_json::from_value(value)
    };
    read(body).context(
        "the response of the guard is not readable; use the etcd-guard release that runs in the cluster",
    )
}
