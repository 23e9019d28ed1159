//! Whether the user may do what it takes, asked before anything is made: who may make a namespace and not delete it would be
//! left with it.

use anyhow::bail;
use serde_json::{Value, json};

use super::call::Caller;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// Group, resource and verbs that nothing can be tried without. A right that one row needs is not among them: that row is
/// skipped for want of it.
const NEEDED: [(&str, &str, &[&str]); 6] = [
    ("", "namespaces", &["create", "get", "patch", "delete"]),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations", &["list"]),
    ("", "services", &["create"]),
    ("policy", "poddisruptionbudgets", &["create"]),
    ("apps", "statefulsets", &["create", "patch"]),
    ("", "pods", &["create", "list", "delete"]),
];

/// An error names all that is missing. Where nobody tells, the calls themselves will.
pub(super) async fn check(caller: &Caller, namespace: Option<&str>) -> anyhow::Result<()> {
    let mut missing = Vec::new();
    for (group, resource, verbs) in NEEDED {
        for verb in verbs {
            // Without a namespace it is asked about all of them: the new one has no name yet.
            let namespace = namespace.filter(|_| resource != "validatingwebhookconfigurations");
            let asked = json!({
                "group": group, "resource": resource, "verb": verb, "namespace": namespace.unwrap_or_default(),
            });
            let review = json!({
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": asked},
            });
            let answer = caller.post(REVIEWS, &review).await?;
            if answer.is_success() && answer.object.pointer("/status/allowed") == Some(&Value::Bool(false)) {
                missing.push(format!("{verb} {resource}"));
            }
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    bail!(
        "you may not {}: it takes these rights, and nothing was made (docs/conformance.md)",
        missing.join(", ")
    )
}
