//! The admission webhooks: `POST /validate` and `POST /mutate`.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod http_request;
pub(super) mod http_response;
pub(super) mod metrics;
mod mutate;
pub(super) mod mutator;
#[cfg(test)]
pub(crate) mod outputs;
mod pod_names;
pub(super) mod review;
mod review_response;
mod spans;
pub(super) mod state;
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
