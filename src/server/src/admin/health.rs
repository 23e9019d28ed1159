//! `GET /livez` and `GET /readyz`.

use std::sync::Arc;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::StatusCode;
use prometheus_client::registry::Registry;

use crate::readiness::Readiness;

/// The state of the health and metrics handlers.
#[derive(Clone)]
pub(crate) struct HealthState {
    pub(crate) readiness: Readiness,
    pub(crate) registry: Arc<Registry>,
}

pub(super) async fn livez() -> &'static str {
    "ok\n"
}

pub(super) async fn readyz(State(health): State<HealthState>) -> Response {
    match health.readiness.obstacle() {
        None => (StatusCode::OK, "ok\n").into_response(),
        // Status 500 as in the API server's own `/readyz`: kubectl prints the text of a 500, but not that of a 503.
        Some(obstacle) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{obstacle}\n")).into_response(),
    }
}
