//! Annotations of a pod that override fields of a template's containers.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::{
    config::template::Template,
    pods::{
        pod::PodView,
        reason::{Note, Reason, truncated},
    },
};
use etcd_guard_core::objects::quantity::Quantity;

/// The infix between a container's name and the overridden field in the key of an annotation.
pub const OVERRIDE: &str = ".inject.etcd-guard.io/";

/// Overridable resources: the suffix of the annotation's key, the list and the name of the resource.
const RESOURCES: [(&str, &str, &str); 4] = [
    ("cpu-request", "requests", "cpu"),
    ("cpu-limit", "limits", "cpu"),
    ("memory-request", "requests", "memory"),
    ("memory-limit", "limits", "memory"),
];

/// Returns a container of a template with the pod's overrides that the template allows.
pub(super) fn overridden<'a>(
    pod: PodView<'_>,
    template: &Template,
    container: &'a Value,
    notes: &mut Vec<Note>,
) -> Cow<'a, Value> {
    let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
    let mut changed = Cow::Borrowed(container);
    let mut refuse = |key: &str, cause: &str| {
        let text = format!("container {}: {} was not overridden: {cause}", truncated(name), truncated(key));
        notes.push(Note::skipped(Reason::OverrideRefused, text));
    };
    let mut resources = container.get("resources").cloned().unwrap_or_else(|| json!({}));
    let mut resource_keys = Vec::new();
    for (key, text) in pod.annotations() {
        let Some(key) = key.strip_prefix(name).and_then(|key| key.strip_prefix(OVERRIDE)) else { continue };
        let resource = RESOURCES.iter().find(|(suffix, ..)| *suffix == key);
        let variable = key.strip_prefix("env.");
        match (resource, variable) {
            (Some((_, list, resource)), _) if template.overrides.resources => {
                match Quantity::parse(text).filter(|amount| *amount >= Quantity::from_units(0)) {
                    Some(_) => {
                        set_resource(&mut resources, list, resource, text);
                        resource_keys.push(key);
                    }
                    None => refuse(key, "the value is not a quantity"),
                }
            }
            (None, Some(variable)) if template.overrides.env.iter().any(|allowed| allowed == variable) => {
                set_variable(changed.to_mut(), variable, text);
            }
            (None, None) if key == "image" && template.overrides.image => {
                if text.is_empty() || text.contains(char::is_whitespace) {
                    refuse(key, "the value is not an image reference");
                } else if let Some(fields) = changed.to_mut().as_object_mut() {
                    fields.insert(String::from("image"), text.into());
                }
            }
            _ => refuse(key, "the template does not allow it"),
        }
    }
    // The API server would reject a pod with a request above the limit.
    if !resource_keys.is_empty() {
        if ["cpu", "memory"].iter().any(|resource| is_over_limit(&resources, resource)) {
            refuse(&resource_keys.join(", "), "a request exceeds its limit");
        } else if let Some(fields) = changed.to_mut().as_object_mut() {
            fields.insert(String::from("resources"), resources);
        }
    }
    changed
}

fn set_resource(resources: &mut Value, list: &str, resource: &str, amount: &str) {
    if !resources.is_object() {
        *resources = json!({});
    }
    if let Some(resources) = resources.as_object_mut() {
        let list = resources.entry(list).or_insert_with(|| Value::Object(Map::new()));
        if !list.is_object() {
            *list = json!({});
        }
        if let Some(list) = list.as_object_mut() {
            list.insert(resource.to_owned(), amount.into());
        }
    }
}

fn is_over_limit(resources: &Value, resource: &str) -> bool {
    let amount = |list: &str| match resources.get(list)?.get(resource)? {
        Value::String(text) => Quantity::parse(text),
        other => Quantity::parse(&other.to_string()),
    };
    amount("requests").zip(amount("limits")).is_some_and(|(request, limit)| request > limit)
}

fn set_variable(container: &mut Value, name: &str, value: &str) {
    let variable = json!({"name": name, "value": value});
    let Some(fields) = container.as_object_mut() else { return };
    match fields.get_mut("env").and_then(Value::as_array_mut) {
        None => drop(fields.insert(String::from("env"), json!([variable]))),
        Some(env) => {
            match env.iter_mut().find(|present| present.get("name").is_some_and(|present| *present == name)) {
                Some(present) => *present = variable,
                None => env.push(variable),
            }
        }
    }
}
