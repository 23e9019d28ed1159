//! The annotations that this program reads. All others are dropped while an object is decoded: they may have hundreds of
//! kilobytes, and every user with write access to an object chooses them.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, Visitor},
};

/// Annotation of the mirror of a static pod. The deletion of a mirror does not stop the pod.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

/// Deletion of the leader: `auto`, `deny` or `transfer`.
pub const LEADER: &str = "etcd-guard.io/leader";

/// Deletion of the only voter: `deny` or `allow`.
pub const SINGLE_MEMBER: &str = "etcd-guard.io/single-member";

/// Deletions that end a member for good while the cluster has no spare voter: `deny` or `allow`.
pub const EPHEMERAL_DATA: &str = "etcd-guard.io/ephemeral-data";

/// Enforcement of denials: `enforce` or `audit`.
pub const MODE: &str = "etcd-guard.io/mode";

/// End of a break-glass, as an RFC 3339 time.
pub const ALLOW_UNTIL: &str = "etcd-guard.io/allow-delete-until";

/// Reason of a break-glass.
pub const ALLOW_REASON: &str = "etcd-guard.io/allow-delete-reason";

/// Whether a pod runs a member: `"true"` or `"false"`.
pub const MEMBER: &str = "etcd-guard.io/member";

/// Client URL of the members, for pods whose specification does not show it. The host is the name in the certificate; it
/// can contain `$(POD_NAME)` and `$(POD_NAMESPACE)`, or be empty as in `https://:2379`.
pub const ENDPOINTS: &str = "etcd-guard.io/endpoints";

/// Secret with the client certificate and the CA.
pub const CLIENT_TLS_SECRET: &str = "etcd-guard.io/client-tls-secret";

/// Whether the certificate of a member that issues its own one (`--auto-tls`) is accepted: `"true"`.
pub const ACCEPT_AUTO_TLS: &str = "etcd-guard.io/accept-auto-tls";

/// Secret with the user and the password.
pub const AUTH_SECRET: &str = "etcd-guard.io/auth-secret";

/// Minimum number of voters in the member list: a whole number.
pub const MIN_VOTERS: &str = "etcd-guard.io/min-voters";

/// Request to move leadership, as `POD@TIME`: the pod that becomes the leader, and the time of the request. It is read
/// from a StatefulSet, or from a pod without a StatefulSet.
pub const MOVE_LEADER: &str = "etcd-guard.io/move-leader";

/// Request to defragment the members of a cluster, as `@TIME` or `PERCENT%@TIME`: the free share from which on a member is
/// defragmented, and the time of the request. It is read from the same objects as [`MOVE_LEADER`].
pub const DEFRAGMENT: &str = "etcd-guard.io/defragment";

/// The last backup, as `REVISION@TIME`. `kubectl etcd-guard backup` writes it to the same objects.
pub const LAST_BACKUP: &str = "etcd-guard.io/last-backup";

/// Request for one step of the replacement of a member, as `STEP POD MEMBER@TIME`: `remove`, `add` or `promote`, the pod, the id of
/// the member that is replaced, and the time of the request. It is read from a StatefulSet.
pub const REPLACE: &str = "etcd-guard.io/replace";

/// The names of all annotations that are kept. Their number limits the entries of an object.
pub const KEPT: [&str; 17] = [
    MIRROR,
    LEADER,
    SINGLE_MEMBER,
    EPHEMERAL_DATA,
    MODE,
    ALLOW_UNTIL,
    ALLOW_REASON,
    MEMBER,
    ENDPOINTS,
    CLIENT_TLS_SECRET,
    ACCEPT_AUTO_TLS,
    AUTH_SECRET,
    MIN_VOTERS,
    MOVE_LEADER,
    DEFRAGMENT,
    LAST_BACKUP,
    REPLACE,
];

/// Maximum length of a value in bytes. The longest valid value is a reason of a few sentences.
pub const MAX_VALUE_BYTES: usize = 1024;

/// Replaces a longer value. It is no valid value of any annotation, so that the value is reported instead of being cut.
pub const TOO_LONG: &str = "(longer than 1024 bytes)";

/// Deserializes the annotations of an object, without those that are not kept. Null is an empty map.
pub fn deserialize_kept<'de, D>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error>
where
    D: Deserializer<'de>,
{
    let kept = |name: &str| KEPT.iter().find(|kept| **kept == name).map(|kept| (*kept).to_owned());
    deserializer.deserialize_option(Annotations { kept, max_value_bytes: MAX_VALUE_BYTES })
}

/// Prefix of the annotations of this program's own Leases.
const OWN_PREFIX: &str = "etcd-guard.io/";

/// Deserializes the annotations of a Lease that this program writes. Their values are records of any length.
pub fn deserialize_own<'de, D>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error>
where
    D: Deserializer<'de>,
{
    let kept = |name: &str| name.starts_with(OWN_PREFIX).then(|| name.to_owned());
    deserializer.deserialize_option(Annotations { kept, max_value_bytes: usize::MAX })
}

/// A visitor of a map from names to texts. It keeps an entry if `kept` returns a key for the name of the entry.
struct Annotations<F> {
    kept: F,
    max_value_bytes: usize,
}

/// A visitor of a name, which returns the result of a function.
struct Name<'a, F>(&'a F);

/// A visitor of a value of at most this length.
struct Value {
    max_bytes: usize,
}

// === impl Annotations ===

impl<'de, F: Fn(&str) -> Option<String>> Visitor<'de> for Annotations<F> {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of texts")
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(BTreeMap::new())
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(BTreeMap::new())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = BTreeMap::new();
        while let Some(name) = map.next_key_seed(Name(&self.kept))? {
            match name {
                Some(name) => {
                    let value = map.next_value_seed(Value { max_bytes: self.max_value_bytes })?;
                    entries.insert(name, value);
                }
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(entries)
    }
}

// === impl Name ===

impl<'de, F: Fn(&str) -> Option<String>> DeserializeSeed<'de> for Name<'_, F> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<F: Fn(&str) -> Option<String>> Visitor<'_> for Name<'_, F> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok((self.0)(name))
    }
}

// === impl Value ===

impl<'de> DeserializeSeed<'de> for Value {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Value {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<String, E> {
        Ok(if value.len() > self.max_bytes { TOO_LONG } else { value }.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Deserialize)]
    struct Object {
        #[serde(default, deserialize_with = "deserialize_kept")]
        annotations: BTreeMap<String, String>,
    }

    fn kept(object: &serde_json::Value) -> BTreeMap<String, String> {
        let text = object.to_string();
        let from_text: Object = serde_json::from_str(&text).unwrap();
        let from_value: Object = serde_json::from_value(object.clone()).unwrap();
        assert_eq!(from_text.annotations, from_value.annotations);
        from_text.annotations
    }

    #[test]
    fn keeps_only_annotations_that_are_read() {
        let annotations = json!({
            "etcd-guard.io/leader": "deny",
            "etcd-guard.io/unknown": "x",
            "kubectl.kubernetes.io/last-applied-configuration": "x".repeat(100_000),
            "kubernetes.io/config.mirror": "hash",
        });
        let kept_ones = kept(&json!({"annotations": annotations}));
        let names: Vec<_> = kept_ones.keys().collect();
        assert_eq!(names, [LEADER, MIRROR]);
        assert_eq!(kept_ones[LEADER], "deny");
        assert!(kept(&json!({})).is_empty() && kept(&json!({"annotations": null})).is_empty());
    }

    #[test]
    fn replaces_values_that_are_too_long() {
        let annotations = json!({
            "etcd-guard.io/allow-delete-reason": "é".repeat(MAX_VALUE_BYTES / 2),
            "etcd-guard.io/leader": "x".repeat(MAX_VALUE_BYTES + 1),
        });
        let kept = kept(&json!({"annotations": annotations}));
        assert_eq!(kept[ALLOW_REASON].len(), MAX_VALUE_BYTES);
        assert_eq!(kept[LEADER], TOO_LONG);
        assert!(TOO_LONG.contains(&MAX_VALUE_BYTES.to_string()));
    }
}
