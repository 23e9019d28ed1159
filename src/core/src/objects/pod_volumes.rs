//! The volumes of a pod, as far as they hold data of members, Secrets or `ConfigMaps`.
//!
//! Source: `k8s.io/api/core/v1/types.go`.

use serde::Deserialize;

use super::nullable::null_as_default;

/// `Volume`, in part: the kinds that determine whether data outlives the pod, and those that hold Secrets or `ConfigMaps`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// The volume's name.
    #[serde(default)]
    pub name: String,
    /// A claim: the data outlives the pod.
    #[serde(default)]
    pub persistent_volume_claim: Option<VolumeClaim>,
    /// A path of the node: the data outlives the pod, on that node.
    #[serde(default)]
    pub host_path: Option<serde::de::IgnoredAny>,
    /// Storage that the specification of the pod names itself, without a claim: the data outlives the pod. An inline volume of
    /// a CSI driver is not among these. It ends with the pod, as a generic ephemeral volume does.
    #[serde(
        default,
        alias = "nfs",
        alias = "iscsi",
        alias = "cephfs",
        alias = "rbd",
        alias = "fc",
        alias = "glusterfs",
        alias = "cinder",
        alias = "flexVolume",
        alias = "awsElasticBlockStore",
        alias = "azureDisk",
        alias = "azureFile",
        alias = "gcePersistentDisk",
        alias = "vsphereVolume",
        alias = "portworxVolume",
        alias = "quobyte",
        alias = "scaleIO",
        alias = "storageos",
        alias = "photonPersistentDisk"
    )]
    pub external_storage: Option<serde::de::IgnoredAny>,
    /// A Secret, as files.
    #[serde(default)]
    pub secret: Option<DataVolume>,
    /// A `ConfigMap`, as files.
    #[serde(default)]
    pub config_map: Option<DataVolume>,
    /// Several sources in one volume.
    #[serde(default)]
    pub projected: Option<ProjectedVolume>,
}

/// `PersistentVolumeClaimVolumeSource`, in part.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeClaim {
    /// The claim's name.
    #[serde(default)]
    pub claim_name: String,
}

/// `SecretVolumeSource`, `ConfigMapVolumeSource` and their projections, in part: the name is in `secretName` in the first
/// type, and in `name` in the others.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct DataVolume {
    /// The name of the Secret or of the `ConfigMap`.
    #[serde(default, alias = "secretName")]
    pub name: String,
    /// The keys and their files. If empty, each key becomes a file with the key's name.
    #[serde(default, deserialize_with = "null_as_default")]
    pub items: Vec<KeyToPath>,
}

/// A key of a Secret or of a `ConfigMap`, and its file.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct KeyToPath {
    /// The key.
    #[serde(default)]
    pub key: String,
    /// The file's path in the volume.
    #[serde(default)]
    pub path: String,
}

/// `ProjectedVolumeSource`, in part.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ProjectedVolume {
    /// The sources of the volume.
    #[serde(default, deserialize_with = "null_as_default")]
    pub sources: Vec<Projection>,
}

/// `VolumeProjection`, in part.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Projection {
    /// A Secret.
    #[serde(default)]
    pub secret: Option<DataVolume>,
    /// A `ConfigMap`.
    #[serde(default)]
    pub config_map: Option<DataVolume>,
}

// === impl Volume ===

impl Volume {
    /// The Secrets in this volume.
    pub fn secrets(&self) -> impl Iterator<Item = &DataVolume> {
        let projected = self.projections().filter_map(|source| source.secret.as_ref());
        self.secret.iter().chain(projected).filter(|secret| !secret.name.is_empty())
    }

    /// The `ConfigMaps` in this volume.
    pub fn config_maps(&self) -> impl Iterator<Item = &DataVolume> {
        let projected = self.projections().filter_map(|source| source.config_map.as_ref());
        self.config_map.iter().chain(projected).filter(|config_map| !config_map.name.is_empty())
    }

    fn projections(&self) -> impl Iterator<Item = &Projection> {
        self.projected.iter().flat_map(|volume| &volume.sources)
    }
}

// === impl DataVolume ===

impl DataVolume {
    /// The key that provides the file at this path of the volume.
    pub fn key_for_path(&self, path: &str) -> Option<String> {
        if self.items.is_empty() {
            return (!path.is_empty() && !path.contains('/')).then(|| path.to_owned());
        }
        self.items.iter().find(|item| item.path == path).map(|item| item.key.clone())
    }
}
