//! Test doubles: a guard that only looks at who leads, as a script of a few lines would, and one that looks at nothing.
//! They are no part of the product.

use serde_json::{Value, json};

use crate::support::member::{Member, leads};

/// To a review: no for the leader, yes for everybody else.
pub(crate) async fn leader_only(review: &Value, member: &Member) -> String {
    let allowed = !member.status().await.is_some_and(|it| leads(&it));
    let status = json!({"code": 403, "reason": "Forbidden", "message": "it leads"});
    envelope(&json!({"uid": review["request"]["uid"], "allowed": allowed, "status": status}))
}

/// Yes to whatever is asked.
pub(crate) fn yes(review: &Value) -> String {
    envelope(&json!({"uid": review["request"]["uid"], "allowed": true}))
}

fn envelope(response: &Value) -> String {
    let review =
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    review.to_string()
}
