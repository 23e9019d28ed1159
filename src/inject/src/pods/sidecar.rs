//! Application of one template to a pod.

mod admission;
mod missing;
mod overrides;
mod ownership;
mod pod_settings;
mod transfers;

use std::{borrow::Cow, collections::BTreeMap};

use json_patch::jsonptr::Pointer;
use serde_json::Value;

pub use self::overrides::OVERRIDE;
pub(super) use self::ownership::container_names;
use self::{
    missing::{InitContainer, MissingContainers},
    overrides::overridden,
    ownership::{is_from_template, is_targeted},
    transfers::{add_mounts, shared_mounts, transferred_variables},
};
use super::{
    context::InjectionContext,
    pod::{
        ContainerView, PodView, affinity,
        equality::is_same_toleration,
        mount_path,
        volumes::{self, PlacedVolume},
        with_member,
    },
    reason::{Note, Reason},
};
use crate::{
    config::{
        pod::security_level::PodSecurityLevel,
        template::{AppContainers, Native, OnConflict, Position, Template},
    },
    patch::{ListPosition, PatchBuilder, PatchError, pointer},
};

/// The annotation with the container that kubectl selects by default.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

const VOLUMES: &Pointer = Pointer::from_static("/spec/volumes");
const CONTAINERS: &Pointer = Pointer::from_static("/spec/containers");
const INIT_CONTAINERS: &Pointer = Pointer::from_static("/spec/initContainers");
const LABELS: &Pointer = Pointer::from_static("/metadata/labels");
const ANNOTATIONS: &Pointer = Pointer::from_static("/metadata/annotations");

/// Maps the names of volumes in a template to their names in the pod.
type VolumeNames<'a> = BTreeMap<&'a str, Cow<'a, str>>;

/// Applies a template and returns whether the pod has the template afterwards. The pod does not have it if containers of
/// the pod have the names of all its containers, and the pod needs no other part of it. `injected_names` are the names of all
/// containers from templates; all other containers are the pod's own.
pub(super) fn apply(
    builder: &mut PatchBuilder,
    template: &Template,
    injected_names: &[&str],
    context: &InjectionContext<'_>,
    enforced: PodSecurityLevel,
    notes: &mut Vec<Note>,
) -> Result<bool, PatchError> {
    let pod = PodView::new(builder.object());
    let name = &template.name;
    if template.skip_host_network && pod.is_set("hostNetwork") {
        let text = format!("template {name} was not injected: the pod has hostNetwork");
        notes.push(Note::skipped(Reason::HostNetwork, text));
        return Ok(false);
    }
    if let Some(volume) = template.external_volumes.iter().find(|name| pod.volume(name).is_none()) {
        let text = format!("template {name} was not injected: the pod has no volume {volume}");
        notes.push(Note::skipped(Reason::MissingVolume, text));
        return Ok(false);
    }
    if let Some(part) = admission::rejected_part(pod, template, enforced) {
        let level = enforced.as_str();
        let text = format!("template {name} was not injected: Pod Security {level} forbids {part}");
        notes.push(Note::skipped(Reason::PodSecurity, text));
        return Ok(false);
    }
    let mut conflicts = Vec::new();
    let mut refused = Vec::new();
    let missing = missing_containers(
        pod,
        template,
        injected_names,
        context.native_sidecars,
        &mut conflicts,
        &mut refused,
    );
    if missing.has_fallback && pod.ends() {
        let text = format!(
            "template {name} was not injected: the pod would not end, because the cluster has no native sidecars"
        );
        notes.push(Note::skipped(Reason::NoNativeSidecars, text));
        return Ok(false);
    }
    if let Some(excess) = admission::exceeded_resource(pod, &missing) {
        let text =
            format!("template {name} was not injected: it exceeds spec.resources of the pod ({excess})");
        notes.push(Note::skipped(Reason::PodResources, text));
        return Ok(false);
    }
    // Up to here, all conflicts are containers of the pod with names of the template.
    let has_only_conflicts = !conflicts.is_empty()
        && conflicts.len() == template.containers.len() + template.init_containers.len();
    let shared = shared_mounts(pod, template, injected_names);
    let (volume_names, volumes) = place_volumes(pod, template, &mut conflicts);
    let is_skipped = template.on_conflict == OnConflict::Skip && !conflicts.is_empty();
    for conflict in &conflicts {
        let consequence = if is_skipped { "the template was not injected" } else { "it was skipped" };
        let text = format!("template {name}: the pod has its own {conflict}: {consequence}");
        notes.push(Note::skipped(Reason::Conflict, text));
    }
    if is_skipped || volume_names.len() < template.volumes.len() {
        return Ok(false);
    }
    notes.append(&mut refused);
    let before = builder.operation_count();
    builder.add_items(VOLUMES, volumes, ListPosition::Last)?;
    extend_app_containers(builder, &template.app_containers, injected_names, &volume_names)?;
    let rename = |container| {
        let mut container = rename_mounts(container, &volume_names);
        add_mounts(&mut container, &shared);
        container
    };
    add_containers(builder, template, missing.map(rename), injected_names)?;
    pod_settings::apply(builder, template, notes)?;
    let text = |(key, value): (&String, &String)| (key.clone(), value.clone());
    builder.add_members(LABELS, template.labels.iter().map(text))?;
    builder.add_members(ANNOTATIONS, template.annotations.iter().map(text))?;
    add_missing(builder, "imagePullSecrets", &template.image_pull_secrets, |a, b| {
        a.get("name") == b.get("name")
    })?;
    add_missing(builder, "tolerations", &template.tolerations, is_same_toleration)?;
    if let Some(affinity) = &template.affinity {
        affinity::merge(builder, affinity)?;
    }
    let is_unchanged = builder.operation_count() == before;
    if is_unchanged && has_only_conflicts {
        return Ok(false);
    }
    notes.push(Note::without_warning(if is_unchanged { Reason::AlreadyInjected } else { Reason::Sidecar }));
    Ok(true)
}

/// Returns the template's containers with the pod's overrides, by the list that they belong to in this cluster.
fn missing_containers(
    pod: PodView<'_>,
    template: &Template,
    injected_names: &[&str],
    supports_native: bool,
    conflicts: &mut Vec<String>,
    refused: &mut Vec<Note>,
) -> MissingContainers {
    let mut missing = MissingContainers::default();
    let mut prepare = |container: &Value| {
        let container = overridden(pod, template, container, refused);
        let text = |key: &str| container.get(key).and_then(Value::as_str).unwrap_or_default();
        // Both lists are searched, because the template may have used the other list when the pod was created.
        if let Some(present) = pod.container(text("name")) {
            if is_from_template(pod, template, present, &container) {
                return Some(InitContainer::Present(text("name").to_owned()));
            }
            conflicts.push(format!("container {}", text("name")));
            return None;
        }
        let variables = transferred_variables(pod, template, &container, injected_names);
        Some(InitContainer::Missing(with_variables(container.into_owned(), variables)))
    };
    let native = match template.native.unwrap_or_default() {
        Native::True => true,
        Native::False => false,
        Native::Auto => supports_native,
    };
    let mut sidecars = Vec::new();
    for container in template.containers.iter().filter_map(&mut prepare) {
        match container {
            InitContainer::Missing(container) if native => {
                sidecars.push(InitContainer::Missing(with_member(container, "restartPolicy", "Always")));
            }
            InitContainer::Missing(container) => {
                missing.has_fallback |= template.native != Some(Native::False);
                missing.containers.push(container);
            }
            present @ InitContainer::Present(_) => sidecars.push(present),
        }
    }
    for container in template.init_containers.iter().filter_map(&mut prepare) {
        match container {
            // An API server without native sidecars drops the field, and the pod would wait for the container to end.
            InitContainer::Missing(container)
                if !supports_native
                    && container.get("restartPolicy").is_some_and(|policy| !policy.is_null()) =>
            {
                missing.has_fallback = true;
                missing.containers.push(without_restart_policy(container));
            }
            container => missing.init.push(container),
        }
    }
    missing.init.append(&mut sidecars);
    missing
}

fn without_restart_policy(mut container: Value) -> Value {
    if let Some(map) = container.as_object_mut() {
        map.remove("restartPolicy");
    }
    container
}

fn with_variables(mut container: Value, variables: Vec<Value>) -> Value {
    if let Some(map) = container.as_object_mut().filter(|_| !variables.is_empty()) {
        match map.get_mut("env").and_then(Value::as_array_mut) {
            Some(env) => env.extend(variables),
            None => drop(map.insert(String::from("env"), Value::Array(variables))),
        }
    }
    container
}

/// Returns the names of the template's volumes in the pod, and the volumes that the pod lacks.
fn place_volumes<'a>(
    pod: PodView<'_>,
    template: &'a Template,
    conflicts: &mut Vec<String>,
) -> (VolumeNames<'a>, Vec<Value>) {
    let (mut volume_names, mut new) = (BTreeMap::new(), Vec::new());
    for volume in &template.volumes {
        let Some(name) = volume.get("name").and_then(Value::as_str) else { continue };
        let other_name =
            || (template.on_conflict == OnConflict::Adapt).then(|| format!("{}-{name}", template.name));
        match volumes::place(pod, volume, other_name, &volume_names) {
            None => conflicts.push(format!("volume {name}")),
            Some(PlacedVolume { name: placed, new: volume }) => {
                volume_names.insert(name, placed);
                new.extend(volume);
            }
        }
    }
    (volume_names, new)
}

/// Adds variables and mounts to the pod's own containers, except those that a container already has.
fn extend_app_containers(
    builder: &mut PatchBuilder,
    targets: &AppContainers,
    injected_names: &[&str],
    volume_names: &VolumeNames<'_>,
) -> Result<(), PatchError> {
    if targets.env.is_empty() && targets.volume_mounts.is_empty() {
        return Ok(());
    }
    let additions: Vec<_> = PodView::new(builder.object())
        .containers("containers")
        .filter(|container| is_targeted(*container, targets, injected_names))
        .map(|container| {
            let has = |name: Option<&Value>| {
                container.items("env").iter().any(|present| present.get("name") == name)
            };
            let env = targets.env.iter().filter(|variable| !has(variable.get("name"))).cloned();
            let own_paths: Vec<_> = container.mounts().map(|(_, path)| path).collect();
            let mounts = targets.volume_mounts.iter().filter(|mount| !own_paths.contains(&mount_path(mount)));
            let mounts = mounts.map(|mount| with_placed_volume(mount, volume_names));
            (container.index.to_string(), env.collect::<Vec<_>>(), mounts.collect::<Vec<_>>())
        })
        .collect();
    for (index, env, mounts) in additions {
        builder.add_items(&pointer(["spec", "containers", &index, "env"]), env, ListPosition::Last)?;
        builder.add_items(
            &pointer(["spec", "containers", &index, "volumeMounts"]),
            mounts,
            ListPosition::Last,
        )?;
    }
    Ok(())
}

/// Returns a mount with the volume's name in the pod.
fn with_placed_volume(mount: &Value, volume_names: &VolumeNames<'_>) -> Value {
    let own_name = mount.get("name").and_then(Value::as_str).unwrap_or_default();
    match volume_names.get(own_name) {
        Some(name) if name != own_name => with_member(mount.clone(), "name", name.clone()),
        _ => mount.clone(),
    }
}

fn add_containers(
    builder: &mut PatchBuilder,
    template: &Template,
    mut missing: MissingContainers,
    injected_names: &[&str],
) -> Result<(), PatchError> {
    add_init_containers(builder, &mut missing, injected_names)?;
    let position = match template.position {
        Position::First => position_before_own_containers(builder, injected_names),
        Position::Last => ListPosition::Last,
    };
    let is_first = position != ListPosition::Last && !missing.containers.is_empty();
    builder.add_items(CONTAINERS, missing.containers, position)?;
    let app = PodView::new(builder.object())
        .containers("containers")
        .map(ContainerView::name)
        .find(|name| !injected_names.contains(name));
    if let Some(app) = app.map(str::to_owned).filter(|_| is_first) {
        builder.add_members(ANNOTATIONS, [(DEFAULT_CONTAINER, app)])?;
    }
    Ok(())
}

/// Adds the init containers in the order of the template. Native sidecars, and the template's init containers before them,
/// start before the pod's own init containers, which may use the sidecars. The others start last.
fn add_init_containers(
    builder: &mut PatchBuilder,
    missing: &mut MissingContainers,
    injected_names: &[&str],
) -> Result<(), PatchError> {
    let leading = missing.leading_init();
    let mut next = position_before_own_init_containers(builder, injected_names);
    for (number, container) in std::mem::take(&mut missing.init).into_iter().enumerate() {
        match container {
            InitContainer::Missing(container) if number < leading => {
                builder.add_items(INIT_CONTAINERS, vec![container], ListPosition::Before(next))?;
                next += 1;
            }
            InitContainer::Missing(container) => {
                builder.add_items(INIT_CONTAINERS, vec![container], ListPosition::Last)?;
            }
            InitContainer::Present(name) => {
                let mut present = PodView::new(builder.object()).containers("initContainers");
                if let Some(container) = present.find(|container| container.name() == name) {
                    next = next.max(container.index + 1);
                }
            }
        }
    }
    Ok(())
}

/// Returns the position before the pod's own containers and after the containers of previously applied templates.
fn position_before_own_containers(builder: &PatchBuilder, injected_names: &[&str]) -> ListPosition {
    let is_injected = |container: &ContainerView<'_>| injected_names.contains(&container.name());
    let containers = PodView::new(builder.object()).containers("containers");
    ListPosition::Before(containers.take_while(is_injected).count())
}

/// Returns the index before the pod's own init containers and after the native sidecars of previously applied templates.
fn position_before_own_init_containers(builder: &PatchBuilder, injected_names: &[&str]) -> usize {
    let containers = PodView::new(builder.object()).containers("initContainers");
    let injected = containers.take_while(|container| injected_names.contains(&container.name()));
    injected.filter(|container| container.is_native_sidecar()).last().map_or(0, |last| last.index + 1)
}

fn rename_mounts(mut container: Value, volume_names: &VolumeNames<'_>) -> Value {
    for list in ["volumeMounts", "volumeDevices"] {
        for mount in container.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(Value::String(name)) = mount.get_mut("name")
                && let Some(placed) = volume_names.get(name.as_str())
            {
                *name = placed.clone().into_owned();
            }
        }
    }
    container
}

/// Adds items to a list of the spec, except items that the list already contains.
fn add_missing(
    builder: &mut PatchBuilder,
    list: &str,
    items: &[Value],
    is_same: impl Fn(&Value, &Value) -> bool,
) -> Result<(), PatchError> {
    let present = PodView::new(builder.object()).items(list);
    let is_new = |item: &&Value| !present.iter().any(|present| is_same(present, item));
    let new: Vec<Value> = items.iter().filter(is_new).cloned().collect();
    if new.is_empty() {
        return Ok(());
    }
    builder.add_items(&pointer(["spec", list]), new, ListPosition::Last)
}
