//! The parts of a Deployment or `ReplicaSet` (`apps/v1`) that determine which pods it creates.
//!
//! Source: `k8s.io/api/apps/v1/types.go`.

use serde::Deserialize;

use super::pod::{Metadata, OwnerReference, Pod};

/// A Deployment or a `ReplicaSet`, in part.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct PodTemplate {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    spec: PodTemplateSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct PodTemplateSpec {
    #[serde(default)]
    replicas: Option<u32>,
    /// A template has the fields of a pod, without name and status.
    #[serde(default)]
    template: Pod,
}

// === impl PodTemplate ===

impl PodTemplate {
    /// Returns the number of pods that the controller keeps in existence. The API server sets 1 if the field is absent.
    pub fn replicas(&self) -> u32 {
        self.spec.replicas.unwrap_or(1)
    }

    /// Returns a pod as the controller would create it. The pods of a Deployment have a `ReplicaSet` as well.
    pub fn pod(&self, namespace: &str) -> Pod {
        let mut pod = self.spec.template.clone();
        namespace.clone_into(&mut pod.metadata.namespace);
        pod.metadata.name = format!("{}-0", self.metadata.name);
        pod.metadata.owner_references = vec![OwnerReference {
            api_version: String::from("apps/v1"),
            kind: String::from("ReplicaSet"),
            name: self.metadata.name.clone(),
            uid: self.metadata.uid.clone(),
            controller: Some(true),
        }];
        pod
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn returns_pods_of_a_replica_set() {
        let set = json!({
            "metadata": {"name": "ea", "uid": "set"},
            "spec": {"template": {"metadata": {"labels": {"app": "etcd"}}, "spec": {"containers": [{"name": "etcd"}]}}},
        });
        let set: PodTemplate = serde_json::from_value(set).unwrap();
        assert_eq!(set.replicas(), 1);
        let pod = set.pod("prod");
        assert_eq!(pod.metadata.namespace, "prod");
        assert_eq!(pod.controller().map(OwnerReference::key), Some(String::from("ReplicaSet/ea/set")));
        assert_eq!(pod.spec.containers.len(), 1);
        let stopped: PodTemplate = serde_json::from_value(json!({"spec": {"replicas": 0}})).unwrap();
        assert_eq!(stopped.replicas(), 0);
    }
}
