//! The responses, log lines and spans of the webhooks with foreign texts, for the test of all outputs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "values for tests: a failure is a panic"
)]

use std::{
    fmt::Debug,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::response::IntoResponse;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use prometheus_client::registry::Registry;
use tracing::{
    Subscriber,
    field::{Field, Visit},
    span::{Id, Record},
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
};

use super::{
    http_response::Rejection,
    metrics::{Metrics, WebhookEntry},
    mutator::Mutation,
    review::Review,
    review_response::ReviewResponse,
    spans::{record_result, record_verdict, start_review},
    validate::log_verdict,
};
use etcd_guard_core::{
    documentation::Manual,
    objects::admission::AdmissionRequest,
    request::{Operation, Request},
    verdict::Verdict,
};

const BODY: &str = r#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "1",
    "operation": "DELETE", "resource": {"group": "", "version": "v1", "resource": "pods"}}}"#;

fn json(response: &ReviewResponse<'_>) -> String {
    serde_json::to_string(response).unwrap()
}

fn respond(respond: impl FnOnce(&Review<'_>) -> String) -> String {
    respond(&Review::read(BODY.as_bytes()).unwrap())
}

/// Returns the response with a verdict.
pub fn verdict_response(verdict: &Verdict) -> String {
    respond(|review| json(&review.verdict_response(verdict, Operation::Delete, &Manual::default())))
}

/// Returns the response with a mutation whose denial and warning are this text.
pub fn mutation_response(text: &str) -> String {
    let mut mutation = Mutation::denied(WebhookEntry::Inject, "UnknownTemplate", text.to_owned());
    mutation.warnings.push(text.to_owned());
    respond(|review| json(&review.mutation_response(mutation)))
}

/// Returns the response to a malformed request.
pub fn bad_request_response(text: &str) -> String {
    respond(|review| json(&review.bad_request_response(text.to_owned())))
}

/// Returns the response to a body of another kind and version.
pub fn invalid_review_response(text: &str) -> String {
    let body = serde_json::json!({"apiVersion": text, "kind": text, "request": {"uid": "1"}}).to_string();
    json(&Review::read(body.as_bytes()).unwrap_err().to_response().unwrap())
}

/// Returns the body of an HTTP error with this message.
pub async fn http_error(text: &str) -> String {
    let response = Rejection::new(StatusCode::BAD_REQUEST, text.to_owned()).into_response();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

/// Logs a verdict, and an error with this text.
pub fn log(request: &Request, verdict: &Verdict, text: &str) {
    log_verdict(text, request, verdict, false, Duration::ZERO);
    tracing::warn!(error = %text, uid = text, "bad review");
    tracing::warn!(target: "library", error = %text, "failed: {text}");
}

/// The attributes that spans receive after their creation.
#[derive(Clone, Default)]
struct Attributes(Arc<Mutex<Vec<String>>>);

impl Visit for &Attributes {
    fn record_str(&mut self, _: &Field, value: &str) {
        self.0.lock().unwrap().push(value.to_owned());
    }

    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        self.0.lock().unwrap().push(format!("{value:?}"));
    }
}

impl<S: Subscriber> Layer<S> for Attributes {
    fn on_record(&self, _: &Id, values: &Record<'_>, _: Context<'_, S>) {
        values.record(&mut &*self);
    }
}

/// Returns the attributes of the spans of a verdict and of a mutation, whose request contains this text everywhere.
pub fn span_attributes(request: &Request, verdict: &Verdict, text: &str) -> Vec<String> {
    let attributes = Attributes::default();
    let subscriber = tracing_subscriber::registry().with(attributes.clone());
    let resource = serde_json::json!({"group": text, "version": text, "resource": text});
    let mutated = serde_json::json!({
        "uid": text, "namespace": text, "name": text, "operation": text, "resource": resource,
    })
    .to_string();
    tracing::subscriber::with_default(subscriber, || {
        start_review("validate", &HeaderMap::new()).in_scope(|| record_verdict(text, request, verdict));
        let mutated: AdmissionRequest<'_> = serde_json::from_str(&mutated).unwrap();
        start_review("mutate", &HeaderMap::new()).in_scope(|| record_result(&mutated, true, "Mutated"));
    });
    let attributes = attributes.0.lock().unwrap();
    assert!(attributes.len() > 15, "{}", attributes.len());
    attributes.clone()
}

/// Counts a verdict.
pub fn record_metrics(registry: &mut Registry, verdict: &Verdict) {
    Metrics::register(registry).record_verdict(Operation::Delete, verdict, Duration::ZERO);
}
