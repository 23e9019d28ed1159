//! Test doubles outside of the product: a guard that only protects the leader, as a short script would, and a webhook
//! that allows every request.

use serde_json::{Value, json};

use test_support::etcd::member::{Member, leads};

/// Denies the request if the member is the leader, and allows it otherwise.
pub(crate) async fn leader_only(review: &Value, member: &Member) -> String {
    let allowed = !member.status().await.is_some_and(|status| leads(&status));
    let status = json!({"code": 403, "reason": "Forbidden", "message": "it leads"});
    envelope(&json!({"uid": review["request"]["uid"], "allowed": allowed, "status": status}))
}

/// Allows the request.
pub(crate) fn allow(review: &Value) -> String {
    envelope(&json!({"uid": review["request"]["uid"], "allowed": true}))
}

fn envelope(response: &Value) -> String {
    let review =
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    review.to_string()
}
