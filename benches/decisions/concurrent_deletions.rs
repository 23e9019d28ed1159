//! A thousand clients that delete the pods of one cluster at the same moment, each on its own connection to the API
//! server.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures::future::join_all;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use kube::config::Kubeconfig;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;

use crate::from_environment;
use test_support::{
    bench_table::Row,
    guarded_cluster::{GuardedCluster, START_TIMEOUT},
    process_node::ProcessAction,
    wait::wait_until,
};

/// The number of clients, unless the variable `BENCH_CLIENTS` is set.
const CLIENTS: usize = 1000;

/// The number of connections that are opened at a time, because the accept queue of the API server is not measured.
const MAX_PENDING_CONNECTIONS: usize = 50;

/// The longest time for one deletion: more than the API server's own limit.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(70);

/// The promised number of probe rounds per second of the whole run. The first probe and the probe of the first approval
/// follow each other within moments, so a run that ends within a second exceeds this rate.
const MAX_ROUNDS_PER_SECOND: f64 = 2.0;

const ROUNDS: &str = "etcd_guard_probe_duration_seconds_count";

/// The results of a run.
struct Outcome {
    took: Duration,
    /// The number of responses for each status code.
    answers: BTreeMap<u16, usize>,
    /// The pods whose deletion was approved at least once, whether they are deleted or not.
    allowed: BTreeSet<String>,
    /// The pods that are terminating or replaced.
    deleted: BTreeSet<String>,
}

type Sender = SendRequest<Empty<Bytes>>;

pub(crate) async fn compare(guarded: &GuardedCluster, unguarded: &GuardedCluster) -> Vec<Row> {
    let rounds_before = guarded.guard.metric(ROUNDS).await;
    let approvals_before = approvals(guarded).await;
    let with = run(guarded).await;
    let rounds = guarded.guard.metric(ROUNDS).await - rounds_before;
    let approvals = approvals(guarded).await - approvals_before;
    let without = run(unguarded).await;
    let seconds = with.took.as_secs_f64();
    // The number of rounds is small enough for an exact conversion.
    let rate = f64::from(u32::try_from(rounds).unwrap()) / seconds;
    let clients = from_environment("BENCH_CLIENTS").unwrap_or(CLIENTS);
    let summary = |outcome: &Outcome| {
        format!("{}/3 pods allowed, {} deleted", outcome.allowed.len(), outcome.deleted.len())
    };
    // A second approval for the same pod affects no other pod: the first deletion was approved and had not been stored
    // yet.
    let is_one = with.allowed.len() == 1 && with.deleted == with.allowed;
    vec![
        Row {
            quantity: format!("{clients} deletions of one cluster at once"),
            figure: format!("{}, {approvals} approvals, {}", summary(&with), answers(&with)),
            reference: String::from("unguarded"),
            reference_figure: format!("{}, {}", summary(&without), answers(&without)),
            bar: Some((String::from("exactly one is allowed and deleted"), is_one)),
        },
        Row {
            quantity: String::from("their probe rounds, first probe and approval included"),
            figure: format!("{rounds} in {seconds:.1} s, {rate:.2} per second"),
            reference: String::from("the same clients, unguarded"),
            reference_figure: format!("{:.1} s", without.took.as_secs_f64()),
            bar: Some((format!("<= {MAX_ROUNDS_PER_SECOND:.0} per second"), rate <= MAX_ROUNDS_PER_SECOND)),
        },
    ]
}

/// Returns the number of approvals with the reason `SafeToDelete`.
async fn approvals(etcd: &GuardedCluster) -> u64 {
    let counted = etcd.guard.verdict_counts().await;
    counted.get("DELETE allowed SafeToDelete").copied().unwrap_or_default()
}

fn answers(outcome: &Outcome) -> String {
    let texts: Vec<String> =
        outcome.answers.iter().map(|(status, count)| format!("{count} x {status}")).collect();
    texts.join(", ")
}

async fn run(etcd: &GuardedCluster) -> Outcome {
    etcd.wait_until_healthy().await;
    let [follower, _] = etcd.followers().await;
    let dry_run = ["delete", "pod", &follower, "--dry-run=server"];
    wait_until("the deletion of a follower is approved", START_TIMEOUT, async || {
        etcd.kubectl(&dry_run).await.success
    })
    .await;
    let mut uids = Vec::new();
    for name in GuardedCluster::names() {
        uids.push(etcd.uid(name).await);
        // A deleted pod keeps terminating until all requests are answered: a pod on a real node takes longer than a
        // process.
        etcd.apply(name, ProcessAction::Isolate).await;
    }
    let clients = from_environment("BENCH_CLIENTS").unwrap_or(CLIENTS);
    let api_server = ApiServer::new(etcd);
    let mut senders: Vec<Sender> = Vec::new();
    while senders.len() < clients {
        let next = MAX_PENDING_CONNECTIONS.min(clients - senders.len());
        senders.extend(join_all((0..next).map(|_| api_server.connect())).await);
    }
    let started = Instant::now();
    let targets = || GuardedCluster::names().into_iter().cycle();
    let deletions = senders.iter_mut().zip(targets());
    let statuses = join_all(deletions.map(|(sender, name)| api_server.delete(sender, name))).await;
    let took = started.elapsed();
    let (mut answers, mut allowed) = (BTreeMap::new(), BTreeSet::new());
    for (status, name) in statuses.into_iter().zip(targets()) {
        *answers.entry(status.as_u16()).or_default() += 1;
        if status.is_success() {
            allowed.insert(name.to_owned());
        }
    }
    let mut deleted = BTreeSet::new();
    for (name, uid) in GuardedCluster::names().into_iter().zip(uids) {
        let pod = etcd.pods.get(name).await.unwrap();
        if pod.metadata.deletion_timestamp.is_some() || pod.metadata.uid != Some(uid) {
            deleted.insert(name.to_owned());
        }
    }
    for name in GuardedCluster::names() {
        etcd.apply(name, ProcessAction::Rejoin).await;
    }
    etcd.wait_until_healthy().await;
    Outcome { took, answers, allowed, deleted }
}

/// The API server and the admin's credentials.
struct ApiServer {
    address: SocketAddr,
    tls: TlsConnector,
    namespace: String,
}

impl ApiServer {
    fn new(etcd: &GuardedCluster) -> Self {
        let kubeconfig = Kubeconfig::read_from(etcd.control_plane.admin_kubeconfig()).unwrap();
        let cluster = kubeconfig.clusters[0].cluster.clone().unwrap();
        let user = kubeconfig.auth_infos[0].auth_info.clone().unwrap();
        let pem = |text: &str| STANDARD.decode(text).unwrap();
        let mut roots = RootCertStore::empty();
        let ca = pem(&cluster.certificate_authority_data.unwrap());
        for certificate in CertificateDer::pem_slice_iter(&ca) {
            roots.add(certificate.unwrap()).unwrap();
        }
        // The type hides the certificate in debug output, and serializes it.
        let user = serde_json::to_value(&user).unwrap();
        let certificate = pem(user["client-certificate-data"].as_str().unwrap());
        let certificate = CertificateDer::from_pem_slice(&certificate).unwrap();
        let key = PrivateKeyDer::from_pem_slice(&pem(user["client-key-data"].as_str().unwrap())).unwrap();
        let mut config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate], key)
            .unwrap();
        // HTTP/2 would share connections.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let server = cluster.server.unwrap();
        let address = server.strip_prefix("https://").unwrap().parse().unwrap();
        Self { address, tls: TlsConnector::from(Arc::new(config)), namespace: etcd.namespace.clone() }
    }

    async fn connect(&self) -> Sender {
        let stream = TcpStream::connect(self.address).await.unwrap();
        // `kubectl` sets this, too.
        stream.set_nodelay(true).unwrap();
        let name = ServerName::from(self.address.ip());
        let stream = self.tls.connect(name, stream).await.unwrap();
        let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    async fn delete(&self, sender: &mut Sender, pod: &str) -> StatusCode {
        let path = format!("/api/v1/namespaces/{}/pods/{pod}", self.namespace);
        let request = Request::delete(path)
            .header(header::HOST, self.address.to_string())
            .header(header::ACCEPT, "application/json")
            .body(Empty::new())
            .unwrap();
        let exchange = async {
            let response = sender.send_request(request).await.unwrap();
            let status = response.status();
            response.into_body().collect().await.unwrap();
            status
        };
        timeout(RESPONSE_TIMEOUT, exchange).await.expect("the API server responds")
    }
}
