//! The admission webhooks: `POST /validate` and `POST /mutate`.

#[cfg(any(test, feature = "fixtures"))]
pub(crate) mod fuzzing;
mod http_request;
pub(crate) mod http_response;
pub(crate) mod metrics;
mod mutate;
pub(crate) mod mutator;
#[cfg(any(test, feature = "fixtures"))]
pub mod outputs;
mod pod_names;
pub(crate) mod review;
mod review_response;
mod spans;
pub(crate) mod state;
mod validate;

use std::sync::Arc;

use axum::{Router, routing::post};

use self::state::WebhookState;

/// Returns the routes that the API server calls.
pub(super) fn routes(state: Arc<WebhookState>) -> Router {
    Router::new()
        .route("/validate", post(validate::validate))
        .route("/mutate", post(mutate::mutate))
        .with_state(state)
}
