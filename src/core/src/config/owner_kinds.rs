//! `guard.ownerKinds`: kinds of objects that own the pods of members, besides those of Kubernetes itself.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::config::diagnostic::Validator;

/// Maximum number of entries. Each operator of etcd has one to three kinds.
const MAX_KINDS: usize = 32;

/// Maximum length of each text: that of a label of a DNS name, which Kubernetes requires of kinds and resources.
const MAX_LABEL_LENGTH: usize = 63;

/// Maximum length of a group: that of a DNS name.
const MAX_GROUP_LENGTH: usize = 253;

/// Kinds that need no entry: each Deployment owns its pods through a `ReplicaSet`.
static BUILT_IN: [OwnerKind; 2] =
    [OwnerKind::of_apps("deployments", "Deployment"), OwnerKind::of_apps("replicasets", "ReplicaSet")];

/// A kind of namespaced objects that own member pods, directly or through other owners.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct OwnerKind {
    /// The API group, such as `example.com`.
    pub group: Cow<'static, str>,
    /// A version that the API server serves, such as `v1alpha1`. Owner references with other versions match as well.
    pub version: Cow<'static, str>,
    /// The plural name in URLs, such as `etcdclusters`.
    pub resource: Cow<'static, str>,
    /// The kind in manifests, such as `EtcdCluster`.
    pub kind: Cow<'static, str>,
}

// === impl OwnerKind ===

impl OwnerKind {
    const fn of_apps(resource: &'static str, kind: &'static str) -> Self {
        Self {
            group: Cow::Borrowed("apps"),
            version: Cow::Borrowed("v1"),
            resource: Cow::Borrowed(resource),
            kind: Cow::Borrowed(kind),
        }
    }

    /// Whether this kind needs no entry.
    pub fn is_built_in(&self) -> bool {
        BUILT_IN.contains(self)
    }

    /// The name of the resource for `kubectl`, for instance `etcdclusters.example.com`.
    pub fn resource_name(&self) -> String {
        format!("{}.{}", self.resource, self.group)
    }

    fn validate(&self, validator: &mut Validator<'_>) {
        let Self { group, version, resource, kind } = self;
        let labels =
            group.split('.').all(|label| is_label(label, |byte| byte.is_ascii_digit() || byte == b'-'));
        if group.is_empty() || group.len() > MAX_GROUP_LENGTH || !labels {
            let message = format!("{group:?} is not an API group such as example.com");
            validator.at("group").report(message);
        }
        if !is_label(version, |byte| byte.is_ascii_digit()) || !version.starts_with('v') {
            validator.at("version").report(format!("{version:?} is not a version such as v1alpha1"));
        }
        if !is_label(resource, |byte| byte.is_ascii_digit() || byte == b'-') {
            let message = format!("{resource:?} is not the plural name of a resource such as etcdclusters");
            validator.at("resource").report(message);
        }
        let is_kind = kind.len() <= MAX_LABEL_LENGTH
            && kind.starts_with(|first: char| first.is_ascii_uppercase())
            && kind.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_kind {
            validator.at("kind").report(format!("{kind:?} is not a kind such as EtcdCluster"));
        }
    }
}

/// Returns a kind among the entries and the kinds that need no entry.
pub(super) fn find(entries: &[OwnerKind], is_wanted: impl Fn(&OwnerKind) -> bool) -> Option<&OwnerKind> {
    BUILT_IN.iter().chain(entries).find(|entry| is_wanted(entry))
}

pub(super) fn validate(entries: &[OwnerKind], validator: &mut Validator<'_>) {
    if entries.len() > MAX_KINDS {
        validator.report(format!("{} entries exceed the maximum of {MAX_KINDS}", entries.len()));
    }
    for (index, entry) in entries.iter().enumerate() {
        let mut validator = validator.at(index);
        entry.validate(&mut validator);
        let is_same = |other: &OwnerKind| other.group == entry.group && other.kind == entry.kind;
        if entry.group == "apps" && ["StatefulSet", "Deployment", "ReplicaSet"].contains(&&*entry.kind) {
            let message = format!("{} of apps needs no entry: remove this one", entry.kind);
            validator.at("kind").report(message);
        } else if entries.iter().take(index).any(is_same) {
            let message = format!("{} of {} has an entry already", entry.kind, entry.group);
            validator.at("kind").report(message);
        }
    }
}

/// Whether a text is a label of lower-case letters and of those other bytes that `is_other` accepts, which starts with a
/// letter or digit and ends with one.
fn is_label(text: &str, is_other: impl Fn(u8) -> bool) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || is_other(byte);
    (1..=MAX_LABEL_LENGTH).contains(&text.len())
        && text.bytes().all(is_allowed)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::{super::policies::Policies, *};

    #[test]
    fn finds_entries_and_built_in_kinds() {
        let entry = OwnerKind {
            group: Cow::Borrowed("example.com"),
            version: Cow::Borrowed("v1"),
            resource: Cow::Borrowed("etcdclusters"),
            kind: Cow::Borrowed("EtcdCluster"),
        };
        let policies = Policies { owner_kinds: vec![entry.clone()], ..Policies::default() };
        assert_eq!(policies.owner_kind("example.com", "EtcdCluster"), Some(&entry));
        assert_eq!(policies.owner_kind_of_resource("example.com", "etcdclusters"), Some(&entry));
        assert_eq!(policies.owner_kind("apps", "Deployment").unwrap().resource_name(), "deployments.apps");
        assert!(policies.owner_kind("apps", "ReplicaSet").unwrap().is_built_in() && !entry.is_built_in());
        assert_eq!(policies.owner_kind("other.com", "EtcdCluster"), None);
        assert_eq!(policies.owner_kind("apps", "StatefulSet"), None, "its annotations come from a watch");
    }
}
