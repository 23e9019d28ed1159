//! The admin port, plain HTTP: liveness, readiness and metrics for every client, and for loopback clients the preview
//! of a verdict and the status of the guarded clusters.

pub(crate) mod answer;
pub(crate) mod health;
mod loopback;
mod metrics;
#[cfg(any(test, feature = "fixtures"))]
pub mod outputs;
pub(crate) mod preview;
pub(crate) mod process;
mod status;

use std::sync::Arc;

use axum::{
    Router, middleware,
    routing::{get, post},
};

use self::{health::HealthState, loopback::require_loopback};
use super::webhook::state::WebhookState;

/// Returns the routes of the admin port.
pub(super) fn routes(health: HealthState, state: Arc<WebhookState>) -> Router {
    let loopback_only = Router::new()
        .route("/check", post(preview::preview))
        .route("/status", get(status::status))
        .with_state(state)
        .layer(middleware::from_fn(require_loopback));
    Router::new()
        .route("/livez", get(health::livez))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(metrics::metrics))
        .with_state(health)
        .merge(loopback_only)
}
