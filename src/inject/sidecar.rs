//! One template, applied to one pod.

use std::{borrow::Cow, collections::BTreeMap};

use json_patch::jsonptr::Pointer;
use serde_json::{Value, json};

use super::{
    Surroundings, affinity,
    content::is_same_toleration,
    from_pod::{add_mounts, overridden, shared_mounts, variables},
    pod::{Container, Pod, mount_path},
    reason::{Note, Reason},
    volumes::{self, Placed},
    whole_pod,
};
use crate::{
    config::{AppContainers, Native, OnConflict, Position, Template},
    json::{Json, Shared},
    patch::{Draft, PatchError, Place, pointer},
};

/// What kubectl takes for the container that is meant when none is named.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

const VOLUMES: &Pointer = Pointer::from_static("/spec/volumes");
const CONTAINERS: &Pointer = Pointer::from_static("/spec/containers");
const INIT_CONTAINERS: &Pointer = Pointer::from_static("/spec/initContainers");
const LABELS: &Pointer = Pointer::from_static("/metadata/labels");
const ANNOTATIONS: &Pointer = Pointer::from_static("/metadata/annotations");

/// The names that a template's volumes have in the pod.
type Renamed<'a> = BTreeMap<&'a str, Cow<'a, str>>;

/// What the pod lacks of a template.
#[derive(Default)]
struct Missing {
    containers: Vec<Value>,
    native: Vec<Value>,
    init: Vec<Value>,
}

// === impl Missing ===

impl Missing {
    fn map(self, change: impl Fn(Value) -> Value) -> Self {
        let all = |list: Vec<Value>| list.into_iter().map(&change).collect();
        Self { containers: all(self.containers), native: all(self.native), init: all(self.init) }
    }
}

/// Applies a template; whether the pod has it then. `ours` are the names of all containers that come from templates:
/// the others are the pod's own.
pub(super) fn apply<'a>(
    draft: &mut Draft<'a>,
    template: &'a Template,
    ours: &[&str],
    surroundings: &Surroundings<'_>,
    notes: &mut Vec<Note>,
) -> Result<bool, PatchError> {
    let pod = Pod::of(draft.object());
    let name = &template.name;
    if template.skip_host_network && pod.is("hostNetwork") {
        let text = format!("template {name} was not injected: the pod has hostNetwork");
        notes.push(Note::skipped(Reason::HostNetwork, text));
        return Ok(false);
    }
    if let Some(volume) = template.external_volumes.iter().find(|it| pod.volume(it).is_none()) {
        let text = format!("template {name} was not injected: the pod has no volume {volume}");
        notes.push(Note::skipped(Reason::MissingVolume, text));
        return Ok(false);
    }
    let mut conflicts = Vec::new();
    let mut refused = Vec::new();
    let missing = missing(pod, template, ours, surroundings.native_sidecars, &mut conflicts, &mut refused);
    let shared = shared_mounts(pod, template, ours);
    let (renamed, volumes) = place_volumes(pod, template, &mut conflicts);
    let is_out = template.on_conflict == OnConflict::Skip && !conflicts.is_empty();
    for conflict in &conflicts {
        let left_out = if is_out { "template was not injected" } else { "left out" };
        let text = format!("template {name}: the pod has its own {conflict}: {left_out}");
        notes.push(Note::skipped(Reason::Conflict, text));
    }
    if is_out || renamed.len() < template.volumes.len() {
        return Ok(false);
    }
    notes.append(&mut refused);
    let before = draft.changes();
    draft.add_items(VOLUMES, volumes, Place::Last)?;
    equip_app_containers(draft, &template.app_containers, ours, &renamed)?;
    let rename = |container| {
        let mut container = rename_mounts(container, &renamed);
        add_mounts(&mut container, &shared);
        container
    };
    add_containers(draft, template, missing.map(rename), ours)?;
    whole_pod::apply(draft, template, notes)?;
    let text = |(key, value): (&'a String, &'a String)| (key.as_str(), value.as_str());
    draft.add_members(LABELS, template.labels.iter().map(text))?;
    draft.add_members(ANNOTATIONS, template.annotations.iter().map(text))?;
    add_missing(draft, "imagePullSecrets", &template.image_pull_secrets, |a, b| {
        a.get("name") == b.get("name")
    })?;
    add_missing(draft, "tolerations", &template.tolerations, is_same_toleration)?;
    if let Some(affinity) = &template.affinity {
        affinity::join(draft, affinity)?;
    }
    notes.push(Note::done(if draft.changes() == before { Reason::AlreadyInjected } else { Reason::Sidecar }));
    Ok(true)
}

/// The names of a template's containers, without those that are the pod's own.
pub(super) fn container_names<'a>(pod: Pod<'_>, template: &'a Template) -> impl Iterator<Item = &'a str> {
    template.containers.iter().chain(&template.init_containers).filter_map(move |container| {
        let name = container.get("name").and_then(Value::as_str)?;
        let is_ours = |present| {
            let wanted = overridden(pod, template, container, &mut Vec::new());
            is_ours(pod, template, present, &wanted)
        };
        pod.container(name).is_none_or(is_ours).then_some(name)
    })
}

/// Whether a container that the pod has is the template's and not one of its own of the same name. Another webhook may
/// have changed the image since the first pass: then the pod's record says whose it is.
fn is_ours(pod: Pod<'_>, template: &Template, present: Container<'_>, wanted: &Value) -> bool {
    let image = wanted.get("image").and_then(Value::as_str).unwrap_or_default();
    present.image() == image || pod.is_recorded(&template.hash)
}

/// The template's containers that the pod has not, each as this pod gets it and in the list where it belongs in this
/// cluster.
fn missing(
    pod: Pod<'_>,
    template: &Template,
    ours: &[&str],
    native_known: bool,
    conflicts: &mut Vec<String>,
    refused: &mut Vec<Note>,
) -> Missing {
    let mut missing = Missing::default();
    let mut new = |container: &Value| {
        let container = overridden(pod, template, container, refused);
        let text = |key: &str| container.get(key).and_then(Value::as_str).unwrap_or_default();
        // Wherever it is: a template may have moved it between lists since the pod was made.
        if let Some(present) = pod.container(text("name")) {
            if !is_ours(pod, template, present, &container) {
                conflicts.push(format!("container {}", text("name")));
            }
            return None;
        }
        let variables = variables(pod, template, &container, ours);
        Some(with_variables(container.into_owned(), variables))
    };
    let native = match template.native.unwrap_or_default() {
        Native::True => true,
        Native::False => false,
        Native::Auto => native_known,
    };
    for container in template.containers.iter().filter_map(|it| new(it.value())) {
        if native {
            missing.native.push(with_restart_policy(container));
        } else {
            missing.containers.push(container);
        }
    }
    for container in template.init_containers.iter().filter_map(|it| new(it.value())) {
        match container.get("restartPolicy").filter(|it| !it.is_null()) {
            None => missing.init.push(container),
            Some(_) if native_known => missing.native.push(container),
            // An apiserver that does not know the field drops it, and the pod would wait for the container's end.
            Some(_) => missing.containers.push(without_restart_policy(container)),
        }
    }
    missing
}

fn with_restart_policy(mut container: Value) -> Value {
    if let Some(map) = container.as_object_mut() {
        map.insert(String::from("restartPolicy"), json!("Always"));
    }
    container
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

/// The names under which the template's volumes are in the pod, and those that it has not yet.
fn place_volumes<'a>(
    pod: Pod<'_>,
    template: &'a Template,
    conflicts: &mut Vec<String>,
) -> (Renamed<'a>, Vec<Json<'a>>) {
    let (mut renamed, mut new) = (BTreeMap::new(), Vec::new());
    for volume in &template.volumes {
        let Some(name) = volume.get("name").and_then(Value::as_str) else { continue };
        let other_name =
            || (template.on_conflict == OnConflict::Adapt).then(|| format!("{}-{name}", template.name));
        match volumes::place(pod, volume, other_name, &renamed) {
            None => conflicts.push(format!("volume {name}")),
            Some(Placed { name: placed, new: volume }) => {
                renamed.insert(name, placed);
                new.extend(volume);
            }
        }
    }
    (renamed, new)
}

/// Whether a container is one of the pod's own that a template means.
pub(super) fn is_meant(container: Container<'_>, wanted: &AppContainers, ours: &[&str]) -> bool {
    let name = container.name();
    let named = |list: &[String]| list.iter().any(|it| it == name);
    !ours.contains(&name) && !named(&wanted.except) && (wanted.only.is_empty() || named(&wanted.only))
}

/// The pod's own containers get what they have not.
fn equip_app_containers<'a>(
    draft: &mut Draft<'a>,
    wanted: &'a AppContainers,
    ours: &[&str],
    renamed: &Renamed<'a>,
) -> Result<(), PatchError> {
    if wanted.env.is_empty() && wanted.volume_mounts.is_empty() {
        return Ok(());
    }
    let additions: Vec<_> = Pod::of(draft.object())
        .containers("containers")
        .filter(|it| is_meant(*it, wanted, ours))
        .map(|container| {
            let has =
                |name: Option<&Json<'_>>| container.items("env").iter().any(|it| it.get("name") == name);
            let env = wanted.env.iter().filter(|it| !has(it.json().get("name")));
            let taken: Vec<_> = container.mounts().map(|(_, path)| path).collect();
            let mounts = wanted.volume_mounts.iter().filter(|it| !taken.contains(&mount_path(it.json())));
            let mounts = mounts.map(|it| with_placed_volume(it, renamed));
            (container.index.to_string(), env.collect::<Vec<_>>(), mounts.collect::<Vec<_>>())
        })
        .collect();
    for (index, env, mounts) in additions {
        draft.add_items(&pointer(["spec", "containers", &index, "env"]), env, Place::Last)?;
        draft.add_items(&pointer(["spec", "containers", &index, "volumeMounts"]), mounts, Place::Last)?;
    }
    Ok(())
}

/// A mount, of the volume by the name that it has in the pod.
fn with_placed_volume<'a>(mount: &'a Shared, renamed: &Renamed<'a>) -> Json<'a> {
    let own_name = mount.json().get("name").and_then(Json::as_str).unwrap_or_default();
    match renamed.get(own_name) {
        Some(name) if name != own_name => Json::from(mount).with("name", name.clone().into_owned()),
        _ => mount.into(),
    }
}

fn add_containers(
    draft: &mut Draft<'_>,
    template: &Template,
    missing: Missing,
    ours: &[&str],
) -> Result<(), PatchError> {
    // Native sidecars start before everything that may need them.
    let first = first(draft, "initContainers", ours);
    draft.add_items(INIT_CONTAINERS, missing.native, first)?;
    draft.add_items(INIT_CONTAINERS, missing.init, Place::Last)?;
    let place = match template.position {
        Position::First => self::first(draft, "containers", ours),
        Position::Last => Place::Last,
    };
    let goes_first = place != Place::Last && !missing.containers.is_empty();
    draft.add_items(CONTAINERS, missing.containers, place)?;
    let app =
        Pod::of(draft.object()).containers("containers").map(Container::name).find(|it| !ours.contains(it));
    if let Some(app) = app.map(str::to_owned).filter(|_| goes_first) {
        draft.add_members(ANNOTATIONS, [(DEFAULT_CONTAINER, app)])?;
    }
    Ok(())
}

/// Before the pod's own, and behind those of templates that were applied before.
fn first(draft: &Draft<'_>, list: &'static str, ours: &[&str]) -> Place {
    let is_ours =
        |it: &Container<'_>| ours.contains(&it.name()) && (list == "containers" || it.is_native_sidecar());
    Place::Before(Pod::of(draft.object()).containers(list).take_while(is_ours).count())
}

fn rename_mounts(mut container: Value, renamed: &Renamed<'_>) -> Value {
    for list in ["volumeMounts", "volumeDevices"] {
        for mount in container.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(Value::String(name)) = mount.get_mut("name")
                && let Some(placed) = renamed.get(name.as_str())
            {
                *name = placed.clone().into_owned();
            }
        }
    }
    container
}

/// Adds to a list of the spec what it has not.
fn add_missing<'a>(
    draft: &mut Draft<'a>,
    list: &str,
    items: &'a [Shared],
    is_same: impl Fn(&Json<'_>, &Json<'_>) -> bool,
) -> Result<(), PatchError> {
    let present = Pod::of(draft.object()).items(list);
    let is_new = |item: &&Shared| !present.iter().any(|it| is_same(it, item.json()));
    let new: Vec<&Shared> = items.iter().filter(is_new).collect();
    if new.is_empty() {
        return Ok(());
    }
    draft.add_items(&pointer(["spec", list]), new, Place::Last)
}
