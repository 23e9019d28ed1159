//! Query parameters and bodies of HTTP requests, within limits of size and time.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{
    body::{Bytes, HttpBody, to_bytes},
    extract::Request,
};
use http::{StatusCode, header};
use serde::Deserialize;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::http_response::Rejection;
use crate::slots::{ReviewInProgress, Usage};
use etcd_guard_core::objects::admission::truncated;
use etcd_guard_guard::Deadline;

/// Maximum size of a body in bytes. The API server accepts objects of 3 MiB, and an update contains two.
const MAX_BODY_SIZE: usize = 8 << 20;

/// Bodies up to this size in bytes are read without a limit on their number. A review of a pod has about 10 KB. With
/// one body per connection, small bodies occupy up to 32 MiB.
const SMALL_BODY_SIZE: usize = 64 << 10;

/// Maximum total size in bytes of the larger bodies that are processed concurrently: two bodies of the maximum size. A
/// parsed body requires a multiple of its size. Further bodies wait. Without this limit a few callers with large bodies
/// could exhaust the memory of the server, which may be limited to 128 MiB.
const MAX_LARGE_BODIES_SIZE: usize = 2 * MAX_BODY_SIZE;

/// Timeout for receiving a body. The API server has the whole body before it connects.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads bodies, and limits the memory of bodies that are processed concurrently.
pub(crate) struct BodyReader {
    large_bodies: Arc<Semaphore>,
}

/// A body, with its share of [`MAX_LARGE_BODIES_SIZE`].
pub(crate) struct RequestBody {
    pub(crate) bytes: Bytes,
    /// The use of the connection; absent in tests without a connection.
    usage: Option<Arc<Usage>>,
    review: OnceLock<ReviewInProgress>,
    _permit: Option<OwnedSemaphorePermit>,
}

/// The query parameters of `/validate` and `/mutate`.
#[derive(Deserialize)]
pub(super) struct QueryParameters {
    /// The remaining time of the API server's call, in Go's notation: `10s`, `1m0s`.
    #[serde(default)]
    timeout: Option<String>,
}

fn is_too_large(error: &axum::Error) -> bool {
    std::error::Error::source(error)
        .is_some_and(<dyn std::error::Error>::is::<http_body_util::LengthLimitError>)
}

// === impl BodyReader ===

impl BodyReader {
    pub(super) fn new() -> Self {
        Self { large_bodies: Arc::new(Semaphore::new(MAX_LARGE_BODIES_SIZE)) }
    }

    /// Waits until a body of this size may be read. Small bodies need no permit.
    async fn acquire(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let permits = u32::try_from(bytes).ok().filter(|_| bytes > SMALL_BODY_SIZE)?;
        // An error would mean that the semaphore was closed, which never happens.
        Arc::clone(&self.large_bodies).acquire_many_owned(permits).await.ok()
    }

    /// Reads the body of a request with the content type `application/json`.
    pub(crate) async fn read(&self, request: Request) -> Result<RequestBody, Rejection> {
        let (mut head, body) = request.into_parts();
        let usage = head.extensions.remove::<Arc<Usage>>();
        let content_type = head.headers.get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        if !media_type.eq_ignore_ascii_case("application/json") {
            let message = format!("content type {content_type:?} is not supported; use application/json");
            return Err(Rejection::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let read = async {
            let size = body.size_hint().upper().and_then(|size| usize::try_from(size).ok());
            let permit = self.acquire(size.unwrap_or(MAX_BODY_SIZE).min(MAX_BODY_SIZE)).await;
            (permit, to_bytes(body, MAX_BODY_SIZE).await)
        };
        match timeout(BODY_TIMEOUT, read).await {
            Ok((permit, Ok(bytes))) => {
                Ok(RequestBody { bytes, usage, review: OnceLock::new(), _permit: permit })
            }
            Ok((_, Err(error))) if is_too_large(&error) => {
                let message = format!("the body is larger than {} MiB", MAX_BODY_SIZE >> 20);
                Err(Rejection::new(StatusCode::PAYLOAD_TOO_LARGE, message))
            }
            Ok((_, Err(error))) => {
                Err(Rejection::new(StatusCode::BAD_REQUEST, format!("failed to read the body: {error}")))
            }
            Err(_) => {
                let message =
                    format!("the body did not arrive within {}", humantime::format_duration(BODY_TIMEOUT));
                Err(Rejection::new(StatusCode::REQUEST_TIMEOUT, message))
            }
        }
    }
}

// === impl RequestBody ===

impl RequestBody {
    /// Registers that the body is a valid review, so that its connection is not closed for another one.
    pub(super) fn mark_valid(&self) {
        if let Some(usage) = &self.usage {
            self.review.get_or_init(|| usage.start_review());
        }
    }
}

// === impl QueryParameters ===

impl QueryParameters {
    /// Returns the deadline of the response.
    pub(super) fn deadline(&self) -> Result<Deadline, String> {
        let timeout = self.timeout.as_deref().map(humantime::parse_duration).transpose();
        timeout.map(Deadline::from_timeout).map_err(|error| {
            let text = truncated(self.timeout.as_deref().unwrap_or_default());
            format!("timeout={text:?} is not a duration such as 10s or 1m0s: {error}")
        })
    }
}
