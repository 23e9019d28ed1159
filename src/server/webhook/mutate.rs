//! `POST /mutate`: new pods, and updates of node status.
//!
//! An internal error never denies a request here: the object is admitted unchanged, with a warning. Only a rule of the
//! configuration can deny a pod.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Query, Request, State},
    response::Response,
};
use serde_json::{Value, value::RawValue};
use tokio::time::Instant;
use tracing::Instrument;

use super::{
    http_request::QueryParameters,
    http_response::{Rejection, json_response},
    metrics::WebhookEntry,
    mutator::{Mutation, Mutator},
    review::Review,
    spans,
    state::WebhookState,
};
use crate::{
    guard::Deadline,
    k8s::admission::{AdmissionRequest, truncated},
};

/// Maximum length of a warning in characters. kubectl prints a warning on one line, and the API server drops warnings
/// beyond a total size.
const MAX_WARNING_LENGTH: usize = 120;

pub(super) async fn mutate(
    State(state): State<Arc<WebhookState>>,
    Query(parameters): Query<QueryParameters>,
    request: Request,
) -> Result<Response, Rejection> {
    let span = spans::start_review("POST /mutate", request.headers());
    handle(&state, parameters, request).instrument(span).await
}

async fn handle(
    state: &WebhookState,
    parameters: QueryParameters,
    request: Request,
) -> Result<Response, Rejection> {
    let deadline = parameters.deadline().map_err(Rejection::bad_request)?;
    let body = state.body_reader.read(request).await?;
    let started = Instant::now();
    let review = match Review::read(&body.bytes) {
        Ok(review) => review,
        Err(error) => return state.reject(&error),
    };
    body.mark_valid();
    let mut mutation = evaluate(state, &review.request, deadline).await;
    let (elapsed, allowed) = (started.elapsed(), mutation.denial.is_none());
    state.metrics.record_result(mutation.entry, allowed, mutation.reason, elapsed);
    log(&review.request, &mutation, elapsed);
    spans::record_result(&review.request, allowed, mutation.reason);
    mutation.warnings.iter_mut().for_each(truncate);
    Ok(json_response(&review.mutation_response(mutation)))
}

async fn evaluate(state: &WebhookState, request: &AdmissionRequest<'_>, deadline: Deadline) -> Mutation {
    let sub_resource = request.sub_resource.as_deref().unwrap_or_default();
    let is_core = request.resource.group.is_empty();
    let config = state.mutator.config();
    let unreadable = |entry| Mutation::admitted(entry, "Unreadable", "the request's object is not readable");
    match (request.operation.as_ref(), request.resource.resource.as_ref(), sub_resource) {
        ("CREATE", "pods", "") if is_core => match read_object(request.object) {
            Some(pod) => state.mutator.mutate_pod(request, pod, &config, &state.metrics, deadline).await,
            None => unreadable(WebhookEntry::Inject),
        },
        ("UPDATE", "nodes", "status") if is_core => match read_object(request.object) {
            Some(node) => Mutator::mutate_node(node, read_object(request.old_object).as_ref(), &config),
            None => unreadable(WebhookEntry::Nodes),
        },
        _ => {
            let warning = "etcd-guard mutates only new pods and nodes/status; \
                           correct the rules of its webhook configuration";
            Mutation::admitted(WebhookEntry::Unknown, "NotOurs", warning)
        }
    }
}

/// Parses an object. `None` if it is absent or unreadable, or if the object or its metadata is no map.
fn read_object(object: Option<&RawValue>) -> Option<Value> {
    let object: Value = serde_json::from_str(object?.get()).ok()?;
    let has_metadata =
        object.get("metadata").is_none_or(|metadata| metadata.is_object() || metadata.is_null());
    (object.is_object() && has_metadata).then_some(object)
}

/// Logs one line per object. The level is info for changed objects and for warnings; it is debug for unchanged objects
/// and for status updates without warnings.
fn log(request: &AdmissionRequest<'_>, mutation: &Mutation, elapsed: Duration) {
    let (uid, reason) = (truncated(&request.uid), mutation.reason);
    let patch_bytes = mutation.patch.as_ref().map_or(0, Vec::len);
    let verdict = if mutation.denial.is_none() { "allowed" } else { "denied" };
    let is_unchanged = mutation.patch.is_none() && mutation.denial.is_none() && mutation.warnings.is_empty();
    if is_unchanged || request.sub_resource.as_deref() == Some("status") && mutation.warnings.is_empty() {
        tracing::debug!(uid, reason, "mutation without warnings");
        return;
    }
    tracing::info!(
        uid,
        namespace = request.namespace.as_deref().map(truncated),
        name = request.name.as_deref().map(truncated),
        resource = truncated(&request.resource.resource),
        user = truncated(&request.user_info.username),
        dry_run = request.dry_run,
        verdict,
        reason,
        patch_bytes,
        warnings = mutation.warnings.len(),
        elapsed_ms = elapsed.as_secs_f64() * 1000.0,
    );
}

fn truncate(warning: &mut String) {
    if let Some((end, _)) = warning.char_indices().nth(MAX_WARNING_LENGTH) {
        warning.truncate(end);
    }
}
