//! A test double: a guard that only looks at who leads, as a script of a few lines would. It is no part of the product.

use etcd_client::StatusResponse;
use serde_json::{Value, json};

use crate::support::member::Member;

/// The answer to a review: no for the leader, yes for everybody else.
pub(crate) async fn answer(review: &Value, member: &Member) -> String {
    let leads = |status: StatusResponse| {
        status.leader() == status.header().map_or(0, etcd_client::ResponseHeader::member_id)
    };
    let allowed = !member.status().await.is_some_and(leads);
    let status = json!({"code": 403, "reason": "Forbidden", "message": "it leads"});
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": review["request"]["uid"], "allowed": allowed, "status": status},
    })
    .to_string()
}
