//! The reference that the guard is measured against, with the same build settings.
//!
//! `reference serve CERTIFICATE KEY`: the guard's own HTTPS server with two minimal handlers. `/no-op` reads the body
//! and
//! responds; `/partial` also parses, without a copy, the fields that show that a pod does not run etcd: the lower bound
//! of
//! the cost of a review outside the guard's scope.
//!
//! `reference rounds COUNT MEMBERS`: bare probe rounds by the guard's own client; prints the duration of each round in
//! microseconds. MEMBERS is `[--tls CA CERTIFICATE KEY] [--members SIZE] URL[,SERVER-NAME]...`. With `--members`, each SIZE
//! consecutive URLs are a cluster, and the rounds probe one cluster after another. The pool has the guard's limit of open
//! connections.
//!
//! `reference calls COUNT KUBECONFIG NAMESPACE[,NAMESPACE...] POD[,POD...] MEMBERS`: the calls of an approval in their order,
//! without the guard: concurrent reads of a Lease and the pods from the API server, a probe round, then a write of the
//! Lease. Each approval uses the next namespace and the next cluster, and the first ones again after the last. Every
//! namespace has pods with these names. Prints the durations of the reads, the round and the write in microseconds.

// The program fails by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{borrow::Cow, collections::BTreeMap, env, fs, io::Write, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Bytes,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use etcd_guard_core::etcd::{
    endpoint::{ClientIdentity, Endpoint, Tls},
    probe_result::ProbeResult,
};
use etcd_guard_etcd::{Connections, probe};
use etcd_guard_server as server;
use etcd_guard_server::{
    tls,
    tls::{CertificatePair, ServedCertificate},
};
use k8s_openapi::api::{coordination::v1::Lease, core::v1};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use rustls::crypto::{CryptoProvider, ring};
use serde::{Deserialize, Serialize};
use tokio::{
    net::TcpListener,
    time::{Instant, timeout},
};

/// Longer than the timeout for a single member.
const ROUND_TIMEOUT: Duration = Duration::from_secs(5);

/// Longer than any call of the API server on a busy machine.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Rounds that are not printed; the first one opens the connections.
const WARM_UP: usize = 20;

const NO_OP: &str = r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"705ab4f5-6393-11e8-b7cc-42010a800002","allowed":true}}"#;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let provider = Arc::new(ring::default_provider());
    CryptoProvider::install_default((*provider).clone()).expect("no other provider");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    match arguments.as_slice() {
        ["serve", certificate, key] => runtime.block_on(serve(provider, certificate, key)),
        ["rounds", count, members @ ..] => runtime.block_on(rounds(count, &Members::from_arguments(members))),
        ["calls", count, kubeconfig, namespaces, pods, members @ ..] => {
            let [namespaces, pods] = [namespaces, pods].map(|names| names.split(',').collect::<Vec<_>>());
            let members = Members::from_arguments(members);
            runtime.block_on(calls(count, kubeconfig, &namespaces, &pods, &members));
        }
        _ => panic!(
            "reference serve CERTIFICATE KEY | rounds COUNT MEMBERS | \
             calls COUNT KUBECONFIG NAMESPACE[,NAMESPACE...] POD[,POD...] MEMBERS, with MEMBERS = \
             [--tls CA CERTIFICATE KEY] [--members SIZE] URL[,SERVER-NAME]..."
        ),
    }
}

/// The members of clusters, which are probed one cluster after another.
struct Members {
    clusters: Vec<Vec<Endpoint>>,
    connections: Connections,
}

/// Serves forever, and logs its address.
async fn serve(provider: Arc<CryptoProvider>, certificate: &str, key: &str) {
    let read = |file: &str| fs::read(file).expect(file);
    let pair = CertificatePair::from_pem(&read(certificate), &read(key), &provider).expect("a pair");
    let serving = ServedCertificate::default();
    serving.replace(pair);
    let tls = tls::Tls::new(provider, serving, None).expect("TLS");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    eprintln!(r#"{{"message":"serving","https":"{}"}}"#, listener.local_addr().expect("an address"));
    let routes = Router::new().route("/no-op", post(no_op)).route("/partial", post(partial));
    server::serve_routes(listener, tls, routes).await;
}

impl Members {
    fn from_arguments(arguments: &[&str]) -> Self {
        let (tls, rest) = match arguments {
            ["--tls", ca, certificate, key, rest @ ..] => {
                let read = |file: &str| Arc::from(fs::read(file).expect(file));
                let identity = ClientIdentity { certificate: read(certificate), key: read(key) };
                let tls = Tls {
                    accepts_any_certificate: false,
                    server_name: String::new(),
                    ca: Some(read(ca)),
                    identity: Some(identity),
                };
                (Some(tls), rest)
            }
            rest => (None, rest),
        };
        let endpoint = |url: &&str| {
            let (url, server_name) = url.split_once(',').unwrap_or((url, ""));
            let tls = tls.clone().map(|tls| Tls { server_name: server_name.to_owned(), ..tls });
            Endpoint { url: url.to_owned(), other_urls: Vec::new(), tls, user: None }
        };
        let (size, urls) = match rest {
            ["--members", size, urls @ ..] => (size.parse().expect("the number of members"), urls),
            urls => (urls.len(), urls),
        };
        assert!(size > 0 && urls.len().is_multiple_of(size), "{} URLs, {size} of each cluster", urls.len());
        let clusters = urls.chunks(size).map(|urls| urls.iter().map(endpoint).collect()).collect();
        Self { clusters, connections: Connections::new() }
    }

    /// Probes one cluster and returns the duration. Numbers beyond the last cluster start again at the first.
    async fn probe(&self, number: usize) -> Duration {
        let endpoints = &self.clusters[number % self.clusters.len()];
        let began = Instant::now();
        let results = probe(&self.connections, endpoints, began + ROUND_TIMEOUT).await;
        let round = began.elapsed();
        assert!(results.iter().all(|result| matches!(result, ProbeResult::Healthy { .. })), "{results:?}");
        round
    }
}

/// Probes one cluster after another.
async fn rounds(count: &str, members: &Members) {
    let count: usize = count.parse().expect("the number of rounds");
    let mut took = Vec::new();
    for number in 0..WARM_UP + count {
        took.push(members.probe(number).await);
    }
    let mut out = std::io::stdout().lock();
    for round in took.iter().skip(WARM_UP) {
        writeln!(out, "{}", round.as_micros()).expect("standard output is open");
    }
}

/// Waits for calls of the API server, at most for [`CALL_TIMEOUT`].
async fn in_time<F: Future>(calls: F) -> F::Output {
    timeout(CALL_TIMEOUT, calls).await.expect("the API server answers in time")
}

/// Makes the calls of approvals, in one namespace and cluster after another.
async fn calls(count: &str, kubeconfig: &str, namespaces: &[&str], names: &[&str], members: &Members) {
    let count: usize = count.parse().expect("the number of approvals");
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let client = Client::try_from(config.expect("a configuration")).expect("a client");
    let leases: Api<Lease> = Api::namespaced(client.clone(), "etcd-guard");
    let lease_name = |namespace: &str| format!("reference-{namespace}");
    assert_eq!(namespaces.len(), members.clusters.len(), "each namespace has a cluster");
    let namespaces = &namespaces[..namespaces.len().min(WARM_UP + count)];
    for namespace in namespaces {
        let mut lease = Lease::default();
        lease.metadata.name = Some(lease_name(namespace));
        let created = in_time(leases.replace(&lease_name(namespace), &PostParams::default(), &lease)).await;
        created.expect("the Lease is created");
    }
    let mut took = Vec::new();
    for (number, namespace) in namespaces.iter().cycle().take(WARM_UP + count).enumerate() {
        let pods: Api<v1::Pod> = Api::namespaced(client.clone(), namespace);
        let name = lease_name(namespace);
        let began = Instant::now();
        let read = futures::future::join_all(names.iter().map(|name| pods.get(name)));
        let (lease, read) = in_time(async { tokio::join!(leases.get(&name), read) }).await;
        let reads = began.elapsed();
        assert!(read.iter().all(Result::is_ok), "{read:?}");
        let round = members.probe(number % namespaces.len()).await;
        let mut lease = lease.expect("the Lease");
        let annotation = (String::from("reference"), number.to_string());
        lease.metadata.annotations = Some([annotation].into());
        let began = Instant::now();
        let written = in_time(leases.replace(&name, &PostParams::default(), &lease)).await;
        written.expect("the Lease is written");
        took.push([reads, round, began.elapsed()]);
    }
    for namespace in namespaces {
        let deleted = in_time(leases.delete(&lease_name(namespace), &DeleteParams::default())).await;
        deleted.expect("the Lease is deleted");
    }
    let mut out = std::io::stdout().lock();
    for [reads, round, write] in took.iter().skip(WARM_UP).map(|calls| calls.map(|time| time.as_micros())) {
        writeln!(out, "{reads} {round} {write}").expect("standard output is open");
    }
}

/// Reads the whole body, as every handler of this server must.
async fn no_op(body: Bytes) -> Response {
    drop(body);
    json(NO_OP.into())
}

async fn partial(body: Bytes) -> Response {
    let Ok(review) = serde_json::from_slice::<Review<'_>>(&body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let Request { uid, operation, namespace, name, old_object: pod } = review.request;
    let is_named = !name.unwrap_or(pod.metadata.name).is_empty() && !namespace.is_empty();
    let runs_etcd = pod.spec.containers.iter().any(|container| {
        let words = container.command.iter().chain(&container.args);
        base_name(&container.image).starts_with("etcd")
            || words.into_iter().any(|word| base_name(word) == "etcd")
    });
    let settles = !pod.metadata.labels.is_empty()
        || !pod.metadata.annotations.is_empty()
        || pod
            .metadata
            .owner_references
            .iter()
            .any(|owner| owner.controller == Some(true) && !owner.uid.is_empty())
        || pod.metadata.deletion_timestamp.is_some()
        || !pod.status.phase.is_empty();
    let allowed = operation == "DELETE" && is_named && settles && !runs_etcd;
    let answer = Answer {
        api_version: review.api_version,
        kind: "AdmissionReview",
        response: Verdict { uid, allowed },
    };
    match serde_json::to_vec(&answer) {
        Ok(body) => json(body),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn json(body: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    request: Request<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    #[serde(borrow)]
    uid: Cow<'a, str>,
    #[serde(borrow)]
    operation: Cow<'a, str>,
    #[serde(borrow, default)]
    namespace: Cow<'a, str>,
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    old_object: Pod<'a>,
}

#[derive(Deserialize)]
struct Pod<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
    #[serde(borrow)]
    spec: Spec<'a>,
    #[serde(borrow)]
    status: Status<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    labels: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
    #[serde(borrow, default)]
    annotations: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
    #[serde(borrow, default)]
    owner_references: Vec<Owner<'a>>,
    #[serde(borrow, default)]
    deletion_timestamp: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Owner<'a> {
    #[serde(borrow)]
    uid: Cow<'a, str>,
    #[serde(default)]
    controller: Option<bool>,
}

#[derive(Deserialize)]
struct Spec<'a> {
    #[serde(borrow)]
    containers: Vec<Container<'a>>,
}

#[derive(Deserialize)]
struct Container<'a> {
    #[serde(borrow, default)]
    image: Cow<'a, str>,
    #[serde(borrow, default)]
    command: Vec<Cow<'a, str>>,
    #[serde(borrow, default)]
    args: Vec<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Status<'a> {
    #[serde(borrow, default)]
    phase: Cow<'a, str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    api_version: Cow<'a, str>,
    kind: &'static str,
    response: Verdict<'a>,
}

#[derive(Serialize)]
struct Verdict<'a> {
    uid: Cow<'a, str>,
    allowed: bool,
}
