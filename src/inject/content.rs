//! Whether two parts of a pod are the same. What the apiserver fills in by default counts as absent, because a second
//! pass sees it.

use serde_json::{Value, json};

use crate::k8s::quantity::Quantity;

/// Whether `theirs` is `ours`, apart from what the apiserver may have filled in (`pkg/apis/core/v1/defaults.go`), dropped
/// because it says nothing, or written otherwise.
pub(super) fn is_same(theirs: &Value, ours: &Value) -> bool {
    is_same_at(["", ""], theirs, ours)
}

/// The same, for what stands at the last two keys of a path.
fn is_same_at([above, key]: [&str; 2], theirs: &Value, ours: &Value) -> bool {
    match (theirs, ours) {
        (Value::Object(theirs), Value::Object(ours)) => {
            ours.iter().all(|(inner, value)| match theirs.get(inner) {
                Some(their) => is_same_at([key, inner], their, value),
                None => is_zero(value),
            }) && theirs.iter().all(|(key, value)| ours.contains_key(key) || is_default(key, value))
        }
        (Value::Array(theirs), Value::Array(ours)) => {
            theirs.len() == ours.len()
                && theirs.iter().zip(ours).all(|(theirs, ours)| is_same_at([above, key], theirs, ours))
        }
        (Value::String(theirs), Value::String(ours)) if is_amount(above, key) => {
            let amount = |text: &str| Quantity::parse(text);
            theirs == ours || amount(theirs).is_some_and(|it| amount(ours) == Some(it))
        }
        (theirs, ours) => theirs == ours,
    }
}

/// Where a text is an amount, which the apiserver writes in its own way: 1024Mi as 1Gi.
fn is_amount(above: &str, key: &str) -> bool {
    matches!(key, "sizeLimit" | "divisor") || matches!(above, "requests" | "limits")
}

/// What Go leaves out when it writes.
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

/// Whether one toleration does what the other does, as far as their texts tell.
pub(super) fn is_same_toleration(a: &Value, b: &Value) -> bool {
    let field = |it: &Value, key: &str| {
        let text = it.get(key).filter(|it| !it.is_null() && *it != "").cloned();
        text.unwrap_or_else(|| if key == "operator" { json!("Equal") } else { Value::Null })
    };
    ["key", "operator", "value", "effect", "tolerationSeconds"]
        .iter()
        .all(|key| field(a, key) == field(b, key))
}

fn is_default(key: &str, value: &Value) -> bool {
    value.is_null()
        || match key {
            "defaultMode" => *value == json!(420),
            "type" => *value == json!(""),
            "expirationSeconds" => *value == json!(3600),
            "apiVersion" => *value == json!("v1"),
            "optional" | "readOnly" => *value == json!(false),
            // What a volume without a source is.
            "emptyDir" => *value == json!({}),
            "divisor" => *value == json!("0"),
            "volumeMode" => *value == json!("Filesystem"),
            // Structs that Go always writes, with nothing in them.
            "metadata" | "resources" => {
                value.as_object().is_some_and(|fields| fields.values().all(Value::is_null))
            }
            // By the image's tag.
            "pullPolicy" => *value == json!("IfNotPresent") || *value == json!("Always"),
            "iscsiInterface" => *value == json!("default"),
            "cachingMode" => *value == json!("ReadWrite"),
            "fsType" => *value == json!("ext4") || *value == json!("xfs"),
            "kind" => *value == json!("Shared"),
            "storageMode" => *value == json!("ThinProvisioned"),
            "pool" => *value == json!("rbd"),
            "user" => *value == json!("admin"),
            "keyring" => *value == json!("/etc/ceph/keyring"),
            _ => false,
        }
}
