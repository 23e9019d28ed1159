//! Stands between the apiserver and the replicas, as a Service does: it hands each review to the next replica, and judges
//! every yes at the moment when it is given, before the apiserver hears of it.
//!
//! Its certificate is that of the Service, which in a cluster is the replicas' own.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::SocketAddr,
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
use serde_json::Value;
use tokio::{net::TcpListener, task::JoinHandle, time::Instant};

use crate::{
    certificates::Certificates,
    doubles,
    support::http_client::Connection,
    truth::{Grounds, Truth, Yes},
};

/// Reasons of a yes that needs no quorum, because the pod serves nothing or is gone.
const COSTS_NOTHING: [&str; 4] = ["MemberNotServing", "PodGone", "AlreadyTerminating", "PodFinished"];

/// Who answers a review.
pub(crate) enum Answerer {
    /// Guards at these addresses.
    Replicas(Vec<SocketAddr>),
    /// The test double.
    LeaderOnly,
    /// Whoever asks may do what they like.
    Nobody,
}

/// What was answered so far: verdicts with their reasons, and how often.
pub(crate) type Answers = Arc<Mutex<BTreeMap<String, u32>>>;

/// A running front.
pub(crate) struct Front {
    pub(crate) address: SocketAddr,
    pub(crate) answers: Answers,
    task: JoinHandle<()>,
}

/// What every connection needs.
struct Shared {
    answerer: Answerer,
    certificates: Arc<Certificates>,
    next: AtomicUsize,
    truth: Arc<Truth>,
    answers: Answers,
}

impl Front {
    pub(crate) async fn start(
        answerer: Answerer,
        certificates: Arc<Certificates>,
        truth: Arc<Truth>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answers = Answers::default();
        let next = AtomicUsize::new(0);
        let shared = Shared { answerer, certificates, next, truth, answers: Arc::clone(&answers) };
        let task = tokio::spawn(serve(listener, Arc::new(shared)));
        Self { address, answers, task }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, shared) = (shared.certificates.acceptor(), Arc::clone(&shared));
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
        let is_by_name = uid.is_none();
        let uid = match uid {
            Some(uid) => Some(uid.to_owned()),
            None => self.truth.uid(name).await,
        };
        let answer = match &self.answerer {
            Answerer::Replicas(replicas) => {
                let number = self.next.fetch_add(1, Ordering::Relaxed) % replicas.len();
                let ca_pem = self.certificates.trusted();
                ask(replicas[number], &ca_pem, &path, String::from_utf8_lossy(&body).into_owned()).await
            }
            Answerer::LeaderOnly => Some(doubles::leader_only(&review, &self.truth.member(name)).await),
            Answerer::Nobody => Some(doubles::yes(&review)),
        };
        let Some(answer) = answer else {
            self.count("no answer");
            return response(StatusCode::BAD_GATEWAY, String::new());
        };
        // What has no uid is no pod, or one that is gone.
        let uid = uid.as_deref().unwrap_or_default();
        let told = Yes { name, uid, is_by_name, asked, grounds: Grounds::Untold, told: "" };
        self.note(&review, &answer, told).await;
        response(StatusCode::OK, answer)
    }

    async fn note(&self, review: &Value, answer: &str, yes: Yes<'_>) {
        let answer: Value = serde_json::from_str(answer).unwrap_or_default();
        let allowed = answer["response"]["allowed"] == true;
        let reason = answer["response"]["auditAnnotations"]["reason"].as_str().unwrap_or("no reason");
        self.count(&format!("{} {reason}", if allowed { "allowed" } else { "denied" }));
        let is_dry_run = review["request"]["dryRun"] == true;
        if allowed && !is_dry_run {
            let way = review["request"]["operation"].as_str().unwrap_or_default();
            let told = format!("{way}: {}", answer["response"]["auditAnnotations"]);
            let grounds = match self.answerer {
                Answerer::Replicas(_) if COSTS_NOTHING.contains(&reason) => Grounds::ServesNothing,
                Answerer::Replicas(_) => Grounds::Quorum,
                Answerer::LeaderOnly | Answerer::Nobody => Grounds::Untold,
            };
            self.truth.judge(&Yes { grounds, told: &told, ..yes }).await;
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
