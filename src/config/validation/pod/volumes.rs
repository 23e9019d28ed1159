//! Volumes.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    environment::{check_file_field, check_resource_field},
    fields::{Check, Rule, check_fields},
    mounts::Volumes,
    paths::{check_absolute_path, check_file_path, check_path_without_parents},
};
use crate::{
    config::validation::{
        diagnostic::Validator,
        pod_parts::{items, text},
        syntax::check_name,
    },
    json::SharedJson,
};

/// The highest mode of a file. `777` in the file is a decimal number.
const MAX_MODE: i64 = 0o777;

/// The kinds of volumes.
const SOURCES: &[&str] = &[
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "glusterfs",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "persistentVolumeClaim",
    "photonPersistentDisk",
    "portworxVolume",
    "projected",
    "quobyte",
    "rbd",
    "scaleIO",
    "secret",
    "storageos",
    "vsphereVolume",
];

/// The kinds of volumes that can be block devices.
const BLOCK_SOURCES: [&str; 2] = ["persistentVolumeClaim", "ephemeral"];

/// The kinds of sources of a projected volume.
const PROJECTIONS: &[&str] =
    &["clusterTrustBundle", "configMap", "downwardAPI", "podCertificate", "secret", "serviceAccountToken"];

const VOLUME: &[Rule] = &[
    ("", Check::AtMostOne(SOURCES)),
    ("hostPath.path", Check::Required),
    ("hostPath.path", Check::Text(check_path_without_parents)),
    (
        "hostPath.type",
        Check::OneOf(&[
            "BlockDevice",
            "CharDevice",
            "Directory",
            "DirectoryOrCreate",
            "File",
            "FileOrCreate",
            "Socket",
        ]),
    ),
    ("configMap.name", Check::Required),
    ("secret.secretName", Check::Required),
    ("configMap|secret|downwardAPI|projected.defaultMode", Check::Value(check_mode)),
    ("persistentVolumeClaim.claimName", Check::Required),
    ("csi.driver", Check::Required),
    ("csi.nodePublishSecretRef.name", Check::Required),
    ("nfs.server|path", Check::Required),
    ("nfs.path", Check::Text(check_absolute_path)),
    ("ephemeral.volumeClaimTemplate", Check::Required),
    ("ephemeral.volumeClaimTemplate.spec.accessModes", Check::Required),
    (
        "ephemeral.volumeClaimTemplate.spec.accessModes[]",
        Check::OneOf(&["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"]),
    ),
    ("ephemeral.volumeClaimTemplate.spec.resources", Check::Required),
    ("ephemeral.volumeClaimTemplate.spec.resources.requests", Check::Required),
    ("ephemeral.volumeClaimTemplate.spec.resources.requests.storage", Check::Required),
    ("ephemeral.volumeClaimTemplate.spec.volumeMode", Check::OneOf(&["Block", "Filesystem"])),
    ("projected.sources[]", Check::AtMostOne(PROJECTIONS)),
    ("projected.sources[].configMap|secret.name", Check::Required),
    ("projected.sources[].serviceAccountToken.path", Check::Required),
    ("projected.sources[].serviceAccountToken.path", Check::Text(check_file_path)),
    ("projected.sources[].serviceAccountToken.expirationSeconds", Check::Range(600, 1 << 32)),
    ("awsElasticBlockStore|cinder|portworxVolume.volumeID", Check::Required),
    ("azureDisk.diskName|diskURI", Check::Required),
    ("azureFile.secretName|shareName", Check::Required),
    ("cephfs|rbd.monitors", Check::Required),
    ("flexVolume.driver", Check::Required),
    ("gcePersistentDisk.pdName", Check::Required),
    ("gitRepo.repository", Check::Required),
    ("glusterfs.endpoints|path", Check::Required),
    ("iscsi.targetPortal|iqn", Check::Required),
    ("photonPersistentDisk.pdID", Check::Required),
    ("quobyte.registry|volume", Check::Required),
    ("rbd.image", Check::Required),
    ("scaleIO.gateway|system|volumeName", Check::Required),
    ("vsphereVolume.volumePath", Check::Required),
];

/// Rules for a file with the content of a key, relative to the volume or the source.
const KEY_FILES: &[Rule] = &[
    ("configMap|secret.items[].key|path", Check::Required),
    ("configMap|secret.items[].path", Check::Text(check_file_path)),
    ("configMap|secret.items[].mode", Check::Value(check_mode)),
];

/// Rules for a file of the downward API, relative to the volume or the source.
const FIELD_FILES: &[Rule] = &[
    ("downwardAPI.items[].path", Check::Required),
    ("downwardAPI.items[].path", Check::Text(check_file_path)),
    ("downwardAPI.items[].mode", Check::Value(check_mode)),
    ("downwardAPI.items[]", Check::ExactlyOne(&["fieldRef", "resourceFieldRef"])),
    ("downwardAPI.items[].fieldRef.fieldPath", Check::Required),
    ("downwardAPI.items[].fieldRef.fieldPath", Check::Text(check_file_field)),
    ("downwardAPI.items[].resourceFieldRef.containerName", Check::Required),
    ("downwardAPI.items[].resourceFieldRef", Check::Value(check_resource_field)),
];

/// Checks the volumes of a template. Returns the volumes that its mounts may use, which include `external` ones.
pub(in crate::config) fn check_volumes<'a>(
    volumes: &'a [SharedJson],
    external: impl IntoIterator<Item = &'a str>,
    known_fields_only: bool,
    validator: &mut Validator<'_>,
) -> Volumes<'a> {
    let mut known: Volumes<'a> = external.into_iter().map(|name| (name, None)).collect();
    let mut validator = validator.at("volumes");
    for (index, volume) in volumes.iter().map(SharedJson::value).enumerate() {
        let mut validator = validator.at(index);
        for rules in [VOLUME, KEY_FILES, FIELD_FILES] {
            check_fields(volume, rules, known_fields_only, &mut validator);
        }
        let sources = volume.get("projected").map_or(&[][..], |projected| items(projected, "sources"));
        for (index, source) in sources.iter().enumerate() {
            let mut validator = validator.at("projected");
            let mut validator = validator.at("sources");
            for rules in [KEY_FILES, FIELD_FILES] {
                check_fields(source, rules, known_fields_only, &mut validator.at(index));
            }
        }
        check_unique_paths(sources, &mut validator);
        let Some(name) = text(volume, "name") else { continue };
        check_name(name, &mut validator.at("name"));
        let can_be_block = BLOCK_SOURCES.iter().any(|source| volume.get(source).is_some());
        if !name.is_empty() && known.insert(name, Some(can_be_block)).is_some() {
            validator.at("name").report(format!("volume name {name} is used more than once"));
        }
    }
    known
}

/// Checks the mode of a file.
fn check_mode(mode: &Value, validator: &mut Validator<'_>) {
    if let Some(mode) = mode.as_i64().filter(|mode| !(0..=MAX_MODE).contains(mode)) {
        validator.report(format!(
            "{mode} is not a mode: expected a decimal number up to {MAX_MODE}, which is 0777"
        ));
    }
}

/// Checks that the sources of a projected volume write different files.
fn check_unique_paths(sources: &[Value], validator: &mut Validator<'_>) {
    let mut paths = BTreeSet::new();
    let files = sources.iter().flat_map(|source| {
        let with_items = ["configMap", "secret", "downwardAPI"].into_iter().filter_map(|key| source.get(key));
        with_items.flat_map(|source| items(source, "items"))
    });
    for path in files.filter_map(|file| text(file, "path")).filter(|path| !path.is_empty()) {
        if !paths.insert(path) {
            validator.at("projected").report(format!("file {path:?} has more than one source"));
        }
    }
}
