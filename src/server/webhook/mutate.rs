//! `POST /mutate`: new pods, and updates of node status.
//!
//! An internal error never denies a request here: the object is admitted unchanged, with a warning. Only a rule of the
//! configuration can deny a pod.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Query, Request, State},
    response::Response,
};
use tokio::time::Instant;
use tracing::Instrument;

use super::{
    http_request::QueryParameters,
    http_response::{Rejection, json_response},
    metrics::WebhookEntry,
    mutator::{MutationOutcome, Mutator},
    objects::Objects,
    review::{Review, ReviewBody},
    review_response::Mutation,
    spans,
    state::WebhookState,
};
use crate::{
    config::Config,
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
    // Parsing and evaluation use the same configuration, even if it is reloaded in between.
    let config = state.mutator.config();
    let received = body;
    let body = ReviewBody::new(&received.bytes);
    let (review, objects) = match Review::read_with_objects(&body, &config.sidecars.variables) {
        Ok(read) => read,
        Err(error) => return state.reject(&error),
    };
    let request = match review.request() {
        Ok(request) => request,
        Err(error) => {
            state.metrics.record_bad_request();
            let message = format!("the request of the AdmissionReview is not readable: {error}");
            return Ok(json_response(&review.bad_request_response(message)));
        }
    };
    received.mark_valid();
    let MutationOutcome { entry, reason, mut mutation } =
        evaluate(state, &config, request, objects, deadline).await;
    state.metrics.record_result(entry, mutation.denial.is_none(), reason, started.elapsed());
    log(review.uid(), request, reason, &mutation, started.elapsed());
    spans::record_result(review.uid(), request, mutation.denial.is_none(), reason);
    for warning in &mut mutation.warnings {
        truncate(warning);
    }
    mutation.reason = reason.to_owned();
    Ok(json_response(&review.mutation_response(&mut mutation)))
}

async fn evaluate(
    state: &WebhookState,
    config: &Config,
    request: &AdmissionRequest<'_>,
    objects: Objects<'_>,
    deadline: Deadline,
) -> MutationOutcome {
    let sub_resource = request.sub_resource.as_deref().unwrap_or_default();
    let is_core = request.resource.group.is_empty();
    let entry = match (request.operation.as_ref(), request.resource.resource.as_ref(), sub_resource) {
        ("CREATE", "pods", "") if is_core => WebhookEntry::Inject,
        ("UPDATE", "nodes", "status") if is_core => WebhookEntry::Nodes,
        _ => {
            let warning = "etcd-guard mutates only new pods and nodes/status; \
                           correct the rules of its webhook configuration";
            return MutationOutcome::admitted(WebhookEntry::Unknown, "NotOurs", warning);
        }
    };
    match (entry, objects.new) {
        (entry, None) => {
            MutationOutcome::admitted(entry, "Unreadable", "the request's object is not readable")
        }
        (WebhookEntry::Nodes, Some(node)) => Mutator::mutate_node(node, objects.stored.as_ref(), config),
        (_, Some(pod)) => state.mutator.mutate_pod(request, pod, config, &state.metrics, deadline).await,
    }
}

/// Logs one line per object. The level is info for changed objects and for warnings; it is debug for unchanged objects
/// and for status updates without warnings.
fn log(uid: &str, request: &AdmissionRequest<'_>, reason: &str, mutation: &Mutation, elapsed: Duration) {
    let patch_bytes = mutation.patch.as_ref().map_or(0, Vec::len);
    let verdict = if mutation.denial.is_none() { "allowed" } else { "denied" };
    let is_unchanged = mutation.patch.is_none() && mutation.denial.is_none() && mutation.warnings.is_empty();
    if is_unchanged || request.sub_resource.as_deref() == Some("status") && mutation.warnings.is_empty() {
        tracing::debug!(uid = truncated(uid), reason, "mutation without warnings");
        return;
    }
    tracing::info!(
        uid = truncated(uid),
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
