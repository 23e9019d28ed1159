//! The files of lxcfs in the place of /proc's: single files, read-only, and only where lxcfs serves them.
//!
//! Each is a hostPath of type `File`: where lxcfs is missing, the pod waits and starts by itself once it is there. Without
//! a type, containerd would make a directory in its place, which lxcfs then could not mount over.

use std::{borrow::Cow, collections::BTreeMap};

use json_patch::jsonptr::Pointer;
use serde_json::json;

use super::{
    Surroundings, affinity,
    choose::shortened,
    pod::{Container, Pod, is_below, normalised},
    reason::{Note, Reason},
    volumes::{self, Placed},
};
use crate::{
    config::{Labels, Lxcfs, LxcfsFile, LxcfsMount, NodeAffinity, SharedProcessNamespace},
    json::Json,
    patch::{Draft, PatchError, Place, pointer},
};

/// The pod's annotation that lists the files that it wants, with commas.
pub const FILES: &str = "etcd-guard.io/lxcfs-files";
/// The pod's annotation that lists the containers that get files; absent: all.
pub const ONLY_CONTAINERS: &str = "etcd-guard.io/lxcfs-containers";
/// The pod's annotation that lists the containers that get none.
pub const EXCLUDED_CONTAINERS: &str = "etcd-guard.io/lxcfs-exclude-containers";

/// What the cluster autoscaler reads: volumes that need not stay where they are.
const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes";

const VOLUMES: &Pointer = Pointer::from_static("/spec/volumes");

/// Something to mount, and the volume that it comes from.
struct Source<'a> {
    /// Absent for the root's parent.
    file: Option<LxcfsFile>,
    path: Cow<'a, str>,
    mount: Json<'a>,
    volume: Placed<'a>,
    /// Whether a container has it, or gets it.
    is_used: bool,
}

/// Mounts the files; returns the names of those that the pod has then.
pub(super) fn apply<'a>(
    draft: &mut Draft<'a>,
    surroundings: &Surroundings<'_>,
    settings: &'a Lxcfs,
    notes: &mut Vec<Note>,
) -> Result<Vec<&'static str>, PatchError> {
    let pod = Pod::of(draft.object());
    let Ok(namespace) = surroundings.namespace_labels else { return Ok(Vec::new()) };
    if let Some(note) = skip(pod, namespace, settings) {
        notes.push(note);
        return Ok(Vec::new());
    }
    if pod.is("hostPID") {
        notes
            .push(Note::skipped(Reason::HostProcesses, "lxcfs shows the node's uptime: the pod has hostPID"));
    }
    if pod.is("shareProcessNamespace") {
        let text = "lxcfs shows the pod's limits, not the containers': the pod has shareProcessNamespace";
        notes.push(Note::skipped(Reason::SharedProcessNamespace, text));
    }
    let mut sources = sources(pod, settings, notes);
    let mut mounts: Vec<(&'static str, usize, Vec<Json<'a>>)> = Vec::new();
    for container in containers(pod, settings) {
        let mut new = Vec::with_capacity(sources.len());
        let taken: Vec<_> = container.mounts().collect();
        if let Some(path) = hidden(pod, &taken, &sources, settings) {
            let name = shortened(container.name());
            let text = format!("container {name} has its own {path}: lxcfs was left out of it");
            notes.push(Note::skipped(Reason::Conflict, text));
            continue;
        }
        for source in &mut sources {
            match taken.iter().find(|(_, path)| *path == source.path || is_below(path, &source.path)) {
                None => {
                    source.is_used = true;
                    new.push(source.mount.clone());
                }
                Some((volume, path)) if *volume == source.volume.name && *path == source.path => {
                    source.is_used = true;
                }
                // The user's own stays.
                Some(_) => {}
            }
        }
        if !new.is_empty() {
            mounts.push((container.list, container.index, new));
        }
    }
    sources.retain(|it| it.is_used);
    if sources.is_empty() {
        notes.push(Note::skipped(Reason::NoContainer, "lxcfs was injected into no container"));
        return Ok(Vec::new());
    }
    let before = draft.changes();
    draft.add_items(VOLUMES, sources.iter_mut().filter_map(|it| it.volume.new.take()), Place::Last)?;
    for (list, index, mounts) in mounts {
        let index = index.to_string();
        draft.add_items(&pointer(["spec", list, &index, "volumeMounts"]), mounts, Place::Last)?;
    }
    let names: Vec<&str> = sources.iter().map(|it| it.volume.name.as_ref()).collect();
    mark_safe_to_evict(draft, &names)?;
    want_node(draft, settings)?;
    notes.push(Note::done(if draft.changes() == before { Reason::AlreadyInjected } else { Reason::Lxcfs }));
    let mut files: Vec<_> = sources.iter().filter_map(|it| it.file.map(LxcfsFile::name)).collect();
    files.sort_unstable();
    Ok(files)
}

fn skip(pod: Pod<'_>, namespace: &Labels, settings: &Lxcfs) -> Option<Note> {
    let left_out =
        |reason, why: String| Some(Note::skipped(reason, format!("lxcfs was not injected: {why}")));
    let level = namespace.get("pod-security.kubernetes.io/enforce").map(String::as_str);
    if let Some(level @ ("baseline" | "restricted")) = level {
        let why = format!("the namespace enforces Pod Security {level}, which forbids hostPath volumes");
        return left_out(Reason::PodSecurity, why);
    }
    if pod.is("shareProcessNamespace") && settings.shared_process_namespace == SharedProcessNamespace::Skip {
        let why = String::from("with shareProcessNamespace it shows the pod's limits, not the containers'");
        return left_out(Reason::SharedProcessNamespace, why);
    }
    let class = pod.runtime_class()?;
    let is_it = |pattern: &String| match pattern.strip_suffix('*') {
        Some(beginning) => class.starts_with(beginning),
        None => class == pattern,
    };
    if settings.skip_runtime_classes.iter().any(is_it) {
        return left_out(
            Reason::RuntimeClass,
            format!("runtime class {} does not go with it", shortened(class)),
        );
    }
    None
}

/// What there is to mount, without what the pod cannot have.
fn sources<'a>(pod: Pod<'_>, settings: &'a Lxcfs, notes: &mut Vec<Note>) -> Vec<Source<'a>> {
    let mut unknown = |text: String| notes.push(Note::skipped(Reason::UnknownFile, text));
    let mut files = match pod.annotation(FILES) {
        None => settings.files(),
        Some(names) => {
            let mut files = Vec::new();
            for name in names.split(',').map(str::trim).filter(|it| !it.is_empty()) {
                match LxcfsFile::of(name).map(|file| (file, settings.obstacle(file))) {
                    Some((file, None)) => files.push(file),
                    Some((_, Some(obstacle))) => unknown(format!("lxcfs: {obstacle}")),
                    None => unknown(format!("lxcfs has no file {:?}", shortened(name))),
                }
            }
            files.sort_unstable();
            files.dedup();
            files
        }
    };
    if files.contains(&LxcfsFile::Cpu) {
        files.retain(|it| *it != LxcfsFile::CpuOnline);
    }
    let mut sources: Vec<Source<'a>> =
        files.into_iter().filter_map(|file| source(pod, settings.mount(Some(file))?, notes)).collect();
    if settings.repairable && !sources.is_empty() {
        sources.extend(settings.mount(None).and_then(|it| source(pod, it, notes)));
    }
    sources
}

fn source<'a>(pod: Pod<'_>, wanted: &'a LxcfsMount, notes: &mut Vec<Note>) -> Option<Source<'a>> {
    let own_name = wanted.volume.json().get("name").and_then(Json::as_str).unwrap_or_default();
    // The names of these volumes and their other names all differ.
    let other_name = || Some(format!("etcd-guard-{own_name}"));
    let Some(volume) = volumes::place(pod, &wanted.volume, other_name, &BTreeMap::new()) else {
        let text = format!("lxcfs: the pod has other volumes of the names that {} needs", wanted.path);
        notes.push(Note::skipped(Reason::Conflict, text));
        return None;
    };
    let mut mount = Json::from(&wanted.mount);
    if volume.name != own_name {
        mount = mount.with("name", volume.name.clone().into_owned());
    }
    Some(Source { file: wanted.file, path: normalised(&wanted.path), mount, volume, is_used: false })
}

/// The containers that get files.
fn containers<'a>(pod: Pod<'a>, settings: &'a Lxcfs) -> impl Iterator<Item = Container<'a>> {
    let names = |key: &str| {
        let text = pod.annotation(key)?;
        Some(text.split(',').map(str::trim).filter(|it| !it.is_empty()).collect::<Vec<_>>())
    };
    let (only, except) = (names(ONLY_CONTAINERS), names(EXCLUDED_CONTAINERS).unwrap_or_default());
    let early =
        pod.containers("initContainers").filter(|it| settings.init_containers || it.is_native_sidecar());
    early.chain(pod.containers("containers")).filter(move |container| {
        only.as_ref().is_none_or(|only| only.contains(&container.name()))
            && !except.contains(&container.name())
            && (!settings.only_with_limits || container.has_limits())
    })
}

/// A mount of the container that hides one of the files: /proc as a whole, for instance.
fn hidden<'a>(
    pod: Pod<'_>,
    taken: &'a [(&str, Cow<'_, str>)],
    sources: &[Source<'_>],
    settings: &Lxcfs,
) -> Option<&'a str> {
    let files = || sources.iter().filter(|it| it.file.is_some());
    let hides = |path: &str| files().any(|it| is_below(&it.path, path));
    let is_ours =
        |volume: &str, path: &str| path == LxcfsFile::Cpu.path() && is_cpu_of_lxcfs(pod, volume, settings);
    let (_, path) = taken.iter().find(|(volume, path)| hides(path) && !is_ours(volume, path))?;
    Some(path)
}

/// Whether a volume of the pod is the whole cpu directory as lxcfs serves it.
fn is_cpu_of_lxcfs(pod: Pod<'_>, volume: &str, settings: &Lxcfs) -> bool {
    let host_path = |volume: &Json<'_>| {
        let path = volume.get("hostPath")?.get("path")?.as_str()?;
        Some(normalised(path).into_owned())
    };
    let ours = settings.mount(Some(LxcfsFile::Cpu)).and_then(|it| host_path(it.volume.json()));
    ours.is_some() && pod.volume(volume).and_then(host_path) == ours
}

/// Lets the cluster autoscaler empty the node: it takes hostPath volumes for data.
fn mark_safe_to_evict(draft: &mut Draft<'_>, names: &[&str]) -> Result<(), PatchError> {
    let present = Pod::of(draft.object()).annotation(SAFE_TO_EVICT).unwrap_or_default();
    let length = present.len() + names.iter().map(|it| it.len() + 1).sum::<usize>();
    let mut listed = String::with_capacity(length);
    listed.push_str(present);
    for name in names {
        if !present.split(',').any(|it| it.trim() == *name) {
            if !listed.trim().is_empty() {
                listed.push(',');
            }
            listed += name;
        }
    }
    draft.rewrite(&pointer(["metadata", "annotations", SAFE_TO_EVICT]), listed)
}

fn want_node(draft: &mut Draft<'_>, settings: &Lxcfs) -> Result<(), PatchError> {
    // On a node that was chosen by hand an affinity could only make the kubelet refuse the pod.
    let is_placed = Pod::of(draft.object()).spec("nodeName").is_some_and(|it| *it != "");
    if is_placed || settings.node_affinity == NodeAffinity::Off {
        return Ok(());
    }
    let label = &settings.node_label;
    let expression = json!({"key": label.key, "operator": "In", "values": [label.value]});
    match settings.node_affinity {
        NodeAffinity::Off => Ok(()),
        NodeAffinity::Require => {
            affinity::require(draft, &[(affinity::EXPRESSIONS, &[Json::from(expression)])])
        }
        NodeAffinity::Prefer => {
            let term = json!({"weight": 100, "preference": {"matchExpressions": [expression]}});
            affinity::prefer(draft, &[Json::from(term)])
        }
    }
}
