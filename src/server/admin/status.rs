//! `GET /status`: the status of the guarded clusters.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Query, State},
};
use serde::Deserialize;

use super::loopback::EVALUATION_TIMEOUT;
use crate::{
    guard::{Deadline, Survey},
    server::webhook::state::WebhookState,
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
) -> Json<Survey> {
    Json(state.guard.survey(namespace.as_deref(), Deadline::from_timeout(Some(EVALUATION_TIMEOUT))).await)
}
