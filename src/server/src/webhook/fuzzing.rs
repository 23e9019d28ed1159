//! Invariants of the handling of arbitrary webhook bodies.

#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "fuzzers detect failures by panics")]

use serde_json::Value;

use super::{metrics::WebhookEntry, mutator::Mutation, review::Review, review_response::ReviewResponse};
use etcd_guard_core::request::{Operation, Request};

/// Checks a body of `POST /validate` or `POST /mutate`: a body with a uid gets a response with that uid, and a valid
/// request contains valid Kubernetes names.
///
/// # Panics
///
/// If an invariant is violated.
pub fn review(body: &[u8]) {
    let uid = uid_in(body);
    let review = match Review::read(body) {
        Ok(review) => review,
        Err(error) => {
            assert_response(error.to_response().as_ref(), uid.as_deref(), false);
            return;
        }
    };
    match Request::from_admission(&review.request) {
        Ok(request) => assert_names(&request),
        Err(error) => {
            let response = review.bad_request_response(error.to_string());
            assert_response(Some(&response), uid.as_deref(), false);
        }
    }
    let mut mutation = Mutation::unchanged(WebhookEntry::Inject, "Injected");
    mutation.patch = Some(b"[]".to_vec());
    assert_response(Some(&review.mutation_response(mutation)), uid.as_deref(), true);
}

/// Returns the uid as an independent JSON parser reads it.
fn uid_in(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    Some(body.get("request")?.get("uid")?.as_str()?.to_owned())
}

/// Checks that the API server would accept the response: a review of a supported version with the uid of the request.
fn assert_response(response: Option<&ReviewResponse<'_>>, uid: Option<&str>, allowed: bool) {
    let Some(response) = response else { return };
    let text = serde_json::to_vec(response).expect("a serializable response");
    let review: Value = serde_json::from_slice(&text).expect("a response in JSON");
    let response = &review["response"];
    assert_eq!(review["kind"], "AdmissionReview");
    let versions = ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"];
    assert!(versions.iter().any(|version| review["apiVersion"] == **version));
    assert_eq!(response["allowed"], allowed);
    assert!(response["uid"].as_str().is_some_and(|uid| !uid.is_empty()), "{review}");
    if uid.is_some() {
        assert_eq!(response["uid"].as_str(), uid);
    }
    assert_eq!(response.get("patch").is_some(), response.get("patchType").is_some());
    assert_eq!(response["patch"].is_string(), allowed);
}

/// Checks that names contain no special characters: they are used in API paths and printed to terminals.
fn assert_names(request: &Request) {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    let is_plain = |name: &str| !name.is_empty() && name.bytes().all(is_allowed);
    assert!(is_plain(&request.name), "{request:?}");
    assert!(is_plain(&request.namespace), "{request:?}");
    let has_copy = matches!(request.operation, Operation::Delete | Operation::Update(_));
    assert!(request.pod.is_none() || has_copy, "{request:?}");
}
