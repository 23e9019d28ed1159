//! `GET /status`: the status of the guarded clusters.

use std::sync::Arc;

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
    let deadline = Deadline::from_timeout(Some(EVALUATION_TIMEOUT));
    answer(&state.guard.survey(namespace.as_deref(), deadline).await)
}
