//! The state that the request handlers share.

use std::sync::Arc;

use axum::response::Response;
use http::StatusCode;

use super::{
    http_request::BodyReader,
    http_response::{Rejection, json_response},
    metrics::Metrics,
    mutator::Mutator,
    review::ReviewError,
};
use etcd_guard_core::documentation::Manual;
use etcd_guard_guard::Guard;

/// The state of the webhook handlers, and of the preview on the admin port.
pub(crate) struct WebhookState {
    pub(crate) guard: Arc<Guard>,
    pub(crate) body_reader: BodyReader,
    pub(super) mutator: Mutator,
    pub(super) metrics: Metrics,
    /// Where denials lead their readers.
    pub(crate) manual: Manual,
}

// === impl WebhookState ===

impl WebhookState {
    pub(crate) fn new(guard: Arc<Guard>, mutator: Mutator, metrics: Metrics, manual: Manual) -> Self {
        Self { guard, body_reader: BodyReader::new(), mutator, metrics, manual }
    }

    /// Counts and logs a body that is not an AdmissionReview, and returns the response: a denial of its uid, or an HTTP
    /// error if it has no uid.
    pub(super) fn reject(&self, error: &ReviewError) -> Result<Response, Rejection> {
        self.metrics.record_bad_request();
        tracing::warn!(%error, "bad review");
        let rejection = || Rejection::new(StatusCode::BAD_REQUEST, error.to_string());
        error.to_response().map(|response| json_response(&response)).ok_or_else(rejection)
    }
}
