//! Responses of the API server. `kube::Client::request` is not used: it logs a body that it cannot parse, and buffers
//! bodies of any size.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use kube::{Client, client::Body};
use serde::Deserialize;

use crate::error::{LookupError, error_message, root_cause};

/// Maximum size of the body of an error in bytes.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// A request, or the reason why it could not be built.
pub(super) type BuiltRequest = Result<Request<Vec<u8>>, kube::core::request::Error>;

/// A response that is not successful.
#[derive(Debug)]
pub(super) enum CallFailure {
    /// The resource version or the continue token of the request is too old (status 410).
    Expired(LookupError),
    /// All others.
    Other(LookupError),
}

/// `Status` (`meta/v1`), in part.
#[derive(Deserialize)]
struct Status {
    message: String,
}

/// Sends a request, and returns the body of a successful response.
pub(super) async fn send(client: &Client, subject: &str, request: BuiltRequest) -> Result<Body, CallFailure> {
    let failed = |cause| CallFailure::Other(LookupError::Failed { subject: subject.to_owned(), cause });
    let request = request.map_err(|error| failed(error.to_string()))?;
    let response = client.send(request.map(Body::from)).await;
    let response = response.map_err(|error| failed(error_message(&error)))?;
    let status = response.status();
    if status.is_success() {
        return Ok(response.into_body());
    }
    let body = Limited::new(response.into_body(), MAX_ERROR_BYTES).collect().await;
    let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let message = match serde_json::from_slice(&body) {
        Ok(Status { message }) => message,
        Err(_) if body.is_empty() => status.to_string(),
        Err(_) => String::from_utf8_lossy(&body).trim().to_owned(),
    };
    let subject = subject.to_owned();
    Err(match status {
        StatusCode::NOT_FOUND => CallFailure::Other(LookupError::NotFound { subject }),
        StatusCode::FORBIDDEN => CallFailure::Other(LookupError::Forbidden { subject, cause: message }),
        StatusCode::GONE => CallFailure::Expired(LookupError::Failed { subject, cause: message }),
        _ => CallFailure::Other(LookupError::Failed { subject, cause: message }),
    })
}

/// Returns a whole body of at most this many bytes.
pub(super) async fn collect(body: Body, subject: &str, limit: usize) -> Result<Bytes, LookupError> {
    match Limited::new(body, limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            let cause = format!("its body has more than {} MiB", limit >> 20);
            Err(LookupError::TooLarge { subject: subject.to_owned(), cause })
        }
        Err(error) => {
            Err(LookupError::Failed { subject: subject.to_owned(), cause: root_cause(error.as_ref()) })
        }
    }
}

// === impl CallFailure ===

impl From<LookupError> for CallFailure {
    fn from(error: LookupError) -> Self {
        Self::Other(error)
    }
}

impl From<CallFailure> for LookupError {
    fn from(failure: CallFailure) -> Self {
        match failure {
            CallFailure::Expired(error) | CallFailure::Other(error) => error,
        }
    }
}
