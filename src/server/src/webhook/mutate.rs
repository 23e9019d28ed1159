//! `POST /mutate`: new pods, evictions, and updates of node status.
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
use etcd_guard_core::{
    objects::admission::{AdmissionRequest, truncated},
    request::Request as EvaluatedRequest,
};
use etcd_guard_guard::Deadline;

/// Maximum length of a warning in characters. kubectl prints a warning on one line, and the API server drops warnings
/// beyond a total size.
const MAX_WARNING_LENGTH: usize = 120;

/// Maximum number of values in an object. A map of one member takes 7 bytes of a body and 0.6 KB of memory, so that a forged
/// review of 8 MiB could exhaust the memory; this limit is 32 MB. Pods have some hundred values.
const MAX_VALUES: usize = 50_000;

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
        ("CREATE", "pods", "eviction") if is_core => match read_object(request.object) {
            Some(eviction) => add_uid(state, request, &eviction, deadline).await,
            None => unreadable(WebhookEntry::Uid),
        },
        _ => {
            let warning = "etcd-guard mutates only new pods, evictions and nodes/status; \
                           correct the rules of its webhook configuration";
            Mutation::admitted(WebhookEntry::Unknown, "NotOurs", warning)
        }
    }
}

/// Adds the uid of its pod to an eviction. The API server evicts by name, without another review, and can do so seconds after
/// this review, when another pod has the name.
async fn add_uid(
    state: &WebhookState,
    request: &AdmissionRequest<'_>,
    eviction: &Value,
    deadline: Deadline,
) -> Mutation {
    let Ok(evicted) = EvaluatedRequest::from_admission(request) else {
        return Mutation::admitted(WebhookEntry::Uid, "Unreadable", "the eviction is not readable");
    };
    if !evicted.is_by_name() {
        return Mutation::unchanged(WebhookEntry::Uid, "UidPresent");
    }
    match state.guard.uid_for_eviction(&evicted.namespace, &evicted.name, deadline).await {
        Some(uid) => Mutation::with_uid(eviction, &uid),
        None => Mutation::unchanged(WebhookEntry::Uid, "UidUnknown"),
    }
}

/// Parses an object. `None` if it is absent, unreadable or too large, or if the object or its metadata is no map.
fn read_object(object: Option<&RawValue>) -> Option<Value> {
    let text = object?.get();
    // The number of these characters is at least that of the maps and lists and their further members.
    if text.bytes().filter(|byte| matches!(byte, b'{' | b'[' | b',')).count() > MAX_VALUES {
        return None;
    }
    let object: Value = serde_json::from_str(text).ok()?;
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
    // The verdict on an eviction is logged as well.
    let is_frequent = matches!(request.sub_resource.as_deref(), Some("eviction" | "status"));
    if is_unchanged || is_frequent && mutation.warnings.is_empty() {
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

#[cfg(test)]
mod tests {
    use serde_json::{json, value::to_raw_value};

    use super::*;

    fn read(object: &Value) -> Option<Value> {
        read_object(Some(&to_raw_value(object).unwrap()))
    }

    #[test]
    fn reads_only_maps_with_metadata_that_is_a_map() {
        for odd in [json!([]), json!("x"), json!(null), json!({"metadata": []})] {
            assert_eq!(read(&odd), None, "{odd}");
        }
        for bare in [json!({}), json!({"metadata": null}), json!({"metadata": {"name": "a"}})] {
            assert_eq!(read(&bare), Some(bare));
        }
        assert_eq!(read_object(None), None);
    }

    #[test]
    fn limits_number_of_values() {
        let of = |values: usize| json!({"metadata": {}, "maps": vec![json!({"a": 1}); values]});
        assert!(read(&of(10_000)).is_some());
        assert_eq!(read(&of(MAX_VALUES)), None);
    }
}
