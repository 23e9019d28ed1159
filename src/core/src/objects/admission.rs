//! The request of an `AdmissionReview`, `admission.k8s.io/v1` and `v1beta1` (the two have the same shape).
//!
//! Source: `k8s.io/api/admission/v1/types.go`.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

/// Maximum length of a caller's text in output, in bytes. Names in Kubernetes have the same maximum length.
const MAX_REPEATED_BYTES: usize = 253;

/// Truncates a caller's text to 253 bytes at a character boundary, for logs, messages and records.
pub fn truncated(text: &str) -> &str {
    let mut end = text.len().min(MAX_REPEATED_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// The request of the API server. Objects remain unparsed until they are used.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionRequest<'a> {
    /// Identifies this call. Several calls for the same deletion have different uids.
    #[serde(borrow)]
    pub uid: Cow<'a, str>,
    /// The resource of the request, converted to the version that this webhook registered.
    #[serde(borrow)]
    pub resource: Resource<'a>,
    /// For instance `eviction`; empty or absent for the object itself.
    #[serde(borrow, default)]
    pub sub_resource: Option<Cow<'a, str>>,
    /// The object's name; absent on a deletion of a collection, and on a creation with `generateName`.
    #[serde(borrow, default)]
    pub name: Option<Cow<'a, str>>,
    /// The object's namespace; absent for cluster-scoped objects.
    #[serde(borrow, default)]
    pub namespace: Option<Cow<'a, str>>,
    /// CREATE, UPDATE, DELETE or CONNECT.
    #[serde(borrow)]
    pub operation: Cow<'a, str>,
    /// The requester.
    #[serde(default)]
    pub user_info: UserInfo,
    /// The new object; null on DELETE.
    #[serde(borrow, default)]
    pub object: Option<&'a RawValue>,
    /// The stored object; null on CREATE, and therefore on evictions.
    #[serde(borrow, default)]
    pub old_object: Option<&'a RawValue>,
    /// Whether this is a dry run. Evictions have their own field `deleteOptions.dryRun` as well.
    #[serde(default)]
    pub dry_run: Option<bool>,
    /// `DeleteOptions` on DELETE, `CreateOptions` on CREATE.
    #[serde(borrow, default)]
    pub options: Option<&'a RawValue>,
}

/// Group, version and plural name of a resource.
#[derive(Debug, Deserialize)]
pub struct Resource<'a> {
    /// Empty for the core group.
    #[serde(borrow, default)]
    pub group: Cow<'a, str>,
    /// For instance `v1`.
    #[serde(borrow, default)]
    pub version: Cow<'a, str>,
    /// For instance `pods`.
    #[serde(borrow)]
    pub resource: Cow<'a, str>,
}

/// The authenticated user of a request.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct UserInfo {
    /// For instance `system:node:worker-1`.
    #[serde(default)]
    pub username: String,
}

/// The part of `DeleteOptions` (`meta/v1`) that affects a verdict.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeleteOptions {
    /// Seconds. The API server has set the effective value, except on a deletion of a collection.
    #[serde(default)]
    pub grace_period_seconds: Option<i64>,
    /// `Orphan` preserves the dependents.
    #[serde(default)]
    pub propagation_policy: Option<String>,
    /// The deprecated form of `propagationPolicy: Orphan`.
    #[serde(default)]
    pub orphan_dependents: Option<bool>,
    /// `["All"]` on a dry run.
    #[serde(default)]
    pub dry_run: Option<Vec<String>>,
    /// Conditions on the object without which the deletion fails.
    #[serde(default)]
    pub preconditions: Option<Preconditions>,
}

/// `Preconditions` (`meta/v1`), in part.
#[derive(Debug, Default, Deserialize)]
pub struct Preconditions {
    /// The uid that the object must have, which excludes a successor of the same name.
    #[serde(default)]
    pub uid: Option<String>,
}

/// The part of a `StatefulSet` (`apps/v1`) or of its `Scale` (`autoscaling/v1`) that determines the number of pods.
#[derive(Debug, Default, Deserialize)]
pub struct ScaleTarget {
    /// The specification, in part.
    #[serde(default)]
    pub spec: ScaleTargetSpec,
}

/// The number of pods and their first ordinal.
#[derive(Debug, Default, Deserialize)]
pub struct ScaleTargetSpec {
    /// Absent means 1 in a `StatefulSet` and 0 in a `Scale`.
    #[serde(default)]
    pub replicas: Option<u32>,
    /// Only in a `StatefulSet`.
    #[serde(default)]
    pub ordinals: Option<Ordinals>,
}

/// The numbering of pods.
#[derive(Debug, Default, Deserialize)]
pub struct Ordinals {
    /// The first ordinal.
    #[serde(default)]
    pub start: u32,
}

/// The part of an `Eviction` (`policy/v1`, `policy/v1beta1`) that affects a verdict.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Eviction {
    /// `kubectl drain --dry-run=server` sets `dryRun` only here: the `dryRun` of its admission request is false.
    #[serde(default)]
    pub delete_options: Option<DeleteOptions>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncates_text_to_253_bytes_at_a_character_boundary() {
        assert_eq!(truncated("system:node:a"), "system:node:a");
        assert_eq!(truncated(""), "");
        assert_eq!(truncated(&"x".repeat(300)).len(), 253);
        assert_eq!(truncated(&"ü".repeat(300)).len(), 252);
    }
}
