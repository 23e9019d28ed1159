//! Equality of parts of a pod. Default values of the API server count as absent, because the pod contains them in a
//! second pass.

use serde_json::{Map, Value};

use etcd_guard_core::objects::quantity::Quantity;

/// Whether `theirs`, a part of the pod, equals `ours`, a part to inject, apart from defaults that the API server set
/// (`pkg/apis/core/v1/defaults.go`), empty fields that it dropped, and quantities that it formatted differently.
pub(crate) fn is_same(theirs: &Value, ours: &Value) -> bool {
    is_same_at(["", ""], theirs, ours)
}

/// Compares values at a path, of which `above` and `key` are the last two keys.
fn is_same_at([above, key]: [&str; 2], theirs: &Value, ours: &Value) -> bool {
    match (theirs, ours) {
        (Value::Object(members), Value::Object(our_members)) => {
            our_members.iter().all(|(inner, value)| match theirs.get(inner) {
                Some(their) => is_same_at([key, inner], their, value),
                None => is_zero(value),
            }) && members.iter().all(|(key, value)| ours.get(key).is_some() || is_default(key, value))
        }
        (Value::Array(theirs), Value::Array(ours)) => {
            theirs.len() == ours.len()
                && theirs.iter().zip(ours).all(|(theirs, ours)| is_same_at([above, key], theirs, ours))
        }
        (Value::String(theirs), Value::String(ours)) if is_quantity(above, key) => {
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
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(set) => !set,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(_) => false,
    }
}

/// Whether two tolerations have equal fields.
pub(crate) fn is_same_toleration(a: &Value, b: &Value) -> bool {
    ["key", "operator", "value", "effect", "tolerationSeconds"].into_iter().all(|key| {
        let absent = if key == "operator" { "Equal".into() } else { Value::Null };
        let [a, b] =
            [a, b].map(|toleration| toleration.get(key).filter(|value| !value.is_null() && **value != ""));
        a.unwrap_or(&absent) == b.unwrap_or(&absent)
    })
}

fn is_default(key: &str, value: &Value) -> bool {
    value.is_null()
        || match key {
            "defaultMode" => value.as_u64() == Some(420),
            "type" => *value == "",
            "expirationSeconds" => value.as_u64() == Some(3600),
            "apiVersion" => *value == "v1",
            "optional" | "readOnly" => *value == false,
            // The API server sets `emptyDir` in a volume without a source.
            "emptyDir" => value.as_object().is_some_and(Map::is_empty),
            "divisor" => *value == "0",
            "volumeMode" => *value == "Filesystem",
            // Empty structs, which Go always serializes.
            "metadata" | "resources" => {
                value.as_object().is_some_and(|fields| fields.values().all(Value::is_null))
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
