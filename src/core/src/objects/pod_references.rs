//! The objects of its namespace that a pod needs to start: Secrets, `ConfigMaps` and its service account.
//!
//! Source: `k8s.io/api/core/v1/types.go`. The pull secrets of images are not included: a node that has the image does
//! not need them.

use serde::Deserialize;

use super::{heap_size::heap_size_of_fields, pod::null_as_default};

/// `ConfigMaps` that a controller creates again in every namespace, and that most pods mount with the token of their
/// service account. The first is from Kubernetes, the second from `OpenShift`.
pub const PUBLISHED_CONFIG_MAPS: [&str; 2] = ["kube-root-ca.crt", "openshift-service-ca.crt"];

/// The service account that Kubernetes creates again in every namespace.
const DEFAULT_ACCOUNT: &str = "default";

/// The references of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct PodReferences {
    #[serde(default)]
    spec: Spec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    service_account_name: String,
    #[serde(default, deserialize_with = "null_as_default")]
    containers: Vec<Container>,
    #[serde(default, deserialize_with = "null_as_default")]
    init_containers: Vec<Container>,
    #[serde(default, deserialize_with = "null_as_default")]
    volumes: Vec<Volume>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    #[serde(default, deserialize_with = "null_as_default")]
    env: Vec<Variable>,
    #[serde(default, deserialize_with = "null_as_default")]
    env_from: Vec<EnvFromSource>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Variable {
    #[serde(default)]
    value_from: Option<VariableSource>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct VariableSource {
    #[serde(default)]
    secret_key_ref: Option<Reference>,
    #[serde(default)]
    config_map_key_ref: Option<Reference>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct EnvFromSource {
    #[serde(default)]
    secret_ref: Option<Reference>,
    #[serde(default)]
    config_map_ref: Option<Reference>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    #[serde(default)]
    secret: Option<SecretSource>,
    #[serde(default)]
    config_map: Option<Reference>,
    #[serde(default)]
    projected: Option<ProjectedVolume>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SecretSource {
    #[serde(default)]
    secret_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct ProjectedVolume {
    #[serde(default, deserialize_with = "null_as_default")]
    sources: Vec<Projection>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Projection {
    #[serde(default)]
    secret: Option<Reference>,
    #[serde(default)]
    config_map: Option<Reference>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Reference {
    #[serde(default)]
    name: String,
}

heap_size_of_fields! {
    PodReferences { spec }
    Spec { service_account_name, containers, init_containers, volumes }
    Container { env, env_from }
    Variable { value_from }
    VariableSource { secret_key_ref, config_map_key_ref }
    EnvFromSource { secret_ref, config_map_ref }
    Volume { secret, config_map, projected }
    SecretSource { secret_name }
    ProjectedVolume { sources }
    Projection { secret, config_map }
    Reference { name }
}

// === impl PodReferences ===

impl PodReferences {
    /// Whether the pod uses the Secret of this name, as a volume or for environment variables.
    pub fn uses_secret(&self, name: &str) -> bool {
        let volumes = self.spec.volumes.iter().filter_map(|volume| volume.secret.as_ref());
        let is_volume = volumes.into_iter().any(|secret| secret.secret_name == name);
        let projected = self.projections().filter_map(|source| source.secret.as_ref());
        let keys = self.sources().filter_map(|source| source.secret_key_ref.as_ref());
        let whole = self.whole_sources().filter_map(|source| source.secret_ref.as_ref());
        is_volume || projected.chain(keys).chain(whole).any(|reference| reference.name == name)
    }

    /// Whether the pod uses the `ConfigMap` of this name, as a volume or for environment variables.
    pub fn uses_config_map(&self, name: &str) -> bool {
        let volumes = self.spec.volumes.iter().filter_map(|volume| volume.config_map.as_ref());
        let projected = self.projections().filter_map(|source| source.config_map.as_ref());
        let keys = self.sources().filter_map(|source| source.config_map_key_ref.as_ref());
        let whole = self.whole_sources().filter_map(|source| source.config_map_ref.as_ref());
        let mut references = volumes.chain(projected).chain(keys).chain(whole);
        !PUBLISHED_CONFIG_MAPS.contains(&name) && references.any(|reference| reference.name == name)
    }

    /// Whether the pod runs with the service account of this name: without it, a successor of the pod cannot be created.
    pub fn uses_service_account(&self, name: &str) -> bool {
        name != DEFAULT_ACCOUNT && self.spec.service_account_name == name
    }

    fn projections(&self) -> impl Iterator<Item = &Projection> {
        self.spec
            .volumes
            .iter()
            .filter_map(|volume| volume.projected.as_ref())
            .flat_map(|volume| &volume.sources)
    }

    fn containers(&self) -> impl Iterator<Item = &Container> {
        self.spec.containers.iter().chain(&self.spec.init_containers)
    }

    fn sources(&self) -> impl Iterator<Item = &VariableSource> {
        let variables = self.containers().flat_map(|container| &container.env);
        variables.filter_map(|variable| variable.value_from.as_ref())
    }

    fn whole_sources(&self) -> impl Iterator<Item = &EnvFromSource> {
        self.containers().flat_map(|container| &container.env_from)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finds_every_way_to_use_an_object() {
        let pod: PodReferences = serde_json::from_value(json!({"spec": {
            "serviceAccountName": "etcd",
            "containers": [{
                "env": [
                    {"name": "A", "value": "unrelated"},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "secret-env", "key": "k"}}},
                    {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "map-env", "key": "k"}}},
                ],
                "envFrom": [{"secretRef": {"name": "secret-from"}}, {"configMapRef": {"name": "map-from"}}],
            }],
            "initContainers": [{"envFrom": [{"secretRef": {"name": "secret-init"}}], "env": null}],
            "volumes": [
                {"name": "a", "secret": {"secretName": "secret-volume"}},
                {"name": "b", "configMap": {"name": "map-volume"}},
                {"name": "c", "projected": {"sources": [
                    {"secret": {"name": "secret-projected"}},
                    {"configMap": {"name": "map-projected"}},
                    {"configMap": {"name": "kube-root-ca.crt"}},
                    {"serviceAccountToken": {"path": "token"}},
                ]}},
                {"name": "d", "emptyDir": {}},
            ],
        }}))
        .unwrap();
        for way in ["env", "from", "volume", "projected"] {
            assert!(pod.uses_secret(&format!("secret-{way}")), "{way}");
            assert!(pod.uses_config_map(&format!("map-{way}")), "{way}");
            assert!(
                !pod.uses_secret(&format!("map-{way}")) && !pod.uses_config_map(&format!("secret-{way}"))
            );
        }
        assert!(pod.uses_secret("secret-init"));
        assert!(!pod.uses_secret("unrelated") && !pod.uses_secret("") && !pod.uses_config_map(""));
        assert!(!pod.uses_config_map("kube-root-ca.crt"), "a controller creates it again");
        assert!(pod.uses_service_account("etcd") && !pod.uses_service_account("other"));
        let default: PodReferences =
            serde_json::from_value(json!({"spec": {"serviceAccountName": "default"}})).unwrap();
        assert!(!default.uses_service_account("default"));
    }
}
