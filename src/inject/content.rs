//! Whether two parts of a pod are the same. What the apiserver fills in by default counts as absent, because a second
//! pass sees it.

use serde_json::{Value, json};

/// Whether `theirs` is `ours`, apart from what the apiserver may have filled in (`pkg/apis/core/v1/defaults.go`).
pub(super) fn is_same(theirs: &Value, ours: &Value) -> bool {
    match (theirs, ours) {
        (Value::Object(theirs), Value::Object(ours)) => {
            ours.iter().all(|(key, value)| match theirs.get(key) {
                Some(their) => is_same(their, value),
                None => value.is_null(),
            }) && theirs.iter().all(|(key, value)| ours.contains_key(key) || is_default(key, value))
        }
        (Value::Array(theirs), Value::Array(ours)) => {
            theirs.len() == ours.len() && theirs.iter().zip(ours).all(|(theirs, ours)| is_same(theirs, ours))
        }
        (theirs, ours) => theirs == ours,
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
            _ => false,
        }
}
