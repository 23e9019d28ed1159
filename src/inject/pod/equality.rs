//! Equality of parts of a pod. Default values of the API server count as absent, because the pod contains them in a
//! second pass.

use std::borrow::Cow;

use crate::{json::Json, k8s::quantity::Quantity};

/// Whether `theirs`, a part of the pod, equals `ours`, a part to inject, apart from defaults that the API server set
/// (`pkg/apis/core/v1/defaults.go`), empty fields that it dropped, and quantities that it formatted differently.
pub(in crate::inject) fn is_same(theirs: &Json<'_>, ours: &Json<'_>) -> bool {
    is_same_at(["", ""], theirs, ours)
}

/// Compares values at a path, of which `above` and `key` are the last two keys.
fn is_same_at([above, key]: [&str; 2], theirs: &Json<'_>, ours: &Json<'_>) -> bool {
    match (theirs.resolved(), ours.resolved()) {
        (Json::Map(members), Json::Map(our_members)) => {
            our_members.iter().all(|(inner, value)| match theirs.get(inner) {
                Some(their) => is_same_at([key, inner], their, value),
                None => is_zero(value),
            }) && members.iter().all(|(key, value)| ours.get(key).is_some() || is_default(key, value))
        }
        (Json::List(theirs), Json::List(ours)) => {
            theirs.len() == ours.len()
                && theirs.iter().zip(ours).all(|(theirs, ours)| is_same_at([above, key], theirs, ours))
        }
        (Json::Text(theirs), Json::Text(ours)) if is_quantity(above, key) => {
            theirs == ours
                || Quantity::parse(theirs).is_some_and(|amount| Quantity::parse(ours) == Some(amount))
        }
        (theirs, ours) => theirs == ours,
    }
}

/// Whether the text at a path is a quantity, which the API server normalizes: 1024Mi becomes 1Gi.
fn is_quantity(above: &str, key: &str) -> bool {
    matches!(key, "sizeLimit" | "divisor") || matches!(above, "requests" | "limits")
}

/// Whether Go omits the value when it serializes a struct.
fn is_zero(value: &Json<'_>) -> bool {
    match value.resolved() {
        Json::Null => true,
        Json::Bool(set) => !set,
        Json::Number(number) => number.as_i64() == Some(0),
        Json::Text(text) => text.is_empty(),
        Json::List(items) => items.is_empty(),
        Json::Map(_) | Json::Shared(_) => false,
    }
}

/// Whether two tolerations have equal fields.
pub(in crate::inject) fn is_same_toleration(a: &Json<'_>, b: &Json<'_>) -> bool {
    const EQUAL: &Json<'static> = &Json::Text(Cow::Borrowed("Equal"));
    ["key", "operator", "value", "effect", "tolerationSeconds"].into_iter().all(|key| {
        let absent = if key == "operator" { EQUAL } else { &Json::Null };
        let [a, b] =
            [a, b].map(|toleration| toleration.get(key).filter(|value| !value.is_null() && **value != ""));
        a.unwrap_or(absent) == b.unwrap_or(absent)
    })
}

fn is_default(key: &str, value: &Json<'_>) -> bool {
    value.is_null()
        || match key {
            "defaultMode" => value.as_u64() == Some(420),
            "type" => *value == "",
            "expirationSeconds" => value.as_u64() == Some(3600),
            "apiVersion" => *value == "v1",
            "optional" | "readOnly" => matches!(value.resolved(), Json::Bool(false)),
            // The API server sets `emptyDir` in a volume without a source.
            "emptyDir" => value.as_map().is_some_and(Vec::is_empty),
            "divisor" => *value == "0",
            "volumeMode" => *value == "Filesystem",
            // Empty structs, which Go always serializes.
            "metadata" | "resources" => {
                value.as_map().is_some_and(|fields| fields.iter().all(|(_, value)| value.is_null()))
            }
            // The default depends on the tag of the image.
            "pullPolicy" => *value == "IfNotPresent" || *value == "Always",
            "iscsiInterface" => *value == "default",
            "cachingMode" => *value == "ReadWrite",
            "fsType" => *value == "ext4" || *value == "xfs",
            "kind" => *value == "Shared",
            "storageMode" => *value == "ThinProvisioned",
            "pool" => *value == "rbd",
            "user" => *value == "admin",
            "keyring" => *value == "/etc/ceph/keyring",
            _ => false,
        }
}
