//! Invariants of the handling of arbitrary webhook bodies.

#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "fuzzers detect failures by panics")]

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    objects::Objects,
    review::{Review, ReviewBody, ReviewError},
    review_response::{Mutation, ReviewResponse},
};
use crate::{
    guard::{Operation, Request, fuzzing::assert_unrelated},
    k8s::admission::AdmissionRequest,
};

/// Checks a body of `POST /validate` or `POST /mutate`: all parsers read the same fields, a body with a uid gets a
/// response with that uid, and a valid request contains valid Kubernetes names.
///
/// # Panics
///
/// If an invariant is violated.
pub fn review(body: &[u8]) {
    let review_body = ReviewBody::new(body);
    let read = Review::read(&review_body);
    let with_objects = Review::read_with_objects(&review_body, &BTreeSet::new());
    assert_eq!(describe(with_objects.as_ref().map(|(review, _)| review)), describe(read.as_ref()));
    assert_header_matches(&review_body, read.as_ref());
    assert_pod_matches(&review_body, read.as_ref());
    let uid = uid_in(body);
    let review = match &read {
        Ok(review) => review,
        Err(error) => {
            assert_response(error.to_response().as_ref(), uid.as_deref(), false);
            return;
        }
    };
    let request = match review.request() {
        Ok(request) => Request::from_admission(request).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match request {
        Ok(request) => assert_names(&request),
        Err(error) => assert_response(Some(&review.bad_request_response(error)), uid.as_deref(), false),
    }
    let mut mutation = Mutation { patch: Some(b"[]".to_vec()), ..Mutation::default() };
    assert_response(Some(&review.mutation_response(&mut mutation)), uid.as_deref(), true);
    if let Ok((_, Objects { new, stored })) = with_objects {
        for object in new.iter().chain(&stored) {
            assert!(object.as_map().is_some(), "an object is a map: {object:?}");
        }
    }
}

/// Describes a review by the fields that all parsers read. Objects and options are read by one parser only.
fn describe(read: Result<&Review<'_>, &ReviewError>) -> String {
    let review = match read {
        Ok(review) => review,
        Err(error) => return format!("{error:?}"),
    };
    let request = review.request().map(|request| {
        let AdmissionRequest { uid, resource, sub_resource, name, namespace, operation, .. } = request;
        let names = (uid, resource, sub_resource, name, namespace, operation);
        format!("{:?}", (names, &request.user_info, request.dry_run))
    });
    format!("{} {request:?}", review.uid())
}

/// Checks that the fast path, which reads only the header of the pod, produces the same request as the complete parser.
fn assert_header_matches(body: &ReviewBody<'_>, read: Result<&Review<'_>, &ReviewError>) {
    let read_header = body.text().and_then(Review::read_with_header);
    let Some((review, pod)) = read_header else { return };
    let Some(pod) = pod else {
        assert_eq!(describe(Ok(&review)), describe(read), "a review without a stored pod");
        return;
    };
    let Some(fast_path) = review.request().ok().and_then(|request| pod.request_if_unrelated(request)) else {
        return;
    };
    assert_eq!(Some(review.uid()), read.ok().map(Review::uid));
    let complete = read.ok().and_then(|review| review.request().ok()).expect("a readable request");
    // The fast path ignores errors in fields that it does not read.
    let Ok(complete) = Request::from_admission(complete) else { return };
    assert_eq!(names(&fast_path), names(&complete));
    assert_eq!(fast_path.operation, Operation::Delete);
    assert_unrelated(&pod, complete.pod.as_ref().expect("the pod of the header"));
}

/// Checks that a pod that is parsed together with its review gives the same request as the same pod parsed separately.
fn assert_pod_matches(body: &ReviewBody<'_>, read: Result<&Review<'_>, &ReviewError>) {
    let read_with_pod = Review::read_with_pod(body);
    assert_eq!(describe(read_with_pod.as_ref().map(|(review, _)| review)), describe(read));
    let Ok((review, Some(pod))) = read_with_pod else { return };
    let together = review.request().ok().map(|request| Request::from_pod_deletion(request, pod));
    let complete = read.ok().and_then(|review| review.request().ok());
    let separate = complete.map(Request::from_admission);
    assert_eq!(format!("{together:?}"), format!("{separate:?}"));
}

/// Describes all fields of a request except its pod.
fn names(request: &Request) -> String {
    let names = (&request.namespace, &request.name, &request.uid, &request.user);
    format!("{:?}", (request.operation, names, request.dry_run, request.grace_period_seconds))
}

/// Returns the uid as an independent JSON parser reads it.
fn uid_in(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    Some(body.get("request")?.get("uid")?.as_str()?.to_owned())
}

/// Checks that the API server would accept the response: a review of a supported version with the uid of the request.
fn assert_response(response: Option<&ReviewResponse<'_>>, uid: Option<&str>, allowed: bool) {
    let Some(response) = response else { return };
    let text = response.to_json().expect("a serializable response");
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
    assert!(request.pod.is_none() || request.operation == Operation::Delete, "{request:?}");
}
