//! A thousand who delete the pods of one cluster at the same moment, each on a connection of its own to the apiserver.

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

use crate::{
    from_environment,
    rows::Row,
    support::{
        guarded_cluster::{GuardedCluster, START_LIMIT},
        process_node::Order,
        wait::until,
    },
};

/// How many; the variable says otherwise.
const CROWD: usize = 1000;

/// How many connect at a time: an apiserver's queue of new connections is not what is measured.
const CONNECT_AT_A_TIME: usize = 50;

/// Longest that one deletion is waited for: more than the apiserver's own limit.
const ANSWER_LIMIT: Duration = Duration::from_secs(70);

/// What is promised, per second of the whole time. The first yes takes a look and a round of its own within moments: a
/// crowd that is answered in less than a second has that against it.
const MOST_ROUNDS: f64 = 2.0;

const ROUNDS: &str = "etcd_guard_probe_duration_seconds_count";

/// What became of a crowd.
struct Outcome {
    took: Duration,
    /// How often each status was answered.
    answers: BTreeMap<u16, usize>,
    /// The pods that were allowed to go, to however many who asked for them, whether they go or not.
    allowed: BTreeSet<String>,
    /// The pods that go.
    going: BTreeSet<String>,
}

type Sender = SendRequest<Empty<Bytes>>;

pub(crate) async fn storm(guarded: &GuardedCluster, unguarded: &GuardedCluster) -> Vec<Row> {
    let rounds_before = guarded.guard.metric(ROUNDS).await;
    let yes_before = yes(guarded).await;
    let with = run(guarded).await;
    let rounds = guarded.guard.metric(ROUNDS).await - rounds_before;
    let yes = yes(guarded).await - yes_before;
    let without = run(unguarded).await;
    let seconds = with.took.as_secs_f64();
    // So few are exact.
    let rate = f64::from(u32::try_from(rounds).unwrap()) / seconds;
    let crowd = from_environment("BENCH_CROWD").unwrap_or(CROWD);
    let went = |it: &Outcome| format!("{} of 3 pods allowed, {} go", it.allowed.len(), it.going.len());
    // A second yes to the pod that goes lets no other go: its deletion was allowed, and had not been written yet.
    let is_one = with.allowed.len() == 1 && with.going == with.allowed;
    vec![
        Row {
            what: format!("{crowd} deletions of one cluster at once"),
            figure: format!("{} ({yes} yes), {}", went(&with), answers(&with)),
            reference: String::from("unguarded"),
            reference_figure: format!("{}, {}", went(&without), answers(&without)),
            bar: Some((String::from("exactly one is allowed, and goes"), is_one)),
        },
        Row {
            what: String::from("their probe rounds, the first look and the yes's own included"),
            figure: format!("{rounds} in {seconds:.1} s, {rate:.2} per second"),
            reference: String::from("the same crowd, unguarded"),
            reference_figure: format!("{:.1} s", without.took.as_secs_f64()),
            bar: Some((format!("<= {MOST_ROUNDS:.0} per second"), rate <= MOST_ROUNDS)),
        },
    ]
}

/// How often the guard said yes because it is safe.
async fn yes(etcd: &GuardedCluster) -> u64 {
    let counted = etcd.guard.counted().await;
    counted.get("DELETE allowed SafeToDelete").copied().unwrap_or_default()
}

fn answers(outcome: &Outcome) -> String {
    let texts: Vec<String> =
        outcome.answers.iter().map(|(status, count)| format!("{count} x {status}")).collect();
    texts.join(", ")
}

async fn run(etcd: &GuardedCluster) -> Outcome {
    etcd.wait_until_whole().await;
    let [follower, _] = etcd.followers().await;
    let dry_run = ["delete", "pod", &follower, "--dry-run=server"];
    until("a follower may go", START_LIMIT, async || etcd.kubectl(&dry_run).await.success).await;
    let mut uids = Vec::new();
    for name in GuardedCluster::names() {
        uids.push(etcd.uid(name).await);
        // Who goes is on the way until all are answered: a pod of a real node takes longer than a process.
        etcd.order(name, Order::Isolate).await;
    }
    let crowd = from_environment("BENCH_CROWD").unwrap_or(CROWD);
    let door = Door::of(etcd);
    let mut senders: Vec<Sender> = Vec::new();
    while senders.len() < crowd {
        let next = CONNECT_AT_A_TIME.min(crowd - senders.len());
        senders.extend(join_all((0..next).map(|_| door.connect())).await);
    }
    let began = Instant::now();
    let asked = || GuardedCluster::names().into_iter().cycle();
    let deletions = senders.iter_mut().zip(asked());
    let statuses = join_all(deletions.map(|(sender, name)| door.delete(sender, name))).await;
    let took = began.elapsed();
    let (mut answers, mut allowed) = (BTreeMap::new(), BTreeSet::new());
    for (status, name) in statuses.into_iter().zip(asked()) {
        *answers.entry(status.as_u16()).or_default() += 1;
        if status.is_success() {
            allowed.insert(name.to_owned());
        }
    }
    let mut going = BTreeSet::new();
    for (name, uid) in GuardedCluster::names().into_iter().zip(uids) {
        let pod = etcd.pods.get(name).await.unwrap();
        if pod.metadata.deletion_timestamp.is_some() || pod.metadata.uid != Some(uid) {
            going.insert(name.to_owned());
        }
    }
    for name in GuardedCluster::names() {
        etcd.order(name, Order::Rejoin).await;
    }
    etcd.wait_until_whole().await;
    Outcome { took, answers, allowed, going }
}

/// The apiserver, as an administrator reaches it.
struct Door {
    address: SocketAddr,
    tls: TlsConnector,
    namespace: String,
}

impl Door {
    fn of(etcd: &GuardedCluster) -> Self {
        let kubeconfig = Kubeconfig::read_from(etcd.control_plane.admin_kubeconfig()).unwrap();
        let cluster = kubeconfig.clusters[0].cluster.clone().unwrap();
        let user = kubeconfig.auth_infos[0].auth_info.clone().unwrap();
        let pem = |text: &str| STANDARD.decode(text).unwrap();
        let mut roots = RootCertStore::empty();
        let ca = pem(&cluster.certificate_authority_data.unwrap());
        for certificate in CertificateDer::pem_slice_iter(&ca) {
            roots.add(certificate.unwrap()).unwrap();
        }
        // The type that keeps it out of logs writes it down all the same.
        let user = serde_json::to_value(&user).unwrap();
        let certificate = pem(user["client-certificate-data"].as_str().unwrap());
        let certificate = CertificateDer::from_pem_slice(&certificate).unwrap();
        let key = PrivateKeyDer::from_pem_slice(&pem(user["client-key-data"].as_str().unwrap())).unwrap();
        let mut config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate], key)
            .unwrap();
        // A connection each: HTTP/2 would share some.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let server = cluster.server.unwrap();
        let address = server.strip_prefix("https://").unwrap().parse().unwrap();
        Self { address, tls: TlsConnector::from(Arc::new(config)), namespace: etcd.namespace.clone() }
    }

    async fn connect(&self) -> Sender {
        let stream = TcpStream::connect(self.address).await.unwrap();
        // As kubectl does.
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
        timeout(ANSWER_LIMIT, exchange).await.expect("an answer of the apiserver")
    }
}
