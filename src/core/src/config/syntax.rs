//! The syntax that Kubernetes requires of names, keys and values (`apimachinery/pkg/util/validation`).

use serde_json::Value;

use super::diagnostic::Validator;
use crate::label_syntax::{
    MAX_LABEL_NAME_LENGTH, MAX_LABEL_PREFIX_LENGTH, is_dns_label, is_label_part, is_label_prefix,
};

/// Maximum length of a DNS label, of the name part of a key and of a label value.
pub const MAX_NAME_LENGTH: usize = MAX_LABEL_NAME_LENGTH;

/// Maximum length of the prefix of a key, which is a DNS subdomain.
const MAX_PREFIX_LENGTH: usize = MAX_LABEL_PREFIX_LENGTH;

/// Maximum length of the name of a port.
const MAX_PORT_NAME_LENGTH: usize = 15;

/// Checks the name of a container or a volume: a DNS label.
pub fn check_name(name: &str, validator: &mut Validator<'_>) {
    if name.is_empty() {
        validator.report("is empty");
    } else if name.len() > MAX_NAME_LENGTH || !is_dns_label(name) {
        validator.report(format!(
            "{name:?} is not a DNS label: expected at most {MAX_NAME_LENGTH} characters a-z, 0-9 and -"
        ));
    }
}

/// Checks the key of a label or a taint: a qualified name.
pub fn check_key(key: &str, validator: &mut Validator<'_>) {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    if key.is_empty() {
        validator.report("is empty");
    } else if name.len() > MAX_NAME_LENGTH || !is_label_part(name) {
        validator.report(format!(
            "{key:?} is not a qualified name: its name part must be at most {MAX_NAME_LENGTH} alphanumeric characters, \
             '-', '_' or '.', and must start and end with an alphanumeric character"
        ));
    } else if prefix.is_some_and(|prefix| !is_dns_subdomain(prefix)) {
        validator.report(format!(
            "{key:?} is not a qualified name: its prefix part must be a lowercase DNS subdomain of at most \
             {MAX_PREFIX_LENGTH} characters"
        ));
    }
}

/// Checks the key of an annotation. Unlike the prefix of a label key, its prefix may contain capital letters.
pub fn check_annotation_key(key: &str, validator: &mut Validator<'_>) {
    check_key(&key.to_ascii_lowercase(), validator);
}

/// Checks the value of a label.
pub fn check_label_value(value: &str, validator: &mut Validator<'_>) {
    if !value.is_empty() && (value.len() > MAX_NAME_LENGTH || !is_label_part(value)) {
        validator.report(format!(
            "{value:?} is not a label value: expected at most {MAX_NAME_LENGTH} alphanumeric characters, '-', '_' or '.', \
             with an alphanumeric character at the start and the end"
        ));
    }
}

/// Checks a field that accepts only certain values. An absent or empty field selects the default of Kubernetes.
pub fn check_enum(part: &Value, key: &'static str, values: &[&str], validator: &mut Validator<'_>) {
    let Some(value) = part.get(key).and_then(Value::as_str).filter(|value| !value.is_empty()) else { return };
    if !values.contains(&value) {
        validator.at(key).report(format!("unknown value {value:?}: expected one of {}", values.join(", ")));
    }
}

/// Checks a toleration (`pkg/apis/core/validation/validation.go`, `ValidateTolerations`). With `known_fields_only:
/// false`, operators and effects of later releases of Kubernetes are accepted.
pub fn check_toleration(toleration: &Value, known_fields_only: bool, validator: &mut Validator<'_>) {
    let text = |key| toleration.get(key).and_then(Value::as_str).unwrap_or_default();
    let (key, operator, value, effect) = (text("key"), text("operator"), text("value"), text("effect"));
    if known_fields_only {
        check_enum(toleration, "operator", &["Equal", "Exists"], validator);
        check_enum(toleration, "effect", &["NoSchedule", "PreferNoSchedule", "NoExecute"], validator);
    }
    // The type check reports a key that is not a string.
    let no_key =
        toleration.is_object() && toleration.get("key").is_none_or(|key| key.is_null() || *key == "");
    if !key.is_empty() {
        check_key(key, &mut validator.at("key"));
    } else if no_key && matches!(operator, "" | "Equal") {
        validator.at("operator").report("must be Exists where key is empty");
    }
    match operator {
        "Exists" if !value.is_empty() => {
            validator.at("value").report("must be empty where operator is Exists");
        }
        "" | "Equal" => check_label_value(value, &mut validator.at("value")),
        _ => {}
    }
    let has_seconds = toleration.get("tolerationSeconds").is_some_and(|seconds| !seconds.is_null());
    if has_seconds && effect != "NoExecute" {
        validator.at("effect").report("must be NoExecute where tolerationSeconds is set");
    }
}

/// Whether a text is the name of a port (`IANA_SVC_NAME`).
pub fn is_port_name(text: &str) -> bool {
    text.len() <= MAX_PORT_NAME_LENGTH
        && is_dns_label(text)
        && !text.contains("--")
        && text.bytes().any(|byte| byte.is_ascii_lowercase())
}

/// Whether a text is a DNS subdomain.
pub fn is_dns_subdomain(text: &str) -> bool {
    is_label_prefix(text)
}
