//! The path from the API server to the guard.
//!
//! The request is the eviction, as a dry run, of a pod that does not exist. The API server calls the webhooks before it
//! reads the pod, so that the request reaches the guard, and has no effect even if a pod of this name existed. The response
//! is 404 after an approval. With `failurePolicy: Fail`, the API server cannot return 404 without a response of the guard.

use serde_json::{Value, json};

use super::{
    reader::{Reader, Right, Unread, elements, text},
    report::Line,
};
use crate::api_server::Response;

/// The pod of the request.
const ABSENT_POD: &str = "etcd-guard-doctor-absent-pod";

/// The webhook that the request must reach.
pub(super) const EVICTION_WEBHOOK: &str = "eviction.guard.etcd-guard.io";

/// Requests the eviction in this namespace, which the webhook must select. `configuration` is the registered one.
pub(super) async fn check(reader: &Reader, namespace: &str, configuration: &Value, guard: &str) -> Line {
    let path = format!(
        "/api/v1/namespaces/{namespace}/pods/{ABSENT_POD}/eviction?dryRun=All&fieldManager=etcd-guard"
    );
    let eviction = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": ABSENT_POD, "namespace": namespace},
        "deleteOptions": {"dryRun": ["All"]},
    });
    match reader.post(&path, &eviction).await {
        Err(cause) => reader.unanswered("network", cause),
        Ok(response) => {
            let right = Right { verb: "create", resource: "pods/eviction", namespace: Some(namespace) };
            let unread = reader.unread(&response, right);
            let remedy = format!("{} -n {guard} get pods,services,endpointslices -o wide", reader.kubectl());
            evaluate(&response, namespace, fails_closed(configuration), &unread, &remedy)
        }
    }
}

/// Whether the API server rejects requests if the webhook does not respond.
fn fails_closed(configuration: &Value) -> bool {
    elements(configuration, "/webhooks").any(|entry| {
        text(entry, "/name") == Some(EVICTION_WEBHOOK) && text(entry, "/failurePolicy") == Some("Fail")
    })
}

/// Evaluates the response. `unread` is the result if the user lacks the permission.
fn evaluate(response: &Response, namespace: &str, fails_closed: bool, unread: &Unread, remedy: &str) -> Line {
    let message = response.cause();
    let request = format!("dry-run eviction of the absent pod {namespace}/{ABSENT_POD}");
    if message.contains(&format!("failed calling webhook \"{EVICTION_WEBHOOK}\"")) {
        return Line::failure("network", format!("the API server cannot call the guard: {message}"), remedy);
    }
    if message.contains(&format!("admission webhook \"{EVICTION_WEBHOOK}\"")) {
        return Line::ok("network", format!("the API server calls the guard ({request}: denied)"));
    }
    let is_absent = response.code == 404 && message.contains(ABSENT_POD);
    match (is_absent, fails_closed) {
        (true, true) => Line::ok("network", format!("the API server calls the guard ({request})")),
        (true, false) => Line::warning(
            "network",
            format!(
                "not proven: failurePolicy is not Fail, so the {request} passes without the guard as well"
            ),
            remedy,
        ),
        (false, _) => Line::not_checked("network", unread),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::State;

    #[test]
    fn evaluates_each_kind_of_response() {
        let state = |code, message: &str, fails_closed| {
            let response = Response { code, message: message.to_owned(), ..Response::default() };
            let unread = Unread::new("", "kubectl auth can-i");
            evaluate(&response, "prod", fails_closed, &unread, "kubectl get pods").state
        };
        let absent = format!("pods \"{ABSENT_POD}\" not found");
        assert_eq!(state(404, &absent, true), State::Ok);
        assert_eq!(state(404, &absent, false), State::Warning, "the guard may have been skipped");
        assert_eq!(state(404, "namespaces \"prod\" not found", true), State::Warning);
        let denied = format!("admission webhook \"{EVICTION_WEBHOOK}\" denied the request: LookupFailed: x");
        assert_eq!(state(403, &denied, false), State::Ok);
        let other = "admission webhook \"other.example.com\" denied the request: no";
        assert_eq!(state(403, other, true), State::Warning);
        assert_eq!(state(403, "pods is forbidden: User \"alice\" cannot create", true), State::Warning);
        let failed =
            format!("Internal error occurred: failed calling webhook \"{EVICTION_WEBHOOK}\": refused");
        assert_eq!(state(500, &failed, true), State::Failure);
        let failed = "Internal error occurred: failed calling webhook \"other.example.com\": refused";
        assert_eq!(state(500, failed, true), State::Warning, "the webhook of another product");
    }

    #[test]
    fn only_the_eviction_entry_decides_about_fail() {
        let entries = |policy| {
            json!({"webhooks": [
                {"name": "guard.etcd-guard.io", "failurePolicy": "Fail"}, {"name": EVICTION_WEBHOOK, "failurePolicy": policy},
            ]})
        };
        assert!(fails_closed(&entries("Fail")) && !fails_closed(&entries("Ignore")));
    }
}
