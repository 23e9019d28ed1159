//! A proxy between the API server and the replicas, in the place of the Service. It forwards each review to the next
//! replica, and checks each approval before the API server receives it.
//!
//! Its certificate is that of the Service, which in a cluster the replicas themselves serve.

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
    naive_guards,
    oracle::{Approval, Claim, Oracle},
    recorder::Recorder,
    x_pdb,
};
use test_support::http_client::Connection;

/// Reasons of approvals that need no quorum, because the pod serves nothing or does not exist.
const REASONS_WITHOUT_QUORUM: [&str; 4] =
    ["MemberNotServing", "PodGone", "AlreadyTerminating", "PodFinished"];

/// The server that answers reviews.
pub(crate) enum Responder {
    /// The guards at these addresses, in turn.
    Replicas(Vec<SocketAddr>),
    /// Replicas of x-pdb at these addresses, in turn. What its own registration does not select is allowed.
    XPdb(Vec<SocketAddr>),
    /// The test double that only protects the leader.
    LeaderOnly,
    /// The test double that allows every request.
    AllowAll,
}

/// The number of answers for each verdict and reason.
pub(crate) type Answers = Arc<Mutex<BTreeMap<String, u32>>>;

/// A running proxy.
pub(crate) struct ReviewProxy {
    pub(crate) address: SocketAddr,
    pub(crate) answers: Answers,
    task: JoinHandle<()>,
}

/// State that all connections share.
struct Shared {
    responder: Responder,
    certificates: Arc<Certificates>,
    next: AtomicUsize,
    oracle: Arc<Oracle>,
    recorder: Arc<Recorder>,
    answers: Answers,
}

impl ReviewProxy {
    pub(crate) async fn start(
        responder: Responder,
        certificates: Arc<Certificates>,
        oracle: Arc<Oracle>,
        recorder: Arc<Recorder>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answers = Answers::default();
        let next = AtomicUsize::new(0);
        let shared =
            Shared { responder, certificates, next, oracle, recorder, answers: Arc::clone(&answers) };
        let task = tokio::spawn(serve(listener, Arc::new(shared)));
        Self { address, answers, task }
    }
}

impl Drop for ReviewProxy {
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
            // The client reports a broken connection.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

impl Shared {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
        let body = request.into_body().collect().await.map(Collected::to_bytes).unwrap_or_default();
        let review: Value = serde_json::from_slice(&body).unwrap_or_default();
        let requested_at = Instant::now();
        // An eviction without a uid contains only the name, so the current pod of this name is checked.
        let (name, uid) = reviewed_pod(&review);
        let is_by_name = uid.is_none();
        let uid = match uid {
            Some(uid) => Some(uid.to_owned()),
            None => self.oracle.uid(name).await,
        };
        let answer = match &self.responder {
            Responder::Replicas(replicas) => self.forward(replicas, &path, &body).await,
            Responder::XPdb(replicas) if x_pdb::selects(&review) && !path.starts_with("/mutate") => {
                self.forward(replicas, &path, &body).await
            }
            Responder::LeaderOnly => {
                Some(naive_guards::leader_only(&review, &self.oracle.member(name)).await)
            }
            Responder::XPdb(_) | Responder::AllowAll => Some(naive_guards::allow(&review)),
        };
        let Some(answer) = answer else {
            self.count("no response");
            return response(StatusCode::BAD_GATEWAY, String::new());
        };
        if path.starts_with("/mutate") {
            return response(StatusCode::OK, answer);
        }
        // Without a uid, the name belongs to no pod, or to a deleted one.
        let uid = uid.as_deref().unwrap_or_default();
        let request = &review["request"];
        let is_restart = request["operation"] == "UPDATE";
        let claim = Claim::Unstated;
        let approval = Approval { name, uid, is_by_name, is_restart, requested_at, claim, note: "" };
        if request["resource"]["resource"] == "statefulsets" && request["operation"] == "DELETE" {
            self.record_owner(&review, &answer, requested_at).await;
            return response(StatusCode::OK, answer);
        }
        self.record(&review, &answer, approval).await;
        response(StatusCode::OK, answer)
    }

    /// Sends a review to the next replica.
    async fn forward(&self, replicas: &[SocketAddr], path: &str, body: &[u8]) -> Option<String> {
        let number = self.next.fetch_add(1, Ordering::Relaxed) % replicas.len();
        let ca_pem = self.certificates.trusted();
        post(replicas[number], &ca_pem, path, String::from_utf8_lossy(body).into_owned()).await
    }

    async fn record(&self, review: &Value, answer: &str, approval: Approval<'_>) {
        let answer: Value = serde_json::from_str(answer).unwrap_or_default();
        let allowed = answer["response"]["allowed"] == true;
        let message = answer["response"]["status"]["message"].as_str().unwrap_or("no reason");
        let reason = answer["response"]["auditAnnotations"]["reason"].as_str().unwrap_or(message);
        let of_restart = if approval.is_restart { " (restart)" } else { "" };
        self.count(&format!("{} {reason}{of_restart}", if allowed { "allowed" } else { "denied" }));
        let is_dry_run = review["request"]["dryRun"] == true;
        if allowed && !is_dry_run {
            let operation = review["request"]["operation"].as_str().unwrap_or_default();
            let note = format!("{operation}: {}", answer["response"]["auditAnnotations"]);
            let claim = match self.responder {
                Responder::Replicas(_) if REASONS_WITHOUT_QUORUM.contains(&reason) => Claim::ServesNothing,
                Responder::Replicas(_) => Claim::Quorum,
                Responder::XPdb(_) | Responder::LeaderOnly | Responder::AllowAll => Claim::Unstated,
            };
            self.recorder.approve(approval.uid);
            self.oracle.check(&Approval { claim, note: &note, ..approval }).await;
        }
    }

    /// Records the verdict for the deletion of a StatefulSet.
    async fn record_owner(&self, review: &Value, answer: &str, requested_at: Instant) {
        let answer: Value = serde_json::from_str(answer).unwrap_or_default();
        let reason = answer["response"]["auditAnnotations"]["reason"].as_str().unwrap_or("no reason");
        if answer["response"]["allowed"] != true {
            self.count(&format!("denied {reason}"));
            return;
        }
        self.count(&format!("allowed {reason}"));
        let name = review["request"]["name"].as_str().unwrap_or_default();
        let note = answer["response"]["auditAnnotations"].to_string();
        self.oracle.check_owner(name, requested_at, &note).await;
    }

    fn count(&self, verdict: &str) {
        *self.answers.lock().unwrap().entry(verdict.to_owned()).or_default() += 1;
    }
}

/// Returns the name of the reviewed pod, and its uid if the review contains it.
fn reviewed_pod(review: &Value) -> (&str, Option<&str>) {
    let request = &review["request"];
    if request["resource"]["resource"] != "pods" {
        return ("", None);
    }
    let old = &request["oldObject"]["metadata"];
    let name = request["name"].as_str().or(old["name"].as_str()).unwrap_or_default();
    let precondition = request.pointer("/object/deleteOptions/preconditions/uid");
    (name, old["uid"].as_str().or(precondition.and_then(Value::as_str)))
}

async fn post(address: SocketAddr, ca_pem: &str, path: &str, body: String) -> Option<String> {
    let mut connection = Connection::tls(address, ca_pem).await.ok()?;
    let answer = connection.post(path, body).await.ok()?;
    answer.status.is_success().then_some(answer.body)
}

fn response(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let response = Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
    response.body(Full::from(body)).unwrap()
}
