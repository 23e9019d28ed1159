//! `POST /validate`: deletions, evictions, workload operations, and the names of new pods.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use axum::{
    extract::{Query, Request as HttpRequest, State},
    response::Response,
};
use futures::FutureExt;
use http::StatusCode;
use memchr::memmem;
use tokio::time::Instant;
use tracing::Instrument;

use super::{
    http_request::{QueryParameters, RequestBody},
    http_response::{Rejection, json_response},
    pod_names,
    review::Review,
    spans,
    state::WebhookState,
};
use etcd_guard_core::{
    objects::admission::truncated,
    reason::Reason,
    request::{Operation, Request},
    verdict::Verdict,
};
use etcd_guard_guard::Deadline;

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
    body: &RequestBody,
    deadline: Result<Deadline, String>,
) -> Result<Response, Rejection> {
    let started = Instant::now();
    let review = match Review::read(&body.bytes) {
        Ok(review) => review,
        Err(error) => return state.reject(&error),
    };
    if pod_names::is_pod_creation(&review.request) {
        body.mark_valid();
        return Ok(pod_names::check_name(state, &review, started));
    }
    let request = Request::from_admission(&review.request).map_err(|error| error.to_string());
    let (request, deadline) = match request.and_then(|request| Ok((request, deadline?))) {
        Ok(valid) => valid,
        Err(error) => {
            state.metrics.record_bad_request();
            tracing::warn!(uid = truncated(review.uid()), %error, "bad request");
            return Ok(json_response(&review.bad_request_response(error)));
        }
    };
    body.mark_valid();
    let verdict = state.guard.evaluate(&request, deadline).await;
    state.metrics.record_verdict(request.operation, &verdict, started.elapsed());
    let is_unrelated = request.operation == Operation::Delete
        && verdict.reason == Reason::NotEtcd
        && memmem::find(&body.bytes, b"etcd").is_none();
    log_verdict(review.uid(), &request, &verdict, is_unrelated, started.elapsed());
    spans::record_verdict(review.uid(), &request, &verdict);
    Ok(json_response(&review.verdict_response(&verdict, request.operation, &state.manual)))
}

/// Logs one line per verdict. Deletions of unrelated pods, which do not mention etcd, have the level `debug`: they are the
/// majority, and would hide the verdicts on members. The line contains no part of the body except names.
pub(super) fn log_verdict(
    uid: &str,
    request: &Request,
    verdict: &Verdict,
    is_unrelated: bool,
    elapsed: Duration,
) {
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
                message = verdict.line(),
                elapsed_ms = elapsed.as_secs_f64() * 1000.0,
            )
        };
    }
    if is_unrelated { log!(debug) } else { log!(info) }
}
