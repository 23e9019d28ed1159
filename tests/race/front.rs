//! Stands between the apiserver and the replicas, as a Service does: it hands each review to the next replica, and judges
//! every yes at the moment when it is given, before the apiserver hears of it.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Collected, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use serde_json::Value;
use tokio::{net::TcpListener, task::JoinHandle, time::Instant};
use tokio_rustls::TlsAcceptor;

use crate::{
    leader_only,
    support::{guard_process::make_certificate, http_client::Connection},
    truth::Truth,
};

/// Who answers a review.
pub(crate) enum Replica {
    /// A guard at this address, whose certificate leads to this CA.
    Guard { address: SocketAddr, ca_pem: String },
    /// The test double.
    LeaderOnly,
}

/// What was answered so far: verdicts with their reasons, and how often.
pub(crate) type Answers = Arc<Mutex<BTreeMap<String, u32>>>;

/// A running front.
pub(crate) struct Front {
    pub(crate) address: SocketAddr,
    pub(crate) ca_pem: String,
    pub(crate) answers: Answers,
    task: JoinHandle<()>,
}

/// What every connection needs.
struct Shared {
    replicas: Vec<Replica>,
    next: AtomicUsize,
    truth: Arc<Truth>,
    answers: Answers,
}

impl Front {
    pub(crate) async fn start(files: &Path, replicas: Vec<Replica>, truth: Arc<Truth>) -> Self {
        std::fs::create_dir_all(files).unwrap();
        let ca_pem = make_certificate(files);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let certificate = CertificateDer::from_pem_file(files.join("tls.crt")).unwrap();
        let key = PrivateKeyDer::from_pem_file(files.join("tls.key")).unwrap();
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key);
        let acceptor = TlsAcceptor::from(Arc::new(config.unwrap()));
        let answers = Answers::default();
        let shared = Shared { replicas, next: AtomicUsize::new(0), truth, answers: Arc::clone(&answers) };
        let task = tokio::spawn(serve(listener, acceptor, Arc::new(shared)));
        Self { address, ca_pem, answers, task }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, shared) = (acceptor.clone(), Arc::clone(&shared));
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = service_fn(|request| {
                let shared = Arc::clone(&shared);
                async move { Ok::<_, Infallible>(shared.answer(request).await) }
            });
            // A connection that breaks concerns its other end.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

impl Shared {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
        let body = request.into_body().collect().await.map(Collected::to_bytes).unwrap_or_default();
        let review: Value = serde_json::from_slice(&body).unwrap_or_default();
        let asked = Instant::now();
        // An eviction names a pod, and whichever has the name now is the one that is judged.
        let (name, uid) = pod_of(&review);
        let uid = match uid {
            Some(uid) => Some(uid.to_owned()),
            None => self.truth.uid(name).await,
        };
        let number = self.next.fetch_add(1, Ordering::Relaxed) % self.replicas.len();
        let answer = match &self.replicas[number] {
            Replica::Guard { address, ca_pem } => {
                ask(*address, ca_pem, &path, String::from_utf8_lossy(&body).into_owned()).await
            }
            Replica::LeaderOnly => Some(leader_only::answer(&review, &self.truth.member(name)).await),
        };
        let Some(answer) = answer else {
            self.count("no answer");
            return response(StatusCode::BAD_GATEWAY, String::new());
        };
        self.note(&review, &answer, name, uid.as_deref(), asked).await;
        response(StatusCode::OK, answer)
    }

    async fn note(&self, review: &Value, answer: &str, name: &str, uid: Option<&str>, asked: Instant) {
        let answer: Value = serde_json::from_str(answer).unwrap_or_default();
        let allowed = answer["response"]["allowed"] == true;
        let reason = answer["response"]["auditAnnotations"]["reason"].as_str().unwrap_or("no reason");
        self.count(&format!("{} {reason}", if allowed { "allowed" } else { "denied" }));
        let is_dry_run = review["request"]["dryRun"] == true;
        // What has no uid is no pod, or one that is gone.
        if let Some(uid) = uid.filter(|_| allowed && !is_dry_run) {
            let way = review["request"]["operation"].as_str().unwrap_or_default();
            let numbers = &answer["response"]["auditAnnotations"];
            let told = format!("{way}: {numbers}");
            self.truth.judge(name, uid, asked, reason, &told).await;
        }
    }

    fn count(&self, what: &str) {
        *self.answers.lock().unwrap().entry(what.to_owned()).or_default() += 1;
    }
}

/// The pod that a review asks about: its name, and its uid if the review tells it.
fn pod_of(review: &Value) -> (&str, Option<&str>) {
    let request = &review["request"];
    if request["resource"]["resource"] != "pods" {
        return ("", None);
    }
    let old = &request["oldObject"]["metadata"];
    let name = request["name"].as_str().or(old["name"].as_str()).unwrap_or_default();
    (name, old["uid"].as_str())
}

async fn ask(address: SocketAddr, ca_pem: &str, path: &str, body: String) -> Option<String> {
    let mut connection = Connection::tls(address, ca_pem).await.ok()?;
    let answer = connection.post(path, body).await.ok()?;
    answer.status.is_success().then_some(answer.body)
}

fn response(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let response = Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
    response.body(Full::from(body)).unwrap()
}
