//! HTTP responses: reviews, and errors for requests that contain no review.

use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};

use super::review_response::ReviewResponse;
use etcd_guard_core::escape::{MAX_TEXT_CHARS, into_bounded_line};

/// An HTTP error with a plain-text message.
pub(crate) struct Rejection(StatusCode, String);

/// Returns HTTP 200 with this review.
pub(super) fn json_response(review: &ReviewResponse<'_>) -> Response {
    match serde_json::to_vec(review) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => Rejection::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

// === impl Rejection ===

impl Rejection {
    /// Creates an error, with the message escaped and cut: it can contain texts of the request.
    pub(crate) fn new(status: StatusCode, message: String) -> Self {
        Self(status, into_bounded_line(message, MAX_TEXT_CHARS))
    }

    pub(crate) fn bad_request(message: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }
}

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        let Self(status, message) = self;
        (status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], message + "\n").into_response()
    }
}
