//! The forms that Kubernetes demands of names, keys and values, in its words (`apimachinery/pkg/util/validation`).

use serde_json::Value;

use super::Check;

/// The longest DNS label, name in a key, and value of a label.
pub(super) const LONGEST_NAME: usize = 63;

/// The longest prefix of a key, as of any DNS name.
const LONGEST_PREFIX: usize = 253;

/// The name of a container or a volume: a DNS label.
pub(super) fn check_name(name: &str, check: &mut Check<'_>) {
    if name.is_empty() {
        check.say("is empty");
    } else if name.len() > LONGEST_NAME || !is_dns_part(name) {
        check.say(format!("{name:?} is no name: a-z, 0-9 and -, at most {LONGEST_NAME}, are expected"));
    }
}

/// The key of a label or a taint: a qualified name.
pub(super) fn check_key(key: &str, check: &mut Check<'_>) {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let is_prefix = |it: &str| it.len() <= LONGEST_PREFIX && it.split('.').all(is_dns_part);
    if key.is_empty() {
        check.say("is empty");
    } else if name.len() > LONGEST_NAME || !is_name(name) {
        check.say(format!(
            "{key:?} is no qualified name: its name part must be at most {LONGEST_NAME} alphanumeric characters, '-', '_' or \
             '.', and must start and end with an alphanumeric character"
        ));
    } else if prefix.is_some_and(|it| !is_prefix(it)) {
        check.say(format!(
            "{key:?} is no qualified name: its prefix part must be a lowercase DNS subdomain of at most {LONGEST_PREFIX} \
             characters"
        ));
    }
}

/// The key of an annotation: its prefix may be in capitals.
pub(super) fn check_annotation_key(key: &str, check: &mut Check<'_>) {
    check_key(&key.to_ascii_lowercase(), check);
}

/// The value of a label.
pub(super) fn check_label_value(value: &str, check: &mut Check<'_>) {
    if !value.is_empty() && (value.len() > LONGEST_NAME || !is_name(value)) {
        check.say(format!(
            "{value:?} is no label value: at most {LONGEST_NAME} alphanumeric characters, '-', '_' or '.' are expected, \
             beginning and ending with an alphanumeric character"
        ));
    }
}

/// A word of a few; an absent or empty one stands for Kubernetes' own choice.
pub(super) fn check_word(part: &Value, key: &'static str, words: &[&str], check: &mut Check<'_>) {
    let Some(word) = part.get(key).and_then(Value::as_str).filter(|it| !it.is_empty()) else { return };
    if !words.contains(&word) {
        check.at(key).say(format!("{word:?} is not known: {} are", words.join(", ")));
    }
}

/// A toleration (`pkg/apis/core/validation/validation.go`, `ValidateTolerations`). `known`: whether a later release of
/// Kubernetes may not know more words.
pub(super) fn check_toleration(toleration: &Value, known: bool, check: &mut Check<'_>) {
    let text = |key| toleration.get(key).and_then(Value::as_str).unwrap_or_default();
    let (key, operator, value, effect) = (text("key"), text("operator"), text("value"), text("effect"));
    if known {
        check_word(toleration, "operator", &["Equal", "Exists"], check);
        check_word(toleration, "effect", &["NoSchedule", "PreferNoSchedule", "NoExecute"], check);
    }
    // A key that is there and no text is a mistake of its own.
    let no_key = toleration.is_object() && toleration.get("key").is_none_or(|it| it.is_null() || *it == "");
    if !key.is_empty() {
        check_key(key, &mut check.at("key"));
    } else if no_key && matches!(operator, "" | "Equal") {
        check.at("operator").say("must be Exists where key is empty");
    }
    match operator {
        "Exists" if !value.is_empty() => check.at("value").say("must be empty where operator is Exists"),
        "" | "Equal" => check_label_value(value, &mut check.at("value")),
        _ => {}
    }
    if toleration.get("tolerationSeconds").is_some_and(|it| !it.is_null()) && effect != "NoExecute" {
        check.at("effect").say("must be NoExecute where tolerationSeconds is set");
    }
}

/// What labels' values and the names in keys are made of.
fn is_name(text: &str) -> bool {
    let is_edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    is_edge(bytes.first())
        && is_edge(bytes.last())
        && bytes.iter().all(|it| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'_' | b'.'))
}

/// What DNS names are made of between their dots.
fn is_dns_part(text: &str) -> bool {
    let can_be = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    !text.is_empty() && text.bytes().all(can_be) && !text.starts_with('-') && !text.ends_with('-')
}
