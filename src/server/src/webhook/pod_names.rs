//! Validation of the names of new pods (CREATE on `/validate`).

use axum::response::Response;
use serde::Deserialize;
use tokio::time::Instant;

use super::{
    http_response::json_response, metrics::WebhookEntry, mutator::Mutation, review::Review, spans,
    state::WebhookState,
};
use etcd_guard_core::objects::admission::{AdmissionRequest, truncated};
use etcd_guard_inject::pod_names::check_pod_name;

/// Reason code of a denial.
const FORBIDDEN_NAME: &str = "ForbiddenName";

#[derive(Default, Deserialize)]
struct Pod {
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    generate_name: String,
}

/// Returns whether a request on `/validate` creates a pod.
pub(super) fn is_pod_creation(request: &AdmissionRequest<'_>) -> bool {
    request.operation == "CREATE"
        && request.resource.group.is_empty()
        && request.resource.resource == "pods"
        && request.sub_resource.as_deref().unwrap_or_default().is_empty()
}

/// Evaluates the name of a new pod.
pub(super) fn check_name(state: &WebhookState, review: &Review<'_>, started: Instant) -> Response {
    let (config, request) = (state.mutator.config(), &review.request);
    // An unreadable pod has no name that the rule could forbid.
    let pod: Pod =
        request.object.and_then(|object| serde_json::from_str(object.get()).ok()).unwrap_or_default();
    let Metadata { name, generate_name } = pod.metadata;
    let result = config.pod_names.as_ref().map_or(Ok(()), |rule| check_pod_name(&name, &generate_name, rule));
    let mutation = match result {
        Ok(()) => Mutation::unchanged(WebhookEntry::Rules, "NameAllowed"),
        Err(forbidden) => {
            let message = format!("{FORBIDDEN_NAME}: {forbidden}");
            Mutation::denied(WebhookEntry::Rules, FORBIDDEN_NAME, message)
        }
    };
    let (reason, allowed) = (mutation.reason, mutation.denial.is_none());
    state.metrics.record_result(mutation.entry, allowed, reason, started.elapsed());
    spans::record_result(request, allowed, reason);
    if !allowed {
        let namespace = request.namespace.as_deref().unwrap_or_default();
        let (uid, namespace, pod) = (truncated(review.uid()), truncated(namespace), truncated(&name));
        tracing::info!(uid, namespace, pod, verdict = "denied", reason);
    }
    json_response(&review.mutation_response(mutation))
}
