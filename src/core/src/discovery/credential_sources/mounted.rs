//! Secrets and `ConfigMaps` that a container mounts, and the keys that provide its files.

use super::key_names::has_word;
use crate::objects::{
    data_object::{DataKind, DataObject},
    pod::{Container, Pod, VolumeMount},
    pod_references::PUBLISHED_CONFIG_MAPS,
    pod_volumes::DataVolume,
};

/// A Secret or a `ConfigMap` that is mounted into a container.
pub(super) struct MountedObject<'a> {
    kind: DataKind,
    mount: &'a VolumeMount,
    volume: &'a DataVolume,
}

/// A key of a Secret or of a `ConfigMap`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DataKey {
    /// The object.
    pub object: DataObject,
    /// The key in the object.
    pub key: String,
}

/// Returns the Secrets and `ConfigMaps` that a container mounts, in the order of its mounts.
pub(super) fn mounted_objects<'a>(
    pod: &'a Pod,
    container: &'a Container,
) -> impl Iterator<Item = MountedObject<'a>> {
    container.volume_mounts.iter().flat_map(|mount| {
        let volumes = pod.spec.volumes.iter().filter(|volume| volume.name == mount.name);
        volumes.flat_map(move |volume| {
            let secrets = volume.secrets().map(|secret| (DataKind::Secret, secret));
            let config_maps = volume.config_maps().map(|config_map| (DataKind::ConfigMap, config_map));
            secrets.chain(config_maps).map(move |(kind, volume)| MountedObject { kind, mount, volume })
        })
    })
}

/// Returns the key that provides this file of a container.
pub fn key_for_file(pod: &Pod, container: &Container, file: &str) -> Option<DataKey> {
    mounted_objects(pod, container).find_map(|mounted| {
        let key = mounted.key_for_file(file)?;
        Some(DataKey { object: mounted.object(), key })
    })
}

// === impl MountedObject ===

impl MountedObject<'_> {
    pub(super) fn object(&self) -> DataObject {
        DataObject { kind: self.kind, name: self.volume.name.clone() }
    }

    pub(super) fn is_secret(&self) -> bool {
        self.kind == DataKind::Secret
    }

    /// Whether this is a `ConfigMap` with the CA of the API server, which most pods mount with the token of their account.
    pub(super) fn is_published(&self) -> bool {
        self.kind == DataKind::ConfigMap && PUBLISHED_CONFIG_MAPS.contains(&self.volume.name.as_str())
    }

    /// Whether the names show a certificate for clients.
    pub(super) fn is_for_clients(&self) -> bool {
        let has_any = |words: &[&str]| words.iter().any(|word| self.has_word(word));
        has_any(&["client", "clients"]) && !has_any(&["server", "servers", "peer", "peers"])
    }

    /// Whether the name of the object or of its volume contains this word.
    pub(super) fn has_word(&self, word: &str) -> bool {
        has_word(&self.volume.name, word) || has_word(&self.mount.name, word)
    }

    /// Whether this object can provide the file. Without a list of keys, the names of its files are not known.
    pub(super) fn contains(&self, file: &str) -> bool {
        self.path_in_volume(file)
            .is_some_and(|path| self.volume.items.is_empty() || self.volume.key_for_path(&path).is_some())
    }

    pub(super) fn key_for_file(&self, file: &str) -> Option<String> {
        self.volume.key_for_path(&self.path_in_volume(file)?)
    }

    /// Returns the keys that the volume shows, each with the name of its file; empty if it shows all keys.
    pub(super) fn items(&self) -> Vec<(String, String)> {
        let items = self.volume.items.iter();
        items.map(|item| (item.key.clone(), file_name(&item.path).to_owned())).collect()
    }

    /// Returns the path of the file inside the volume.
    fn path_in_volume(&self, file: &str) -> Option<String> {
        let below = file.strip_prefix(self.mount.mount_path.trim_end_matches('/'))?;
        match (self.mount.sub_path.trim_matches('/'), below) {
            ("", below) => below.strip_prefix('/').map(str::to_owned),
            // The mount is a single file, or a folder of the volume.
            (sub_path, "") => Some(sub_path.to_owned()),
            (sub_path, below) => below.starts_with('/').then(|| format!("{sub_path}{below}")),
        }
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
