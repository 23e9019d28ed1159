//! Tables of rules: a path to fields, and a check of the values there.

use serde_json::Value;

use etcd_guard_core::config::diagnostic::Validator;

/// A check of the fields at a path.
///
/// A path has keys separated by dots. `a|b` selects several keys, and `a[]` the items of a list.
pub(super) type Rule = (&'static str, Check);

/// A check of one value. Absent values violate only [`Check::Required`].
#[derive(Clone, Copy)]
pub(super) enum Check {
    /// The field is present and not empty. Its parent exists.
    Required,
    /// The number is in this range.
    Range(i64, i64),
    /// The text is one of these. An empty text selects the default of Kubernetes.
    OneOf(&'static [&'static str]),
    /// Exactly one of these fields is present.
    ExactlyOne(&'static [&'static str]),
    /// At most one of these fields is present.
    AtMostOne(&'static [&'static str]),
    /// The field is absent, for this reason.
    Absent(&'static str),
    /// A text that is not empty.
    Text(fn(&str, &mut Validator<'_>)),
    /// Any value.
    Value(fn(&Value, &mut Validator<'_>)),
}

/// Checks the fields of a part of a pod. With `known_fields_only: false`, constants and alternatives of later releases
/// of Kubernetes are accepted.
pub(super) fn check_fields(
    part: &Value,
    rules: &[Rule],
    known_fields_only: bool,
    validator: &mut Validator<'_>,
) {
    for (path, check) in rules {
        visit(part, path, *check, known_fields_only, validator);
    }
}

fn visit(
    value: &Value,
    path: &'static str,
    check: Check,
    known_fields_only: bool,
    validator: &mut Validator<'_>,
) {
    if path.is_empty() {
        check.apply(value, known_fields_only, validator);
        return;
    }
    let Some(fields) = value.as_object() else { return };
    let (keys, rest) = path.split_once('.').unwrap_or((path, ""));
    for key in keys.split('|') {
        let (key, is_list) = key.strip_suffix("[]").map_or((key, false), |key| (key, true));
        let mut validator = validator.at(key);
        match fields.get(key).filter(|field| !field.is_null()) {
            None if rest.is_empty() && matches!(check, Check::Required) => validator.report("is missing"),
            None => {}
            Some(list) if is_list => {
                for (index, item) in list.as_array().into_iter().flatten().enumerate() {
                    visit(item, rest, check, known_fields_only, &mut validator.at(index));
                }
            }
            Some(field) => visit(field, rest, check, known_fields_only, &mut validator),
        }
    }
}

/// Whether a value is absent for Kubernetes.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// The names of those fields that are present.
fn present<'a>(part: &Value, fields: &'a [&'static str]) -> Vec<&'a str> {
    fields.iter().copied().filter(|key| part.get(key).is_some_and(|field| !is_empty(field))).collect()
}

// === impl Check ===

impl Check {
    fn apply(self, value: &Value, known_fields_only: bool, validator: &mut Validator<'_>) {
        match self {
            Self::Required if is_empty(value) => validator.report("is empty"),
            Self::Range(least, most) => {
                if let Some(number) = value.as_i64().filter(|number| !(least..=most).contains(number)) {
                    validator.report(match most {
                        i64::MAX => format!("{number} is too small: expected at least {least}"),
                        _ => format!("{number} is out of range: expected {least} to {most}"),
                    });
                }
            }
            Self::OneOf(values) if known_fields_only => {
                if let Some(text) = value.as_str().filter(|text| !text.is_empty() && !values.contains(text)) {
                    validator
                        .report(format!("unknown value {text:?}: expected one of {}", values.join(", ")));
                }
            }
            Self::ExactlyOne(fields) if value.is_object() => match *present(value, fields) {
                [] if known_fields_only => {
                    validator.report(format!("is incomplete: expected one of {}", fields.join(", ")));
                }
                [] | [_] => {}
                ref found => report_conflict(found, validator),
            },
            Self::AtMostOne(fields) => match *present(value, fields) {
                [] | [_] => {}
                ref found => report_conflict(found, validator),
            },
            Self::Absent(reason) => validator.report(format!("is not allowed: {reason}")),
            Self::Text(check) => {
                if let Some(text) = value.as_str().filter(|text| !text.is_empty()) {
                    check(text, validator);
                }
            }
            Self::Value(check) => check(value, validator),
            Self::Required | Self::OneOf(_) | Self::ExactlyOne(_) => {}
        }
    }
}

pub(super) fn report_conflict(fields: &[&str], validator: &mut Validator<'_>) {
    validator.report(format!("has several of {}: only one is allowed", fields.join(", ")));
}
