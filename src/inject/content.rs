//! Whether two parts of a pod are the same. What the apiserver fills in by default counts as absent, because a second
//! pass sees it.

use std::borrow::Cow;

use crate::{json::Json, k8s::quantity::Quantity};

/// Whether `theirs` is `ours`, apart from what the apiserver may have filled in (`pkg/apis/core/v1/defaults.go`), dropped
/// because it says nothing, or written otherwise.
pub(super) fn is_same(theirs: &Json<'_>, ours: &Json<'_>) -> bool {
    is_same_at(["", ""], theirs, ours)
}

/// The same, for what stands at the last two keys of a path.
fn is_same_at([above, key]: [&str; 2], theirs: &Json<'_>, ours: &Json<'_>) -> bool {
    match (theirs.plain(), ours.plain()) {
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
        (Json::Text(theirs), Json::Text(ours)) if is_amount(above, key) => {
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
fn is_zero(value: &Json<'_>) -> bool {
    match value.plain() {
        Json::Null => true,
        Json::Bool(set) => !set,
        Json::Number(number) => number.as_i64() == Some(0),
        Json::Text(text) => text.is_empty(),
        Json::List(items) => items.is_empty(),
        Json::Map(_) | Json::Shared(_) => false,
    }
}

/// Whether one toleration does what the other does, as far as their texts tell.
pub(super) fn is_same_toleration(a: &Json<'_>, b: &Json<'_>) -> bool {
    const EQUAL: &Json<'static> = &Json::Text(Cow::Borrowed("Equal"));
    ["key", "operator", "value", "effect", "tolerationSeconds"].into_iter().all(|key| {
        let absent = if key == "operator" { EQUAL } else { &Json::Null };
        let [a, b] = [a, b].map(|it| it.get(key).filter(|it| !it.is_null() && **it != ""));
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
            "optional" | "readOnly" => matches!(value.plain(), Json::Bool(false)),
            // What a volume without a source is.
            "emptyDir" => value.as_map().is_some_and(Vec::is_empty),
            "divisor" => *value == "0",
            "volumeMode" => *value == "Filesystem",
            // Structs that Go always writes, with nothing in them.
            "metadata" | "resources" => {
                value.as_map().is_some_and(|fields| fields.iter().all(|(_, it)| it.is_null()))
            }
            // By the image's tag.
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
