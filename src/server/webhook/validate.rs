//! `POST /validate`: deletions, evictions, workload operations, and the names of new pods.

use std::{
    ops::ControlFlow,
    panic::AssertUnwindSafe,
    sync::{Arc, LazyLock},
    time::Duration,
};

use axum::{
    extract::{Query, Request as HttpRequest, State},
    response::Response,
};
use futures::FutureExt;
use http::StatusCode;
use memchr::memmem::Finder;
use tokio::time::Instant;
use tracing::Instrument;

use super::{
    http_request::{QueryParameters, RequestBody},
    http_response::{Rejection, json_response},
    pod_names,
    review::{Review, ReviewBody},
    spans,
    state::WebhookState,
};
use crate::{
    guard::{Deadline, PodHeader, Request, Verdict},
    k8s::admission::truncated,
};

/// Finds the text `etcd` in a body.
static ETCD: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("etcd"));

pub(super) async fn validate(
    State(state): State<Arc<WebhookState>>,
    Query(parameters): Query<QueryParameters>,
    request: HttpRequest,
) -> Result<Response, Rejection> {
    // The deadline starts now. An invalid timeout is reported after the body is read, as a denial of the request's uid.
    let deadline = parameters.deadline();
    let span = spans::start_review("POST /validate", request.headers());
    async {
        let body = state.body_reader.read(request).await?;
        // The code below contains no intended panic. After a panic only this request fails, which the API server treats
        // as a denial, and the server continues.
        let response = AssertUnwindSafe(evaluate(&state, &body, deadline)).catch_unwind().await;
        response.unwrap_or_else(|_| {
            let message = String::from("internal error of etcd-guard; see its log");
            Err(Rejection::new(StatusCode::INTERNAL_SERVER_ERROR, message))
        })
    }
    .instrument(span)
    .await
}

async fn evaluate(
    state: &WebhookState,
    received: &RequestBody,
    deadline: Result<Deadline, String>,
) -> Result<Response, Rejection> {
    let started = Instant::now();
    let body = ReviewBody::new(&received.bytes);
    let (review, request, deadline) = match read_request(state, received, &body, deadline, started) {
        ControlFlow::Continue(read) => read,
        ControlFlow::Break(response) => return response,
    };
    received.mark_valid();
    let verdict = state.guard.evaluate(&request, deadline).await;
    state.metrics.record_verdict(request.operation, &verdict, started.elapsed());
    log_verdict(review.uid(), &request, &verdict, started.elapsed());
    spans::record_verdict(review.uid(), &request, &verdict);
    Ok(json_response(&review.verdict_response(&verdict, request.operation)))
}

/// Reads the request that the guard evaluates. Breaks with the response to reviews that the guard does not evaluate:
/// invalid reviews, and new pods.
fn read_request<'a>(
    state: &WebhookState,
    received: &RequestBody,
    body: &'a ReviewBody<'_>,
    deadline: Result<Deadline, String>,
    started: Instant,
) -> ControlFlow<Result<Response, Rejection>, (Review<'a>, Request, Deadline)> {
    let read = match (read_header(body), &deadline) {
        (Some((review, Some(pod))), Ok(deadline)) => {
            let request =
                review.request().ok().and_then(|request| state.guard.fast_path_request(request, &pod));
            if let Some(request) = request {
                return ControlFlow::Continue((review, request, *deadline));
            }
            Review::read_with_pod(body)
        }
        // The review contains no stored object, so that nothing else must be parsed.
        (Some((review, None)), _) => Ok((review, None)),
        _ => Review::read_with_pod(body),
    };
    let (review, pod) = match read {
        Ok(read) => read,
        Err(error) => return ControlFlow::Break(state.reject(&error)),
    };
    let request = match review.request() {
        Ok(request) if pod_names::is_pod_creation(request) => {
            received.mark_valid();
            return ControlFlow::Break(Ok(pod_names::check_name(state, &review, request, started)));
        }
        Ok(request) => match pod {
            Some(pod) => Request::from_pod_deletion(request, pod),
            None => Request::from_admission(request),
        }
        .map_err(|error| error.to_string()),
        Err(error) => Err(format!("the request of the AdmissionReview is not readable: {error}")),
    };
    match request.and_then(|request| Ok((request, deadline?))) {
        Ok((request, deadline)) => ControlFlow::Continue((review, request, deadline)),
        Err(error) => {
            state.metrics.record_bad_request();
            tracing::warn!(uid = truncated(review.uid()), %error, "bad request");
            ControlFlow::Break(Ok(json_response(&review.bad_request_response(error))))
        }
    }
}

/// Reads a review with only the header of the stored pod. This is the fast path for pods without etcd, which are the
/// majority of deleted pods.
fn read_header<'a>(body: &'a ReviewBody<'_>) -> Option<(Review<'a>, Option<PodHeader<'a>>)> {
    // A body with the text `etcd` probably requires a full evaluation. The fast path would only add work.
    let text = body.text().filter(|text| ETCD.find(text.as_bytes()).is_none())?;
    Review::read_with_header(text)
}

/// Logs one line per verdict. Verdicts of the fast path have the level `debug`, because they are the majority, and would hide the
/// verdicts on members. The line contains no part of the body except names.
pub(super) fn log_verdict(uid: &str, request: &Request, verdict: &Verdict, elapsed: Duration) {
    let tally = verdict.tally.as_ref();
    // The level of an event is a constant of its call site, therefore each level needs its own call.
    macro_rules! log {
        ($level:ident) => {
            tracing::$level!(
                uid = truncated(uid),
                namespace = request.namespace,
                pod = request.name,
                operation = spans::operation_name(request.operation),
                user = request.user,
                dry_run = request.dry_run,
                grace_period_seconds = request.grace_period_seconds,
                verdict = verdict.outcome(),
                reason = verdict.reason.as_str(),
                cluster = verdict.cluster,
                voters = tally.map(|tally| tally.voters),
                healthy = tally.map(|tally| tally.healthy),
                quorum = tally.map(|tally| tally.quorum),
                message = verdict.message,
                elapsed_ms = elapsed.as_secs_f64() * 1000.0,
            )
        };
    }
    if request.runs_no_etcd() { log!(debug) } else { log!(info) }
}
