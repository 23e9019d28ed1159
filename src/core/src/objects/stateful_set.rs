//! The parts of a `StatefulSet` (`apps/v1`) that determine which data its deletion destroys.
//!
//! Source: `k8s.io/api/apps/v1/types.go`.

use serde::Deserialize;

use super::{
    claim::Claim,
    heap_size::heap_size_of_fields,
    pod::{Metadata, OwnerReference, Pod, Volume, VolumeClaim, null_as_default},
};

/// Value of `persistentVolumeClaimRetentionPolicy.whenDeleted` with which the claims are deleted with the StatefulSet.
const DELETE: &str = "Delete";

/// A StatefulSet, in part.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct StatefulSet {
    /// Name, uid, annotations.
    #[serde(default)]
    pub metadata: Metadata,
    #[serde(default)]
    spec: StatefulSetSpec,
    #[serde(default)]
    status: StatefulSetStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatefulSetStatus {
    #[serde(default)]
    current_revision: String,
    #[serde(default)]
    update_revision: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatefulSetSpec {
    #[serde(default)]
    replicas: Option<u32>,
    #[serde(default)]
    ordinals: Option<Ordinals>,
    /// The headless Service of the pods.
    #[serde(default)]
    service_name: String,
    /// A template has the fields of a pod, without name and status.
    #[serde(default)]
    template: Pod,
    #[serde(default, deserialize_with = "null_as_default")]
    volume_claim_templates: Vec<ClaimTemplate>,
    #[serde(default)]
    persistent_volume_claim_retention_policy: Option<RetentionPolicy>,
    #[serde(default)]
    update_strategy: UpdateStrategy,
    /// The API server sets `OrderedReady` if the field is absent.
    #[serde(default)]
    pod_management_policy: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct UpdateStrategy {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    rolling_update: Option<RollingUpdate>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct RollingUpdate {
    /// The ordinal below which pods keep their template.
    #[serde(default)]
    partition: u32,
}

/// The numbers of the pods.
#[derive(Clone, Debug, Default, Deserialize)]
struct Ordinals {
    #[serde(default)]
    start: u32,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct ClaimTemplate {
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RetentionPolicy {
    #[serde(default)]
    when_deleted: String,
}

heap_size_of_fields! {
    StatefulSet { metadata, spec, status }
    StatefulSetStatus { current_revision, update_revision }
    StatefulSetSpec { service_name, template, volume_claim_templates, persistent_volume_claim_retention_policy, update_strategy }
    UpdateStrategy { kind }
    ClaimTemplate { metadata }
    RetentionPolicy { when_deleted }
}

// === impl StatefulSet ===

impl StatefulSet {
    /// Returns the first pod of this StatefulSet as the controller would create it, with the volumes of its claims.
    pub fn template(&self, namespace: &str) -> Pod {
        self.pod(namespace, self.first_ordinal())
    }

    /// Returns the pod with this ordinal as the controller would create it.
    pub fn pod(&self, namespace: &str, ordinal: u32) -> Pod {
        let mut pod = self.spec.template.clone();
        namespace.clone_into(&mut pod.metadata.namespace);
        pod.metadata.name = format!("{}-{ordinal}", self.metadata.name);
        // `initIdentity` in `pkg/controller/statefulset/stateful_set_utils.go`.
        pod.spec.hostname.clone_from(&pod.metadata.name);
        pod.spec.subdomain.clone_from(&self.spec.service_name);
        pod.metadata.owner_references = vec![OwnerReference {
            api_version: String::from("apps/v1"),
            kind: String::from("StatefulSet"),
            name: self.metadata.name.clone(),
            uid: self.metadata.uid.clone(),
            controller: Some(true),
        }];
        pod.spec.volumes.extend(self.spec.volume_claim_templates.iter().map(|template| {
            let name = template.metadata.name.clone();
            let claim_name = format!("{name}-{}-{ordinal}", self.metadata.name);
            Volume { name, persistent_volume_claim: Some(VolumeClaim { claim_name }), ..Volume::default() }
        }));
        pod
    }

    /// Returns the number of pods that the controller keeps in existence. The API server sets 1 if the field is absent.
    pub fn replicas(&self) -> u32 {
        self.spec.replicas.unwrap_or(1)
    }

    /// Returns the ordinal of the first pod.
    pub fn first_ordinal(&self) -> u32 {
        self.spec.ordinals.as_ref().map_or(0, |ordinals| ordinals.start)
    }

    /// Returns the ordinal in the name of a pod, if the controller would keep that pod in existence.
    pub fn ordinal_of_pod(&self, pod: &str) -> Option<u32> {
        let text = pod.strip_prefix(&self.metadata.name)?.strip_prefix('-')?;
        let ordinal: u32 = text.parse().ok().filter(|ordinal: &u32| ordinal.to_string() == text)?;
        let first = self.first_ordinal();
        (first..first.saturating_add(self.replicas())).contains(&ordinal).then_some(ordinal)
    }

    /// Returns the revision to which a rollout in progress updates the pods.
    pub fn rollout_revision(&self) -> Option<&str> {
        let StatefulSetStatus { current_revision, update_revision } = &self.status;
        (current_revision != update_revision && !update_revision.is_empty())
            .then_some(update_revision.as_str())
    }

    /// Whether the controller waits until a pod is ready before it continues with the next one.
    pub fn starts_in_order(&self) -> bool {
        self.spec.pod_management_policy != "Parallel"
    }

    /// Whether the controller wants to replace the pod by one of a new template.
    pub fn replaces(&self, pod: &Pod) -> bool {
        let UpdateStrategy { kind, rolling_update } = &self.spec.update_strategy;
        let partition = rolling_update.unwrap_or_default().partition;
        let revision = &self.status.update_revision;
        kind != "OnDelete"
            && !revision.is_empty()
            && pod.revision() != revision
            && self.ordinal_of_pod(&pod.metadata.name).is_some_and(|ordinal| ordinal >= partition)
    }

    /// Returns the ordinal of the pod to which a claim of this name belongs: claims are named
    /// `TEMPLATE-STATEFULSET-ORDINAL`.
    pub fn ordinal_of_claim(&self, claim: &str) -> Option<u32> {
        self.spec.volume_claim_templates.iter().find_map(|template| {
            let rest = claim.strip_prefix(&template.metadata.name)?.strip_prefix('-')?;
            rest.strip_prefix(&self.metadata.name)?.strip_prefix('-')?.parse().ok()
        })
    }

    /// Whether the deletion of this StatefulSet deletes the claim: the claim's owner is this StatefulSet, or the
    /// StatefulSet controller will make it the owner.
    pub fn deletes_claim(&self, claim: &Claim) -> bool {
        let owners = &claim.metadata.owner_references;
        let is_owned = owners.iter().any(|owner| owner.uid == self.metadata.uid && !owner.uid.is_empty());
        let policy = self.spec.persistent_volume_claim_retention_policy.as_ref();
        let is_deleted_with_set = policy.is_some_and(|policy| policy.when_deleted == DELETE);
        is_owned || (is_deleted_with_set && self.ordinal_of_claim(&claim.metadata.name).is_some())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stateful_set(when_deleted: &str) -> StatefulSet {
        serde_json::from_value(json!({
            "metadata": {"name": "etcd", "uid": "set"},
            "spec": {
                "serviceName": "peers",
                "template": {"spec": {"containers": [{"name": "etcd"}]}},
                "volumeClaimTemplates": [{"metadata": {"name": "data"}}],
                "persistentVolumeClaimRetentionPolicy": {"whenDeleted": when_deleted}
            }
        }))
        .unwrap()
    }

    fn claim(name: &str, owner: &str) -> Claim {
        let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "etcd", "uid": owner});
        serde_json::from_value(json!({"metadata": {"name": name, "ownerReferences": [owner]}})).unwrap()
    }

    #[test]
    fn deletes_claims_by_owner_and_by_retention_policy() {
        let (retaining, deleting) = (stateful_set("Retain"), stateful_set("Delete"));
        assert!(!retaining.deletes_claim(&claim("data-etcd-0", "former set")));
        // The controller removes the owner some time after a change of the policy.
        assert!(retaining.deletes_claim(&claim("data-etcd-0", "set")));
        assert!(deleting.deletes_claim(&claim("data-etcd-0", "former set")));
        for other in ["data-etcd", "data-etcd-x", "data-etcd-events-0", "logs-etcd-0", "data-etcd-0-0"] {
            assert!(!deleting.deletes_claim(&claim(other, "former set")), "{other}");
        }
        assert_eq!(deleting.ordinal_of_claim("data-etcd-12"), Some(12));
    }

    #[test]
    fn pods_are_numbered_from_the_first_ordinal() {
        let set: StatefulSet = serde_json::from_value(json!({
            "metadata": {"name": "etcd"},
            "spec": {"replicas": 3, "ordinals": {"start": 4}, "volumeClaimTemplates": [{"metadata": {"name": "data"}}]},
        }))
        .unwrap();
        assert_eq!(set.template("prod").metadata.name, "etcd-4");
        assert_eq!((set.ordinal_of_pod("etcd-4"), set.ordinal_of_pod("etcd-6")), (Some(4), Some(6)));
        for other in ["etcd-3", "etcd-7", "etcd-05", "etcd-+5", "etcd-", "etcd-x-5", "web-5"] {
            assert_eq!(set.ordinal_of_pod(other), None, "{other}");
        }
        let pod = set.pod("prod", 5);
        let claim = pod.spec.volumes[0].persistent_volume_claim.as_ref().unwrap();
        assert_eq!((pod.spec.hostname.as_str(), claim.claim_name.as_str()), ("etcd-5", "data-etcd-5"));
    }

    #[test]
    fn template_has_claims_and_names_of_pod() {
        let pod = stateful_set("Retain").template("prod");
        let claim = pod.spec.volumes[0].persistent_volume_claim.as_ref().unwrap();
        assert_eq!((pod.spec.volumes[0].name.as_str(), claim.claim_name.as_str()), ("data", "data-etcd-0"));
        assert_eq!((pod.metadata.namespace.as_str(), pod.metadata.name.as_str()), ("prod", "etcd-0"));
        assert_eq!(pod.stateful_set(), Some("etcd"));
        assert_eq!((pod.spec.hostname.as_str(), pod.spec.subdomain.as_str()), ("etcd-0", "peers"));
    }
}
