//! CREATE of pods on `/validate`: the rule about pods' names.

use axum::response::Response;
use serde::Deserialize;
use tokio::time::Instant;

use super::{
    metrics::Entry,
    review::{Mutation, Review},
    routes::{Webhooks, json},
    spans,
};
use crate::{k8s::admission::AdmissionRequest, rules::judge_name};

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

/// Whether a request on `/validate` is about a new pod.
pub(super) fn is_asked(request: &AdmissionRequest<'_>) -> bool {
    request.operation == "CREATE"
        && request.resource.group.is_empty()
        && request.resource.resource == "pods"
        && request.sub_resource.as_deref().unwrap_or_default().is_empty()
}

/// The answer to it.
pub(super) fn answer(
    webhooks: &Webhooks,
    review: &Review<'_>,
    request: &AdmissionRequest<'_>,
    started: Instant,
) -> Response {
    let config = webhooks.mutator.config();
    // A pod that cannot be read has no name that could be forbidden.
    let pod: Pod =
        request.object.and_then(|object| serde_json::from_str(object.get()).ok()).unwrap_or_default();
    let Metadata { name, generate_name } = pod.metadata;
    let judged = config.pod_names.as_ref().map_or(Ok(()), |rule| judge_name(&name, &generate_name, rule));
    let (reason, denial) = match judged {
        Ok(()) => ("NameAllowed", None),
        Err(forbidden) => ("ForbiddenName", Some(forbidden.to_string())),
    };
    let allowed = denial.is_none();
    webhooks.metrics.record_answer(Entry::Rules, allowed, reason, started.elapsed());
    spans::tell_answer(review.uid(), request, allowed, reason);
    if !allowed {
        let namespace = request.namespace.as_deref().unwrap_or_default();
        tracing::info!(uid = review.uid(), namespace, pod = name, verdict = "denied", reason);
    }
    let mut mutation = Mutation { denial, reason: reason.to_owned(), ..Mutation::default() };
    json(&review.answer_mutation(&mut mutation))
}
