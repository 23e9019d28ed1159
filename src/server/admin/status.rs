//! `GET /status`: the status of the guarded clusters.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Query, State},
    response::Response,
};
use serde::Deserialize;

use super::{answer::answer, loopback::EVALUATION_TIMEOUT};
use crate::{
    guard::Deadline,
    server::webhook::{http_response::Rejection, state::WebhookState},
};

/// Timeout of the status of all namespaces: 1,000 clusters need about four seconds of a machine with two cores.
const ALL_NAMESPACES_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
pub(super) struct StatusParameters {
    /// Limits the result to this namespace.
    #[serde(default)]
    namespace: Option<String>,
}

pub(super) async fn status(
    State(state): State<Arc<WebhookState>>,
    Query(StatusParameters { namespace }): Query<StatusParameters>,
) -> Result<Response, Rejection> {
    let limit = if namespace.is_some() { EVALUATION_TIMEOUT } else { ALL_NAMESPACES_TIMEOUT };
    let deadline = Deadline::after(limit);
    answer(&state.guard.survey(namespace.as_deref(), deadline).await)
}
