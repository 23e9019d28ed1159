//! The request inside an `AdmissionReview`, `admission.k8s.io/v1` and `v1beta1` (the two have the same shape).
//!
//! Source: `k8s.io/api/admission/v1/types.go`.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

/// More of what a caller wrote is not repeated: Kubernetes' own names are no longer.
const LONGEST_REPEATED: usize = 253;

/// The beginning of a caller's text, for logs, messages and records.
#[must_use]
pub fn clipped(text: &str) -> &str {
    let mut end = text.len().min(LONGEST_REPEATED);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// What the apiserver asks. Objects stay unparsed until somebody wants them, but for a stored one of a kind that is known
/// before.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "Stored: Deserialize<'de>"))]
pub struct AdmissionRequest<'a, Stored = &'a RawValue> {
    /// Identifies this call; every call has a new one, also the second for the same deletion.
    #[serde(borrow)]
    pub uid: Cow<'a, str>,
    /// The resource that the request is for, as it was converted for this webhook.
    #[serde(borrow)]
    pub resource: Resource<'a>,
    /// For instance `eviction`; empty or absent for the object itself.
    #[serde(borrow, default)]
    pub sub_resource: Option<Cow<'a, str>>,
    /// The object's name; absent on a deletion of a collection, and on a creation with `generateName`.
    #[serde(borrow, default)]
    pub name: Option<Cow<'a, str>>,
    /// The object's namespace; absent for objects that have none.
    #[serde(borrow, default)]
    pub namespace: Option<Cow<'a, str>>,
    /// CREATE, UPDATE, DELETE or CONNECT.
    #[serde(borrow)]
    pub operation: Cow<'a, str>,
    /// Who asks.
    #[serde(default)]
    pub user_info: UserInfo,
    /// The new object; null on DELETE.
    #[serde(borrow, default)]
    pub object: Option<&'a RawValue>,
    /// The stored object; null on CREATE, so also on an eviction.
    #[serde(default)]
    pub old_object: Option<Stored>,
    /// Whether nothing will be written. For an eviction see also its own `deleteOptions.dryRun`.
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

/// The part of `DeleteOptions` (`meta/v1`) that bears on a verdict.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeleteOptions {
    /// Seconds; already defaulted to the effective value except on a deletion of a collection.
    #[serde(default)]
    pub grace_period_seconds: Option<i64>,
    /// `Orphan` leaves the dependents alone.
    #[serde(default)]
    pub propagation_policy: Option<String>,
    /// The older way to say so.
    #[serde(default)]
    pub orphan_dependents: Option<bool>,
    /// `["All"]` on a dry run.
    #[serde(default)]
    pub dry_run: Option<Vec<String>>,
    /// What must be true of the object, or nothing happens.
    #[serde(default)]
    pub preconditions: Option<Preconditions>,
}

/// `Preconditions` (`meta/v1`), in part.
#[derive(Debug, Default, Deserialize)]
pub struct Preconditions {
    /// The object that is meant, and no successor of its name.
    #[serde(default)]
    pub uid: Option<String>,
}

/// The part of a `StatefulSet` (`apps/v1`) or of its `Scale` (`autoscaling/v1`) that says how many pods there are.
#[derive(Debug, Default, Deserialize)]
pub struct Scaled {
    /// The part of the specification.
    #[serde(default)]
    pub spec: ScaledSpec,
}

/// How many pods there are, and from which ordinal on.
#[derive(Debug, Default, Deserialize)]
pub struct ScaledSpec {
    /// One if it is not said of a `StatefulSet`; none if it is not said of a `Scale`.
    #[serde(default)]
    pub replicas: Option<u32>,
    /// Only of a `StatefulSet`.
    #[serde(default)]
    pub ordinals: Option<Ordinals>,
}

/// From which ordinal on pods are numbered.
#[derive(Debug, Default, Deserialize)]
pub struct Ordinals {
    /// The first ordinal.
    #[serde(default)]
    pub start: u32,
}

/// The part of an `Eviction` (`policy/v1`, `policy/v1beta1`) that bears on a verdict.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Eviction {
    /// `kubectl drain --dry-run=server` says so here and nowhere else: the request's own `dryRun` is false then.
    #[serde(default)]
    pub delete_options: Option<DeleteOptions>,
}

// === impl AdmissionRequest ===

impl<'a, Stored> AdmissionRequest<'a, Stored> {
    /// The request and, beside it, its stored object.
    #[must_use]
    pub fn without_stored(self) -> (AdmissionRequest<'a>, Option<Stored>) {
        let Self { uid, resource, sub_resource, name, namespace, operation, user_info, .. } = self;
        let Self { object, old_object, dry_run, options, .. } = self;
        let request = AdmissionRequest {
            uid,
            resource,
            sub_resource,
            name,
            namespace,
            operation,
            user_info,
            object,
            old_object: None,
            dry_run,
            options,
        };
        (request, old_object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_of_a_text_is_repeated_than_a_name_may_be_long_and_no_character_is_cut() {
        assert_eq!(clipped("system:node:a"), "system:node:a");
        assert_eq!(clipped(""), "");
        assert_eq!(clipped(&"x".repeat(300)).len(), 253);
        assert_eq!(clipped(&"ü".repeat(300)).len(), 252);
    }
}
