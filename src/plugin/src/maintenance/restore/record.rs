//! The annotation that records a restoration in progress.

use anyhow::Context;
use k8s_openapi::api::apps::v1::StatefulSet;
use serde::{Deserialize, Serialize};

/// The annotation of a restoration in progress.
pub(crate) const RESTORE: &str = "etcd-guard.io/restore";

/// A restoration in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    /// Names this restoration in the volumes: the time of its start.
    pub(crate) id: String,
    /// The SHA-256 of the backup: members with data of different backups would contradict each other.
    pub(crate) sha256: String,
    /// The file of the backup on the machine where the command runs.
    pub(crate) backup: String,
    /// The number of members.
    pub(crate) replicas: i32,
    /// Whether the StatefulSet deleted its claims when it was scaled in.
    #[serde(default)]
    pub(crate) deletes_claims: bool,
    pub(crate) phase: Phase,
    /// The generation of the StatefulSet after it was scaled to 0. With another one, members may have run since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) generation: Option<i64>,
    /// The run of the command that acts. Another run takes over by writing its own: the former one then ends.
    pub(crate) run: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Phase {
    /// The members stop, and the volumes get the data of the backup.
    Filling,
    /// All volumes have it. The members start, and may have accepted writes.
    Starting,
}

// === impl Record ===

impl Record {
    /// Returns the record of a new restoration of a StatefulSet with this number of members.
    pub(crate) fn new(set: &StatefulSet, replicas: i32, id: String) -> Self {
        let spec = set.spec.as_ref();
        let retention = spec.and_then(|spec| spec.persistent_volume_claim_retention_policy.as_ref());
        let deletes_claims = retention.and_then(|policy| policy.when_scaled.as_deref()) == Some("Delete");
        Self {
            id,
            sha256: String::new(),
            backup: String::new(),
            replicas,
            deletes_claims,
            phase: Phase::Filling,
            generation: None,
            run: String::new(),
        }
    }

    /// Reads the record of a StatefulSet.
    pub(crate) fn read(set: &StatefulSet) -> anyhow::Result<Option<Self>> {
        let annotations = set.metadata.annotations.as_ref();
        let Some(text) = annotations.and_then(|annotations| annotations.get(RESTORE)) else {
            return Ok(None);
        };
        let name = set.metadata.name.as_deref().unwrap_or_default();
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        let record: Option<Self> = serde_json::from_str(text).ok();
        let is_id = |id: &str| id.len() <= 32 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let record = record.filter(|record| is_id(&record.id) && record.replicas > 0);
        record.map(Some).with_context(|| {
            format!(
                "the annotation {RESTORE} is invalid. Do not scale the StatefulSet up: some volumes may have the backup, and others not. \
                 Remove the annotation, then repeat the command: kubectl -n {namespace} annotate statefulset {name} {RESTORE}-"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(change: &serde_json::Value, annotation: Option<&str>) -> StatefulSet {
        let mut set = json!({"metadata": {"name": "etcd"}, "spec": {"selector": {}, "serviceName": "etcd", "template": {}}});
        set["spec"].as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        if let Some(annotation) = annotation {
            set["metadata"]["annotations"] = json!({RESTORE: annotation});
        }
        serde_json::from_value(set).unwrap()
    }

    #[test]
    fn record_is_read_as_written() {
        let policy = json!({"persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"}});
        let record = Record::new(&set(&policy, None), 5, String::from("20261201T030000Z"));
        assert!(record.deletes_claims, "{record:?}");
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(Record::read(&set(&json!({}), Some(&text))).unwrap(), Some(record));
        assert_eq!(Record::read(&set(&json!({}), None)).unwrap(), None);
        // It becomes a part of a path.
        for invalid in ["{", &text.replace("20261201T030000Z", "../x"), &text.replace(":5", ":0")] {
            assert!(Record::read(&set(&json!({}), Some(invalid))).is_err(), "{invalid}");
        }
    }
}
