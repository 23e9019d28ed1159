//! Checks the permissions of the user before anything is created. A user who may create a namespace but not delete it
//! would otherwise be left with it.

use anyhow::bail;
use k8s_openapi::api::authorization::v1::ResourceAttributes;

use crate::api_server::ApiServer;

/// The group, resource and verbs that every run requires. A permission that only one row requires is not listed:
/// without it that row is skipped.
const REQUIRED: [(&str, &str, &[&str]); 6] = [
    ("", "namespaces", &["create", "get", "patch", "delete"]),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations", &["list"]),
    ("", "services", &["create"]),
    ("policy", "poddisruptionbudgets", &["create"]),
    ("apps", "statefulsets", &["create", "patch"]),
    ("", "pods", &["create", "list", "delete"]),
];

/// Checks the required permissions. The error lists all missing ones. If reviews are not allowed, the check passes and
/// the calls themselves fail later.
pub(super) async fn check(api: &ApiServer, namespace: Option<&str>) -> anyhow::Result<()> {
    let mut missing = Vec::new();
    for (group, resource, verbs) in REQUIRED {
        for verb in verbs {
            // A generated name is not known yet. The check is then for all namespaces.
            let namespace = namespace.filter(|_| resource != "validatingwebhookconfigurations");
            let attributes = ResourceAttributes {
                group: Some(group.to_owned()),
                resource: Some(resource.to_owned()),
                verb: Some((*verb).to_owned()),
                namespace: namespace.map(str::to_owned),
                ..ResourceAttributes::default()
            };
            if matches!(api.is_permitted(attributes).await, Ok(false)) {
                missing.push(format!("{verb} {resource}"));
            }
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    bail!(
        "missing permissions: {}. Nothing was created; docs/conformance.md lists the required permissions",
        missing.join(", ")
    )
}
