//! The answers of the admin port with foreign texts, for the test of all outputs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "values for tests: a failure is a panic"
)]

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http_body_util::BodyExt;
use prometheus_client::{encoding::text::encode, registry::Registry};
use serde::{Serialize, de::DeserializeOwned};

use super::{answer::answer, preview::from_verdict};
use etcd_guard_api::Preview;
use etcd_guard_core::verdict::Verdict;

/// Returns the body of the response to `GET /status` or `POST /check` with these facts.
pub async fn body<T: Serialize + DeserializeOwned>(facts: &T) -> Vec<u8> {
    let response: Response = answer(facts).unwrap_or_else(IntoResponse::into_response);
    assert_eq!(response.status(), StatusCode::OK);
    response.into_body().collect().await.unwrap().to_bytes().to_vec()
}

/// Returns the preview of a verdict, as if no step had escaped it.
pub fn preview(verdict: &Verdict) -> Preview {
    from_verdict(verdict.clone(), Some(403))
}

/// Returns the page of `GET /metrics`.
pub fn metrics(registry: &Registry) -> String {
    let mut page = String::new();
    encode(&mut page, registry).unwrap();
    page
}
