//! Security contexts of pods and containers.

use serde_json::Value;

use super::{
    fields::{Check, Rule, check_fields},
    paths::check_descending_path,
};
use crate::config::validation::{diagnostic::Validator, pod_parts::items};

/// The highest id of a user or group.
const MAX_ID: i64 = 0x7fff_ffff;

/// Maximum length of the name of a kernel parameter.
const MAX_SYSCTL_LENGTH: usize = 253;

/// The profile that names a file of the node.
const LOCALHOST: &str = "Localhost";

/// Rules that both contexts share.
const SHARED: &[Rule] = &[
    ("runAsUser|runAsGroup", Check::Range(0, MAX_ID)),
    ("seccompProfile|appArmorProfile.type", Check::Required),
    ("seccompProfile|appArmorProfile.type", Check::OneOf(&[LOCALHOST, "RuntimeDefault", "Unconfined"])),
    ("seccompProfile|appArmorProfile", Check::Value(check_profile)),
    ("seccompProfile.localhostProfile", Check::Text(check_descending_path)),
];

const CONTAINER: &[Rule] =
    &[("procMount", Check::OneOf(&["Default", "Unmasked"])), ("", Check::Value(check_escalation))];

const POD: &[Rule] = &[
    ("fsGroup", Check::Range(0, MAX_ID)),
    ("supplementalGroups[]", Check::Range(0, MAX_ID)),
    ("fsGroupChangePolicy", Check::OneOf(&["OnRootMismatch", "Always"])),
    ("supplementalGroupsPolicy", Check::OneOf(&["Merge", "Strict"])),
    ("seLinuxChangePolicy", Check::OneOf(&["MountOption", "Recursive"])),
    ("sysctls[].name", Check::Required),
    ("sysctls[].name", Check::Text(check_sysctl)),
];

/// Checks the security context of a container.
pub(super) fn check_security_context(
    context: &Value,
    known_fields_only: bool,
    validator: &mut Validator<'_>,
) {
    for rules in [SHARED, CONTAINER] {
        check_fields(context, rules, known_fields_only, validator);
    }
}

/// Checks the security context of a pod.
pub(in crate::config) fn check_pod_security_context(
    context: &Value,
    known_fields_only: bool,
    validator: &mut Validator<'_>,
) {
    for rules in [SHARED, POD] {
        check_fields(context, rules, known_fields_only, validator);
    }
}

/// Checks that exactly the profile `Localhost` names a file.
fn check_profile(profile: &Value, validator: &mut Validator<'_>) {
    let is_localhost = profile.get("type").is_some_and(|kind| kind == LOCALHOST);
    let has_file = profile.get("localhostProfile").is_some_and(|file| !file.is_null());
    match (is_localhost, has_file) {
        (true, false) => validator.at("localhostProfile").report("is missing: type Localhost requires it"),
        (false, true) => validator.at("localhostProfile").report("is allowed only for type Localhost"),
        _ => {}
    }
}

/// Checks that a container without privilege escalation is not privileged.
fn check_escalation(context: &Value, validator: &mut Validator<'_>) {
    if context.get("allowPrivilegeEscalation") != Some(&Value::Bool(false)) {
        return;
    }
    let added = context.get("capabilities").map_or(&[][..], |capabilities| items(capabilities, "add"));
    let cause = if context.get("privileged") == Some(&Value::Bool(true)) {
        "privileged: true"
    } else if added.iter().any(|name| name == "CAP_SYS_ADMIN") {
        "the capability CAP_SYS_ADMIN"
    } else {
        return;
    };
    validator.at("allowPrivilegeEscalation").report(format!("contradicts {cause}"));
}

fn check_sysctl(name: &str, validator: &mut Validator<'_>) {
    let is_edge =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let is_segment = |segment: &str| {
        let bytes = segment.as_bytes();
        let is_allowed = |byte: &u8| is_edge(Some(byte)) || matches!(byte, b'-' | b'_');
        is_edge(bytes.first()) && is_edge(bytes.last()) && bytes.iter().all(is_allowed)
    };
    if name.len() > MAX_SYSCTL_LENGTH || !name.split(['.', '/']).all(is_segment) {
        validator.report(format!("{name:?} is not the name of a kernel parameter"));
    }
}
