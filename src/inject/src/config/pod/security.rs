//! Security contexts of pods and containers.

use serde_json::Value;

use super::fields::{Check, Rule, check_fields};
use crate::config::pod_parts::items;
use etcd_guard_core::config::diagnostic::Validator;

/// The highest id of a user or group.
const MAX_ID: i64 = 0x7fff_ffff;

/// The profile that names a file of the node.
const LOCALHOST: &str = "Localhost";

/// Rules that both contexts share.
const SHARED: &[Rule] = &[
    ("runAsUser|runAsGroup", Check::Range(0, MAX_ID)),
    ("seccompProfile|appArmorProfile.type", Check::OneOf(&[LOCALHOST, "RuntimeDefault", "Unconfined"])),
    ("seccompProfile|appArmorProfile", Check::Value(check_profile)),
];

const CONTAINER: &[Rule] =
    &[("procMount", Check::OneOf(&["Default", "Unmasked"])), ("", Check::Value(check_escalation))];

const POD: &[Rule] = &[("fsGroup", Check::Range(0, MAX_ID)), ("sysctls[].name", Check::Text(check_sysctl))];

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
pub(crate) fn check_pod_security_context(
    context: &Value,
    known_fields_only: bool,
    validator: &mut Validator<'_>,
) {
    for rules in [SHARED, POD] {
        check_fields(context, rules, known_fields_only, validator);
    }
}

/// Checks that the profile `Localhost` names a file.
fn check_profile(profile: &Value, validator: &mut Validator<'_>) {
    let is_localhost = profile.get("type").is_some_and(|kind| kind == LOCALHOST);
    if is_localhost && profile.get("localhostProfile").is_none_or(Value::is_null) {
        validator.at("localhostProfile").report("is missing: type Localhost requires it");
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
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_./".contains(&byte);
    if !name.bytes().all(is_allowed) {
        validator.report(format!("{name:?} is not the name of a kernel parameter"));
    }
}
