//! Transfers from a pod's own containers to the containers of a template: variables and shared mounts.

use serde_json::Value;

use super::ownership::is_targeted;
use crate::{
    config::template::Template,
    pods::pod::{ContainerView, PodView, is_below, mount_path, normalized},
};

/// Paths with different content in each container: the token, and files of the kernel or lxcfs. They are never shared.
const UNSHARED_PATHS: [&str; 3] = ["/var/run/secrets/kubernetes.io/serviceaccount", "/proc", "/sys"];

/// Returns the variables of the pod's own containers that a container of the template receives.
pub(super) fn transferred_variables(
    pod: PodView<'_>,
    template: &Template,
    container: &Value,
    injected_names: &[&str],
) -> Vec<Value> {
    let name_of = |value: &Value| value.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let name = name_of(container);
    let mut present: Vec<String> =
        container.get("env").and_then(Value::as_array).into_iter().flatten().map(name_of).collect();
    let mut variables = Vec::new();
    for transfer in &template.transfer_env {
        if !transfer.into.is_empty() && !transfer.into.contains(&name) {
            continue;
        }
        for variable in &transfer.names {
            let own_containers =
                pod.containers("containers").filter(|container| !injected_names.contains(&container.name()));
            let sources = own_containers
                .filter(|container| transfer.container.is_empty() || container.name() == transfer.container);
            let found = sources
                .flat_map(|container| container.items("env"))
                .find(|entry| entry.get("name").is_some_and(|name| *name == variable.as_str()));
            if let Some(found) = found.filter(|_| !present.contains(variable)) {
                present.push(variable.clone());
                variables.push(found.clone());
            }
        }
    }
    variables
}

/// Returns the mounts of the pod's own containers that the template's containers share.
pub(super) fn shared_mounts(pod: PodView<'_>, template: &Template, injected_names: &[&str]) -> Vec<Value> {
    if !template.share_volumes {
        return Vec::new();
    }
    let mut used_paths = Vec::new();
    let mut shared = Vec::new();
    let is_source =
        |container: &ContainerView<'_>| is_targeted(*container, &template.app_containers, injected_names);
    let sources = pod.containers("containers").filter(is_source);
    for mount in sources.flat_map(|container| container.items("volumeMounts")) {
        let path = mount_path(mount);
        let is_unshared =
            UNSHARED_PATHS.iter().any(|unshared| path == *unshared || is_below(&path, unshared));
        // The expression can refer to variables that only the pod's container has.
        let is_expression =
            mount.get("subPathExpr").is_some_and(|expression| !expression.is_null() && *expression != "");
        // Only privileged containers may have such a mount: the API server would reject the pod.
        let is_privileged =
            mount.get("mountPropagation").is_some_and(|propagation| propagation == "Bidirectional");
        if !is_unshared && !is_expression && !is_privileged && path != "/" && !used_paths.contains(&path) {
            used_paths.push(path);
            shared.push(mount.clone());
        }
    }
    shared
}

/// Adds mounts to a container, except at paths where the container already has a mount.
pub(super) fn add_mounts(container: &mut Value, mounts: &[Value]) {
    if mounts.is_empty() {
        return;
    }
    let path = |mount: &Value| {
        normalized(mount.get("mountPath").and_then(Value::as_str).unwrap_or_default()).into_owned()
    };
    let present: Vec<Value> =
        container.get("volumeMounts").and_then(Value::as_array).cloned().unwrap_or_default();
    let used_paths: Vec<String> = present.iter().map(path).collect();
    let new = mounts.iter().filter(|mount| !used_paths.contains(&path(mount))).cloned();
    let mounts: Vec<Value> = present.iter().cloned().chain(new).collect();
    if let Some(fields) = container.as_object_mut().filter(|_| mounts.len() > present.len()) {
        fields.insert(String::from("volumeMounts"), Value::Array(mounts));
    }
}
