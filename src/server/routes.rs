//! `POST /validate`: one body in, one review out. `POST /mutate` is told in `mutate.rs`.

use std::{
    ops::ControlFlow,
    sync::{Arc, LazyLock},
    time::Duration,
};

use axum::{
    Router,
    body::{Bytes, HttpBody, to_bytes},
    extract::{Query, Request as HttpRequest, State},
    response::{IntoResponse, Response},
    routing::post,
};
use futures::FutureExt;
use http::{StatusCode, header};
use memchr::memmem::Finder;
use serde::Deserialize;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};
use tracing::Instrument;

use super::{
    metrics::Metrics,
    mutate::Mutator,
    pod_names,
    review::{Answer, Body, Review, ReviewError},
    spans,
};
use crate::{
    guard::{Deadline, Glance, Guard, Request, Verdict},
    k8s::admission::clipped,
};

/// The largest body that is read. The apiserver takes objects of 3 MiB, and an update carries two.
const LARGEST_BODY: usize = 8 << 20;

/// Bodies up to this are read at once, however many there are: a review of a pod has some 10 KB, and so many as there are
/// connections come to 32 MiB, or twice that with what was abridged of each.
const SMALL_BODY: usize = 64 << 10;

/// The most that larger bodies under way may come to: two of the largest, which are parsed into a few times as much. The rest
/// waits: otherwise some callers with large bodies could end a server that may have 128 MiB.
const MOST_LARGE_BODIES: usize = 2 * LARGEST_BODY;

/// Longest that a body may be on its way. The apiserver has it ready before it connects.
const BODY_LIMIT: Duration = Duration::from_secs(5);

/// The name of events whose lines may be lost when the process is killed: they tell of answers that no member hangs on. It stands in
/// no line.
pub(crate) const HARMLESS: &str = "harmless";

/// What the routes work with.
pub(super) struct Webhooks {
    pub(super) guard: Arc<Guard>,
    pub(super) mutator: Mutator,
    pub(super) metrics: Metrics,
    large_bodies: Arc<Semaphore>,
}

/// Finds the word.
static ETCD: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("etcd"));

/// A body, and its share of what there may be of them.
pub(super) struct Read {
    pub(super) bytes: Bytes,
    _share: Option<OwnedSemaphorePermit>,
}

/// The parameters of a webhook's URL, `/validate`'s as well as `/mutate`'s.
#[derive(Deserialize)]
pub(super) struct Parameters {
    /// What the apiserver still waits, as Go writes durations: `10s`, `1m0s`.
    #[serde(default)]
    timeout: Option<String>,
}

/// An answer that is no review.
pub(super) struct Rejection(StatusCode, String);

/// The routes that the apiserver calls.
pub(super) fn routes(webhooks: Arc<Webhooks>) -> Router {
    Router::new()
        .route("/validate", post(validate))
        .route("/mutate", post(super::mutate::mutate))
        .with_state(webhooks)
}

async fn validate(
    State(webhooks): State<Arc<Webhooks>>,
    Query(parameters): Query<Parameters>,
    request: HttpRequest,
) -> Result<Response, Rejection> {
    // Counted from now, and told of after the body: whoever gave a uid gets it back.
    let deadline = parameters.deadline();
    let span = spans::begin("POST /validate", request.headers());
    async {
        let body = webhooks.read_body(request).await?;
        // No path in here panics by design. If one does, this request fails, which the apiserver takes as a refusal, and
        // the server lives on.
        let judged =
            std::panic::AssertUnwindSafe(judge(&webhooks, &body.bytes, deadline)).catch_unwind().await;
        judged.unwrap_or_else(|_| {
            let text = String::from("an error inside etcd-guard; its log says where");
            Err(Rejection(StatusCode::INTERNAL_SERVER_ERROR, text))
        })
    }
    .instrument(span)
    .await
}

async fn judge(
    webhooks: &Webhooks,
    body: &[u8],
    deadline: Result<Deadline, String>,
) -> Result<Response, Rejection> {
    let started = Instant::now();
    let body = Body::of(body);
    let (review, request, deadline) = match question(webhooks, &body, deadline, started) {
        ControlFlow::Continue(question) => question,
        ControlFlow::Break(answer) => return answer,
    };
    let verdict = webhooks.guard.judge(&request, deadline).await;
    webhooks.metrics.record(request.operation, &verdict, started.elapsed());
    log(review.uid(), &request, &verdict, started.elapsed());
    spans::tell_verdict(review.uid(), &request, &verdict);
    Ok(json(&review.answer(&verdict, request.operation)))
}

/// What the guard is asked; or the answer, where it is not asked.
fn question<'a>(
    webhooks: &Webhooks,
    body: &'a Body<'_>,
    deadline: Result<Deadline, String>,
    started: Instant,
) -> ControlFlow<Result<Response, Rejection>, (Review<'a>, Request, Deadline)> {
    let review = match (glance(body), &deadline) {
        (Some((review, Some(pod))), Ok(deadline)) => {
            let request = review.request().ok().and_then(|it| webhooks.guard.pass_by(it, &pod));
            if let Some(request) = request {
                return ControlFlow::Continue((review, request, *deadline));
            }
            Review::read(body)
        }
        // There was no stored object to look at: this is all.
        (Some((review, None)), _) => Ok(review),
        _ => Review::read(body),
    };
    let review = match review {
        Ok(review) => review,
        Err(error) => return ControlFlow::Break(reject(webhooks, &error)),
    };
    let request = match review.request() {
        Ok(request) if pod_names::is_asked(request) => {
            return ControlFlow::Break(Ok(pod_names::answer(webhooks, &review, request, started)));
        }
        Ok(request) => Request::read(request).map_err(|error| error.to_string()),
        Err(error) => Err(format!("the AdmissionReview's request is not readable: {error}")),
    };
    match request.and_then(|request| Ok((request, deadline?))) {
        Ok((request, deadline)) => ControlFlow::Continue((review, request, deadline)),
        Err(error) => {
            webhooks.metrics.record_bad_request();
            tracing::warn!(uid = clipped(review.uid()), %error, "bad request");
            ControlFlow::Break(Ok(json(&review.bad_request(error))))
        }
    }
}

/// Most deletions in a namespace are of pods that run no etcd, as a glance tells.
fn glance<'a>(body: &'a Body<'_>) -> Option<(Review<'a>, Option<Glance<'a>>)> {
    // Where it says so there is likely more to it, and the glance would be for nothing.
    let text = body.text().filter(|it| ETCD.find(it.as_bytes()).is_none())?;
    Review::read_with_glance(text)
}

/// The answer to a body that is no review.
pub(super) fn reject(webhooks: &Webhooks, error: &ReviewError) -> Result<Response, Rejection> {
    webhooks.metrics.record_bad_request();
    tracing::warn!(%error, "bad review");
    let rejection = || Rejection(StatusCode::BAD_REQUEST, error.to_string());
    error.answer().map(|answer| json(&answer)).ok_or_else(rejection)
}

/// One line per verdict, and nothing of the body but names.
fn log(uid: &str, request: &Request, verdict: &Verdict, elapsed: Duration) {
    let numbers = verdict.tally.as_ref();
    // A name is part of what is written once per place in the program.
    macro_rules! tell {
        ($name:expr) => {
            tracing::info!(
                name: $name,
                uid = clipped(uid),
                namespace = request.namespace,
                pod = request.name,
                operation = spans::word(request.operation),
                user = request.user,
                dry_run = request.dry_run,
                grace_period_seconds = request.grace_period_seconds,
                verdict = verdict.word(),
                reason = verdict.reason.word(),
                cluster = verdict.cluster,
                voters = numbers.map(|it| it.voters),
                healthy = numbers.map(|it| it.healthy),
                quorum = numbers.map(|it| it.quorum),
                message = verdict.message,
                elapsed_ms = elapsed.as_secs_f64() * 1000.0,
            )
        };
    }
    if request.is_bystander() { tell!(HARMLESS) } else { tell!("verdict") }
}

fn is_too_large(error: &axum::Error) -> bool {
    std::error::Error::source(error)
        .is_some_and(<dyn std::error::Error>::is::<http_body_util::LengthLimitError>)
}

pub(super) fn json(answer: &Answer<'_>) -> Response {
    match answer.to_json() {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => Rejection(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

// === impl Webhooks ===

impl Webhooks {
    pub(super) fn new(guard: Arc<Guard>, mutator: Mutator, metrics: Metrics) -> Self {
        Self { guard, mutator, metrics, large_bodies: Arc::new(Semaphore::new(MOST_LARGE_BODIES)) }
    }

    /// Waits until a body of so many bytes may be read; one that is small may at once.
    async fn share_of(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let share = u32::try_from(bytes).ok().filter(|_| bytes > SMALL_BODY)?;
        // It is never closed.
        Arc::clone(&self.large_bodies).acquire_many_owned(share).await.ok()
    }

    pub(super) async fn read_body(&self, request: HttpRequest) -> Result<Read, Rejection> {
        let (head, body) = request.into_parts();
        let content_type =
            head.headers.get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok()).unwrap_or_default();
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        if !media_type.eq_ignore_ascii_case("application/json") {
            let text = format!("content type {content_type:?} is not read here: application/json is");
            return Err(Rejection(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
        }
        let read = async {
            let most = body.size_hint().upper().and_then(|it| usize::try_from(it).ok());
            let share = self.share_of(most.unwrap_or(LARGEST_BODY).min(LARGEST_BODY)).await;
            (share, to_bytes(body, LARGEST_BODY).await)
        };
        match timeout(BODY_LIMIT, read).await {
            Ok((share, Ok(bytes))) => Ok(Read { bytes, _share: share }),
            Ok((_, Err(error))) if is_too_large(&error) => {
                let text = format!("the body is larger than {} MiB", LARGEST_BODY >> 20);
                Err(Rejection(StatusCode::PAYLOAD_TOO_LARGE, text))
            }
            Ok((_, Err(error))) => {
                Err(Rejection(StatusCode::BAD_REQUEST, format!("the body broke off: {error}")))
            }
            Err(_) => {
                let text =
                    format!("the body did not arrive within {}", humantime::format_duration(BODY_LIMIT));
                Err(Rejection(StatusCode::REQUEST_TIMEOUT, text))
            }
        }
    }
}

// === impl Parameters ===

impl Parameters {
    /// When the answer must be ready.
    pub(super) fn deadline(&self) -> Result<Deadline, String> {
        let timeout = self.timeout.as_deref().map(humantime::parse_duration).transpose();
        timeout.map(Deadline::of).map_err(|error| {
            let text = clipped(self.timeout.as_deref().unwrap_or_default());
            format!("timeout={text:?} is no duration such as 10s or 1m0s: {error}")
        })
    }
}

// === impl Rejection ===

impl Rejection {
    pub(super) fn bad_request(text: String) -> Self {
        Self(StatusCode::BAD_REQUEST, text)
    }
}

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        let Self(status, text) = self;
        (status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text + "\n").into_response()
    }
}
