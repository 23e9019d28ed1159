//! Volumes.

use serde_json::Value;

use super::{
    fields::{Check, Rule, check_fields, is_empty, report_conflict},
    mounts::{Volumes, check_descending_path, check_path_without_parents},
};
use crate::config::pod_parts::text;
use etcd_guard_core::config::{diagnostic::Validator, syntax::check_name};

/// The highest mode of a file. `777` in the file is a decimal number.
const MAX_MODE: i64 = 0o777;

/// The kinds of volumes that can be block devices.
const BLOCK_SOURCES: [&str; 2] = ["persistentVolumeClaim", "ephemeral"];

const VOLUME: &[Rule] = &[
    ("", Check::Value(check_one_source)),
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
    ("secret.secretName", Check::Required),
    ("persistentVolumeClaim.claimName", Check::Required),
    ("nfs.path", Check::Text(check_absolute_path)),
    ("ephemeral.volumeClaimTemplate.spec.accessModes", Check::Required),
    ("projected.sources[]", Check::Value(check_one_source)),
    ("projected.sources[].serviceAccountToken.expirationSeconds", Check::Range(600, 1 << 32)),
    ("configMap|secret|downwardAPI|projected.defaultMode", Check::Value(check_mode)),
    ("configMap|secret.items[].path", Check::Text(check_descending_path)),
    ("configMap|secret.items[].mode", Check::Value(check_mode)),
    ("downwardAPI.items[]", Check::ExactlyOne(&["fieldRef", "resourceFieldRef"])),
    ("downwardAPI.items[].resourceFieldRef.containerName", Check::Required),
];

/// Checks the volumes of a template. Returns the volumes that its mounts may use, which include `external` ones.
pub(crate) fn check_volumes<'a>(
    volumes: &'a [Value],
    external: impl IntoIterator<Item = &'a str>,
    known_fields_only: bool,
    validator: &mut Validator<'_>,
) -> Volumes<'a> {
    let mut known: Volumes<'a> = external.into_iter().map(|name| (name, None)).collect();
    let mut validator = validator.at("volumes");
    for (index, volume) in volumes.iter().enumerate() {
        let mut validator = validator.at(index);
        check_fields(volume, VOLUME, known_fields_only, &mut validator);
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

/// Checks that a volume, or a part of a projected volume, has one source at most. Each field but the name is a source.
fn check_one_source(volume: &Value, validator: &mut Validator<'_>) {
    let fields = volume.as_object().into_iter().flatten();
    let sources = fields.filter(|(name, source)| *name != "name" && !is_empty(source));
    let sources: Vec<_> = sources.map(|(name, _)| name.as_str()).collect();
    if sources.len() > 1 {
        report_conflict(&sources, validator);
    }
}

fn check_absolute_path(path: &str, validator: &mut Validator<'_>) {
    if !path.starts_with('/') {
        validator.report(format!("{path:?} is not an absolute path"));
    }
}
