//! Mounts of volumes in containers, and the paths there.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::fields::{Check, Rule, check_fields};
use crate::config::pod_parts::text;
use etcd_guard_core::config::diagnostic::Validator;

const MOUNT: &[Rule] = &[
    ("mountPropagation", Check::OneOf(&["None", "HostToContainer", "Bidirectional"])),
    ("subPath|subPathExpr", Check::Text(check_descending_path)),
];

/// The volumes that mounts of a template may use: whether each can be a block device. It is unknown for a volume of the
/// pod.
pub(crate) type Volumes<'a> = BTreeMap<&'a str, Option<bool>>;

/// Checks mounts: each has a volume, and the paths are unique. `is_privileged` applies to the container.
pub(crate) fn check_mounts<'a>(
    mounts: impl IntoIterator<Item = &'a Value>,
    volumes: &Volumes<'_>,
    is_privileged: bool,
    known_fields_only: bool,
    validator: &mut Validator<'_>,
) {
    let mut paths = BTreeSet::new();
    for (index, mount) in mounts.into_iter().enumerate() {
        let mut validator = validator.at(index);
        check_fields(mount, MOUNT, known_fields_only, &mut validator);
        check_volume_name(mount, volumes, &mut validator);
        check_read_only(mount, &mut validator);
        if text(mount, "mountPropagation") == Some("Bidirectional") && !is_privileged {
            validator.at("mountPropagation").report("Bidirectional requires a privileged container");
        }
        let Some(path) = text(mount, "mountPath") else { continue };
        let mut validator = validator.at("mountPath");
        if !path.starts_with('/') {
            validator.report(format!("{path:?} is not an absolute path"));
        } else if !paths.insert(path) {
            validator.report(format!("mount path {path} is used more than once"));
        }
    }
}

/// Checks the block devices of a container.
pub(super) fn check_devices(devices: &[Value], volumes: &Volumes<'_>, validator: &mut Validator<'_>) {
    for (index, device) in devices.iter().enumerate() {
        let mut validator = validator.at(index);
        check_volume_name(device, volumes, &mut validator);
        let name = text(device, "name").unwrap_or_default();
        if volumes.get(name) == Some(&Some(false)) {
            let message =
                format!("volume {name} is not a block device: expected persistentVolumeClaim or ephemeral");
            validator.at("name").report(message);
        }
    }
}

fn check_volume_name(mount: &Value, volumes: &Volumes<'_>, validator: &mut Validator<'_>) {
    if let Some(name) = text(mount, "name").filter(|name| !volumes.contains_key(name)) {
        let message = format!(
            "unknown volume {name:?}: add it to volumes, or to externalVolumes if the pod defines it"
        );
        validator.at("name").report(message);
    }
}

/// Checks that a recursively read-only mount is read-only.
fn check_read_only(mount: &Value, validator: &mut Validator<'_>) {
    let is_recursive = matches!(text(mount, "recursiveReadOnly"), Some("Enabled" | "IfPossible"));
    if is_recursive && mount.get("readOnly") != Some(&Value::Bool(true)) {
        validator.at("recursiveReadOnly").report("requires readOnly: true");
    }
}

/// Checks a path that must not lead upwards.
pub(super) fn check_path_without_parents(path: &str, validator: &mut Validator<'_>) {
    if path.split('/').any(|part| part == "..") {
        validator.report(format!("{path:?} contains '..'"));
    }
}

/// Checks a path relative to the root of a volume.
pub(super) fn check_descending_path(path: &str, validator: &mut Validator<'_>) {
    if path.starts_with('/') {
        validator.report(format!("{path:?} is not a relative path"));
    }
    check_path_without_parents(path, validator);
}
