//! Validation of parts of a pod against the types of Kubernetes.

use json_patch::jsonptr::Token;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use etcd_guard_core::config::{diagnostic::Validator, document::Node, quantities};

/// Maximum number of name servers of a pod (`pkg/apis/core/validation/validation.go`).
pub(crate) const MAX_NAME_SERVERS: usize = 3;
/// Maximum number of search domains of a pod.
pub(crate) const MAX_SEARCH_DOMAINS: usize = 32;

/// Returns the text of a field. The text is empty if the field is absent. Returns `None` if the field is not a string,
/// which the type check reports.
pub(crate) fn text<'a>(part: &'a Value, key: &str) -> Option<&'a str> {
    match part.as_object()?.get(key) {
        None | Some(Value::Null) => Some(""),
        Some(field) => field.as_str(),
    }
}

/// Returns the items of a list field, or an empty slice if the field is not a list.
pub(crate) fn items<'a>(part: &'a Value, key: &str) -> &'a [Value] {
    part.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Checks each item of a list against a type of Kubernetes, as [`check_typed`] does.
pub(crate) fn check_items<T: Serialize + DeserializeOwned>(
    items: &[Value],
    known_fields_only: bool,
    validator: &mut Validator<'_>,
) {
    for (index, item) in items.iter().enumerate() {
        check_typed::<T>(item, known_fields_only, &mut validator.at(index));
    }
}

/// Checks a part of a pod against a type of Kubernetes. With `known_fields_only`, fields that the type does not have
/// are reported, because an API server would drop them.
pub(crate) fn check_typed<T: Serialize + DeserializeOwned>(
    value: &Value,
    known_fields_only: bool,
    validator: &mut Validator<'_>,
) {
    let mut value = value.clone();
    quantities::convert_to_strings(&mut value);
    quantities::validate(&mut value, validator);
    let mut node = Node::from(value);
    let typed = node.deserialize::<T>(|node, pointer, message| {
        validator.at_pointer(&node.position_in_text(pointer).0).report(message);
    });
    let typed = typed.and_then(|typed| serde_json::to_value(typed).ok());
    if let Some(typed) = typed.filter(|_| known_fields_only) {
        let mut unknown = Vec::new();
        check_known_fields(&node.value(), &typed, &mut Validator::new(&mut unknown));
        for (pointer, message) in unknown {
            validator.at_pointer(&node.position_in_text(&pointer).0).report(message);
        }
    }
}

/// Reports the fields of `value` that are missing in `typed`, which is the value after a round trip through its type.
fn check_known_fields(value: &Value, typed: &Value, validator: &mut Validator<'_>) {
    match (value, typed) {
        (Value::Object(fields), Value::Object(typed)) => {
            for (key, field) in fields.iter().filter(|(_, field)| !field.is_null()) {
                let mut validator = validator.at(Token::new(key).into_owned());
                match typed.get(key) {
                    Some(typed) => check_known_fields(field, typed, &mut validator),
                    None => validator.report("is not a field of Kubernetes; see allowUnknownFields"),
                }
            }
        }
        (Value::Array(items), Value::Array(typed)) => {
            for (index, (item, typed)) in items.iter().zip(typed).enumerate() {
                check_known_fields(item, typed, &mut validator.at(index));
            }
        }
        _ => {}
    }
}
