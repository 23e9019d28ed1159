//! Ownership of a pod's containers: the pod's own containers and containers of templates.

use serde_json::Value;

use super::overrides::overridden;
use crate::{
    config::template::{AppContainers, Template},
    pods::pod::{ContainerView, PodView},
};

/// Returns the names of a template's containers, except names that the pod's own containers use.
pub(crate) fn container_names<'a>(pod: PodView<'_>, template: &'a Template) -> impl Iterator<Item = &'a str> {
    template.containers.iter().chain(&template.init_containers).filter_map(move |container| {
        let name = container.get("name").and_then(Value::as_str)?;
        let is_from_template = |present| {
            let wanted = overridden(pod, template, container, &mut Vec::new());
            is_from_template(pod, template, present, &wanted)
        };
        pod.container(name).is_none_or(is_from_template).then_some(name)
    })
}

/// Whether a container of the pod comes from the template, rather than being the pod's own container of the same name.
/// The image identifies the container. If another webhook has changed the image since the first pass, the pod's record
/// identifies it.
pub(super) fn is_from_template(
    pod: PodView<'_>,
    template: &Template,
    present: ContainerView<'_>,
    wanted: &Value,
) -> bool {
    let image = wanted.get("image").and_then(Value::as_str).unwrap_or_default();
    present.image() == image || pod.is_recorded(&template.hash)
}

/// Whether a container is one of the pod's own containers that a template targets.
pub(super) fn is_targeted(
    container: ContainerView<'_>,
    targets: &AppContainers,
    injected_names: &[&str],
) -> bool {
    let name = container.name();
    let is_in = |list: &[String]| list.iter().any(|listed| listed == name);
    !injected_names.contains(&name)
        && !is_in(&targets.except)
        && (targets.only.is_empty() || is_in(&targets.only))
}
