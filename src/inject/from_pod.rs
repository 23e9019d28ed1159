//! What a template's containers take over from the pod that they come to: its word on some of their fields, variables, and
//! mounts of its own containers.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::{
    choose::shortened,
    pod::{Container, Pod, is_below, mount_path, normalised},
    reason::{Note, Reason},
    sidecar::is_meant,
};
use crate::{config::Template, k8s::quantity::Quantity};

/// What follows a container's name in annotations that override its fields.
pub const OVERRIDE: &str = ".inject.etcd-guard.io/";

/// Paths that each container has of its own: its token, and what the kernel or lxcfs shows there.
const OWN_PATHS: [&str; 3] = ["/var/run/secrets/kubernetes.io/serviceaccount", "/proc", "/sys"];

/// A list of a container's resources, and the ends of the annotations that set it.
const RESOURCES: [(&str, &str, &str); 4] = [
    ("cpu-request", "requests", "cpu"),
    ("cpu-limit", "limits", "cpu"),
    ("memory-request", "requests", "memory"),
    ("memory-limit", "limits", "memory"),
];

/// A container of a template as this pod wants it, as far as the template lets it.
pub(super) fn overridden<'a>(
    pod: Pod<'_>,
    template: &Template,
    container: &'a Value,
    notes: &mut Vec<Note>,
) -> Cow<'a, Value> {
    let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
    let mut changed = Cow::Borrowed(container);
    let mut refuse = |key: &str, why: &str| {
        let text = format!("container {}: {} was not overridden: {why}", shortened(name), shortened(key));
        notes.push(Note::skipped(Reason::OverrideRefused, text));
    };
    let mut resources = container.get("resources").cloned().unwrap_or_else(|| json!({}));
    let mut of_resources = Vec::new();
    for (key, text) in pod.annotations() {
        let Some(key) = key.strip_prefix(name).and_then(|it| it.strip_prefix(OVERRIDE)) else { continue };
        let resource = RESOURCES.iter().find(|(end, ..)| *end == key);
        let variable = key.strip_prefix("env.");
        match (resource, variable) {
            (Some((_, list, resource)), _) if template.overrides.resources => {
                match Quantity::parse(text).filter(|it| *it >= Quantity::of_whole(0)) {
                    Some(_) => {
                        set_resource(&mut resources, list, resource, text);
                        of_resources.push(key);
                    }
                    None => refuse(key, "it is no amount"),
                }
            }
            (None, Some(variable)) if template.overrides.env.iter().any(|it| it == variable) => {
                set_variable(changed.to_mut(), variable, text);
            }
            (None, None) if key == "image" && template.overrides.image => {
                if text.is_empty() || text.contains(char::is_whitespace) {
                    refuse(key, "it is no image");
                } else if let Some(fields) = changed.to_mut().as_object_mut() {
                    fields.insert(String::from("image"), text.into());
                }
            }
            _ => refuse(key, "the template does not allow it"),
        }
    }
    // The apiserver would refuse the whole pod.
    if !of_resources.is_empty() {
        if ["cpu", "memory"].iter().any(|it| is_over_limit(&resources, it)) {
            refuse(&of_resources.join(", "), "a request is more than its limit");
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
        Some(env) => match env.iter_mut().find(|it| it.get("name").is_some_and(|it| *it == name)) {
            Some(present) => *present = variable,
            None => env.push(variable),
        },
    }
}

/// The variables of the pod's own containers that a container of the template gets.
pub(super) fn variables(pod: Pod<'_>, template: &Template, container: &Value, ours: &[&str]) -> Vec<Value> {
    let text = |it: &Value| it.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let name = text(container);
    let mut present: Vec<String> =
        container.get("env").and_then(Value::as_array).into_iter().flatten().map(text).collect();
    let mut variables = Vec::new();
    for transfer in &template.transfer_env {
        if !transfer.into.is_empty() && !transfer.into.contains(&name) {
            continue;
        }
        for variable in &transfer.names {
            let own = pod.containers("containers").filter(|it| !ours.contains(&it.name()));
            let from = own.filter(|it| transfer.container.is_empty() || it.name() == transfer.container);
            let found = from
                .flat_map(|it| it.items("env"))
                .find(|it| it.get("name").is_some_and(|it| *it == variable.as_str()));
            if let Some(found) = found.filter(|_| !present.contains(variable)) {
                present.push(variable.clone());
                variables.push(found.into());
            }
        }
    }
    variables
}

/// The mounts of the pod's own containers that the template's containers share.
pub(super) fn shared_mounts(pod: Pod<'_>, template: &Template, ours: &[&str]) -> Vec<Value> {
    if !template.share_volumes {
        return Vec::new();
    }
    let mut taken = Vec::new();
    let mut shared = Vec::new();
    let meant = |it: &Container<'_>| is_meant(*it, &template.app_containers, ours);
    for mount in pod.containers("containers").filter(meant).flat_map(|it| it.items("volumeMounts")) {
        let path = mount_path(mount);
        let is_own = OWN_PATHS.iter().any(|own| path == *own || is_below(&path, own));
        // Its expression reads variables of the container that it was written for.
        let is_expression = mount.get("subPathExpr").is_some_and(|it| !it.is_null() && *it != "");
        // Only privileged containers may have such a mount: the apiserver would refuse the pod.
        let is_privileged = mount.get("mountPropagation").is_some_and(|it| it == "Bidirectional");
        if !is_own && !is_expression && !is_privileged && path != "/" && !taken.contains(&path) {
            taken.push(path);
            shared.push(mount.into());
        }
    }
    shared
}

/// Adds mounts to a container, except where it has one.
pub(super) fn add_mounts(container: &mut Value, mounts: &[Value]) {
    if mounts.is_empty() {
        return;
    }
    let path = |mount: &Value| {
        normalised(mount.get("mountPath").and_then(Value::as_str).unwrap_or_default()).into_owned()
    };
    let present: Vec<Value> =
        container.get("volumeMounts").and_then(Value::as_array).cloned().unwrap_or_default();
    let taken: Vec<String> = present.iter().map(path).collect();
    let new = mounts.iter().filter(|it| !taken.contains(&path(it))).cloned();
    let mounts: Vec<Value> = present.iter().cloned().chain(new).collect();
    if let Some(fields) = container.as_object_mut().filter(|_| mounts.len() > present.len()) {
        fields.insert(String::from("volumeMounts"), Value::Array(mounts));
    }
}
