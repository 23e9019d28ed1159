//! How a person's command reaches the guard: by a port-forward through the apiserver to a ready replica, with that person's own
//! kubeconfig and rights; or straight to an address, where a port is forwarded already or the guard runs on this machine.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use http::{Request, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};

/// Longest for a call, port-forward and all: the guard itself answers within 15 s.
const CALL_LIMIT: Duration = Duration::from_secs(25);

/// Where the guard listens in its pod, if the pod names no port `admin`.
const ADMIN_PORT: u16 = 8080;

/// How to reach the apiserver and, through it, the guard
#[derive(Clone, Debug, Args)]
pub(super) struct Reach {
    /// The kubeconfig; by default $KUBECONFIG, then ~/.kube/config
    #[arg(long, global = true, env = "ETCD_GUARD_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context; by default the current one
    #[arg(long, global = true)]
    context: Option<String>,
    /// The namespace; by default that of the context
    #[arg(short, long)]
    namespace: Option<String>,
    /// Ask the guard at this address, `http://127.0.0.1:8080` say, instead of by a port-forward
    #[arg(long, env = "ETCD_GUARD_URL", value_parser = parse_address)]
    guard: Option<Uri>,
    /// The namespace that the guard runs in
    #[arg(long, default_value = "etcd-guard", env = "ETCD_GUARD_NAMESPACE")]
    guard_namespace: String,
    /// Labels of the guard's pods
    #[arg(long, default_value = "app.kubernetes.io/name=etcd-guard")]
    guard_selector: String,
}

/// For whom an answer is printed
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// People
    Text,
    /// Programs
    Json,
}

/// The apiserver, as the user sees it, and a way to the guard.
pub(super) struct Reached {
    pub(super) client: Client,
    pub(super) namespace: String,
    /// Where the apiserver is.
    pub(super) server: Uri,
    flags: Reach,
}

fn parse_address(text: &str) -> Result<Uri, String> {
    let uri: Uri = text.parse().map_err(|error| format!("{error}"))?;
    let is_plain = uri.scheme_str() == Some("http") && uri.host().is_some();
    is_plain.then_some(uri).ok_or_else(|| String::from("http://HOST:PORT is expected"))
}

// === impl Reach ===

impl Reach {
    /// kubectl, as it reaches the same cluster.
    pub(super) fn kubectl(&self) -> String {
        let kubeconfig = self.kubeconfig.as_ref().map(|path| format!(" --kubeconfig '{}'", path.display()));
        let context = self.context.as_ref().map(|context| format!(" --context '{context}'"));
        ["kubectl", kubeconfig.as_deref().unwrap_or(""), context.as_deref().unwrap_or("")].concat()
    }

    pub(super) async fn connect(self) -> anyhow::Result<Reached> {
        self.connect_within(CALL_LIMIT).await
    }

    /// With calls of the apiserver that may take this long.
    pub(super) async fn connect_within(self, limit: Duration) -> anyhow::Result<Reached> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let kubeconfig = match &self.kubeconfig {
            Some(path) => {
                Kubeconfig::read_from(path).with_context(|| format!("--kubeconfig {}", path.display()))?
            }
            None => Kubeconfig::read().context("no kubeconfig: give --kubeconfig or set KUBECONFIG")?,
        };
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?;
        config.read_timeout = Some(limit);
        // A person who waits wants the cause, and not fifteen more attempts.
        config.default_retry = false;
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let server = config.cluster_url.clone();
        let client = Client::try_from(config).context("the client for the apiserver")?;
        Ok(Reached { client, namespace, server, flags: self })
    }

    /// The namespace that the guard runs in.
    pub(super) fn guard_namespace(&self) -> &str {
        &self.guard_namespace
    }

    /// The namespace that the user named, if they did.
    pub(super) fn own_namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }
}

// === impl Reached ===

impl Reached {
    /// What the guard answers to a GET of this path.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.ask(Request::get(path).body(Full::default())?).await
    }

    /// What the guard answers to JSON at this path.
    pub(super) async fn post<T: DeserializeOwned>(&self, path: &str, body: Vec<u8>) -> anyhow::Result<T> {
        let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
        self.ask(request.body(Full::from(body))?).await
    }

    async fn ask<T: DeserializeOwned>(&self, request: Request<Full<Bytes>>) -> anyhow::Result<T> {
        let answer = async {
            match &self.flags.guard {
                Some(address) => {
                    let host = address.host().unwrap_or_default();
                    let stream = TcpStream::connect((host, address.port_u16().unwrap_or(80))).await;
                    let stream = stream.with_context(|| format!("connecting to the guard at {address}"))?;
                    exchange(stream, request).await
                }
                None => self.ask_by_port_forward(request).await,
            }
        };
        let body = timeout(CALL_LIMIT, answer)
            .await
            .with_context(|| format!("no answer within {}", humantime::format_duration(CALL_LIMIT)))??;
        serde_json::from_slice(&body)
            .context("the guard's answer is not readable: is it of the same release as this program?")
    }

    async fn ask_by_port_forward(&self, request: Request<Full<Bytes>>) -> anyhow::Result<Bytes> {
        let Reach { guard_namespace, guard_selector, .. } = &self.flags;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), guard_namespace);
        let listed = pods.list(&ListParams::default().labels(guard_selector)).await;
        let listed = listed.with_context(|| format!("listing the guard's pods in {guard_namespace}"))?;
        let Some(pod) = listed.items.iter().find(|pod| is_ready(pod)) else {
            bail!(
                "no guard is ready in namespace {guard_namespace} (of {} pods with {guard_selector}): see kubectl -n \
                 {guard_namespace} get pods, or name another by --guard-namespace or --guard",
                listed.items.len()
            )
        };
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let port = admin_port(pod);
        let forward = pods.portforward(name, &[port]).await;
        let mut forward = forward.with_context(|| {
            format!("port-forward to pod {guard_namespace}/{name}: it takes the right to create pods/portforward there")
        })?;
        let stream = forward.take_stream(port).context("the port-forward brought no stream")?;
        exchange(stream, request).await.with_context(|| format!("asking pod {guard_namespace}/{name}"))
    }
}

/// One request, one answer.
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
        bail!("the guard answered {status}: {}", String::from_utf8_lossy(&body).trim_end());
    }
    Ok(body)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|it| it.conditions.as_deref()).unwrap_or_default();
    pod.metadata.deletion_timestamp.is_none()
        && conditions.iter().any(|it| it.type_ == "Ready" && it.status == "True")
}

fn admin_port(pod: &Pod) -> u16 {
    let containers = pod.spec.iter().flat_map(|it| &it.containers);
    let mut ports = containers.flat_map(|it| it.ports.iter().flatten());
    let port = ports.find(|it| it.name.as_deref() == Some("admin")).map(|it| it.container_port);
    port.and_then(|it| it.try_into().ok()).unwrap_or(ADMIN_PORT)
}
