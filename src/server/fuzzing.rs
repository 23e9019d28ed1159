//! What any body that a webhook may get must come to.

#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a fuzzer is told by a panic")]

use std::collections::BTreeSet;

use serde_json::Value;

use super::review::{Answer, Body, Mutation, Objects, Review, ReviewError};
use crate::{
    guard::{Operation, Request, fuzzing::assert_bystander},
    k8s::admission::AdmissionRequest,
};

/// A body of `POST /validate` or `/mutate`. All ways to read it read the same, whoever has a uid is answered to that
/// uid, and what becomes a request has names that Kubernetes has.
///
/// # Panics
///
/// Where that does not hold.
pub fn review(body: &[u8]) {
    let whole = Body::of(body);
    let read = Review::read(&whole);
    let with_objects = Review::read_with_objects(&whole, &BTreeSet::new());
    assert_eq!(told(with_objects.as_ref().map(|(review, _)| review)), told(read.as_ref()));
    assert_glance(&whole, read.as_ref());
    let uid = uid_in(body);
    let review = match &read {
        Ok(review) => review,
        Err(error) => {
            assert_answers(error.answer().as_ref(), uid.as_deref(), false);
            return;
        }
    };
    let question = match review.request() {
        Ok(request) => Request::read(request).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match question {
        Ok(question) => assert_names(&question),
        Err(error) => assert_answers(Some(&review.bad_request(error)), uid.as_deref(), false),
    }
    let mut mutation = Mutation { patch: Some(b"[]".to_vec()), ..Mutation::default() };
    assert_answers(Some(&review.answer_mutation(&mut mutation)), uid.as_deref(), true);
    if let Ok((_, Objects { new, stored })) = with_objects {
        for object in new.iter().chain(&stored) {
            assert!(object.as_map().is_some(), "an object is a map: {object:?}");
        }
    }
}

/// All that is done with a review, in words; objects and options are read in one way only.
fn told(read: Result<&Review<'_>, &ReviewError>) -> String {
    let review = match read {
        Ok(review) => review,
        Err(error) => return format!("{error:?}"),
    };
    let request = review.request().map(|it| {
        let AdmissionRequest { uid, resource, sub_resource, name, namespace, operation, .. } = it;
        let names = (uid, resource, sub_resource, name, namespace, operation);
        format!("{:?}", (names, &it.user_info, it.dry_run))
    });
    format!("{} {request:?}", review.uid())
}

/// Who deletes a pod is told apart by a glance at it, and where that is enough the rest is never read. What a request
/// comes to by it, it comes to as a whole.
fn assert_glance(body: &Body<'_>, read: Result<&Review<'_>, &ReviewError>) {
    let glanced = body.text().and_then(Review::read_with_glance);
    let Some((review, pod)) = glanced else { return };
    let Some(pod) = pod else {
        assert_eq!(told(Ok(&review)), told(read), "there was nothing to glance at");
        return;
    };
    let Some(passed) = review.request().ok().and_then(|it| pod.pass_by(it)) else { return };
    assert_eq!(Some(review.uid()), read.ok().map(Review::uid));
    let whole = read.ok().and_then(|it| it.request().ok()).expect("what a glance reads is readable");
    // A mistake in what it does not read goes unnoticed.
    let Ok(whole) = Request::read(whole) else { return };
    assert_eq!(names(&passed), names(&whole));
    assert_eq!(passed.operation, Operation::Delete);
    assert_bystander(&pod, whole.pod.as_ref().expect("the pod that was glanced at"));
}

/// All of a request but its pod, in words.
fn names(it: &Request) -> String {
    let who = (&it.namespace, &it.name, &it.uid, &it.user);
    format!("{:?}", (it.operation, who, it.dry_run, it.grace_period_seconds))
}

/// The uid as another reader finds it.
fn uid_in(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    Some(body.get("request")?.get("uid")?.as_str()?.to_owned())
}

/// An answer is what an apiserver accepts: a review of a version that it knows, for the uid that it asked with.
fn assert_answers(answer: Option<&Answer<'_>>, uid: Option<&str>, allowed: bool) {
    let Some(answer) = answer else { return };
    let text = answer.to_json().expect("an answer in JSON");
    let told: Value = serde_json::from_slice(&text).expect("an answer that is JSON");
    let response = &told["response"];
    assert_eq!(told["kind"], "AdmissionReview");
    assert!(["admission.k8s.io/v1", "admission.k8s.io/v1beta1"].iter().any(|it| told["apiVersion"] == **it));
    assert_eq!(response["allowed"], allowed);
    assert!(response["uid"].as_str().is_some_and(|it| !it.is_empty()), "{told}");
    if uid.is_some() {
        assert_eq!(response["uid"].as_str(), uid);
    }
    assert_eq!(response.get("patch").is_some(), response.get("patchType").is_some());
    assert_eq!(response["patch"].is_string(), allowed);
}

/// Names go into paths of the API and to terminals.
fn assert_names(question: &Request) {
    let is_plain = |name: &str| {
        !name.is_empty() && name.bytes().all(|it| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'.'))
    };
    assert!(is_plain(&question.name), "{question:?}");
    assert!(is_plain(&question.namespace), "{question:?}");
    assert!(question.pod.is_none() || question.operation == Operation::Delete, "{question:?}");
}
