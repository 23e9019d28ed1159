//! Mounts of files of lxcfs over files of /proc and /sys: single files, read-only, and only those that lxcfs serves.
//!
//! Each file is a hostPath of type `File`: on a node without lxcfs the pod waits, and starts as soon as lxcfs runs.
//! Without a type, containerd would create a directory at the path, over which lxcfs could not mount.

use std::{borrow::Cow, collections::BTreeMap};

use json_patch::jsonptr::Pointer;
use serde_json::{Value, json};

use super::{
    context::InjectionContext,
    pod::{
        ContainerView, PodView, affinity, is_below, normalized,
        volumes::{self, PlacedVolume},
        with_member,
    },
    reason::{Note, Reason, truncated},
};
use crate::{
    config::{
        lxcfs::{Lxcfs, LxcfsFile, LxcfsMount, NodeAffinity, SharedProcessNamespace},
        pod::security_level::PodSecurityLevel,
    },
    patch::{ListPosition, PatchBuilder, PatchError, pointer},
};

/// The pod's annotation with the requested files, separated by commas.
pub const FILES: &str = "etcd-guard.io/lxcfs-files";
/// The pod's annotation with the containers that receive files; all containers if absent.
pub const ONLY_CONTAINERS: &str = "etcd-guard.io/lxcfs-containers";
/// The pod's annotation with the containers that receive no files.
pub const EXCLUDED_CONTAINERS: &str = "etcd-guard.io/lxcfs-exclude-containers";

/// The cluster autoscaler's annotation with volumes that may be lost.
const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes";

const VOLUMES: &Pointer = Pointer::from_static("/spec/volumes");

/// A mount and its volume.
struct Source<'a> {
    /// Absent for the mount of the root's parent directory.
    file: Option<LxcfsFile>,
    path: Cow<'a, str>,
    mount: Value,
    volume: PlacedVolume<'a>,
    /// Whether a container has or receives the mount.
    is_used: bool,
}

/// Mounts the files. Returns the names of the files that are mounted in the patched pod.
pub(super) fn apply(
    builder: &mut PatchBuilder,
    context: &InjectionContext<'_>,
    enforced: PodSecurityLevel,
    settings: &Lxcfs,
    notes: &mut Vec<Note>,
) -> Result<Vec<&'static str>, PatchError> {
    let pod = PodView::new(builder.object());
    if context.namespace_labels.is_err() {
        return Ok(Vec::new());
    }
    if let Some(note) = exclusion(pod, enforced, settings) {
        notes.push(note);
        return Ok(Vec::new());
    }
    if pod.is_set("hostPID") {
        notes
            .push(Note::skipped(Reason::HostProcesses, "lxcfs shows the node's uptime: the pod has hostPID"));
    }
    if pod.is_set("shareProcessNamespace") {
        let text = "lxcfs shows the pod's limits, not the containers': the pod has shareProcessNamespace";
        notes.push(Note::skipped(Reason::SharedProcessNamespace, text));
    }
    let mut sources = mount_sources(pod, settings, notes);
    let mut mounts: Vec<(&'static str, usize, Vec<Value>)> = Vec::new();
    for container in containers(pod, settings) {
        let mut new = Vec::with_capacity(sources.len());
        let own_mounts: Vec<_> = container.mounts().collect();
        if let Some(path) = hiding_mount(pod, &own_mounts, &sources, settings) {
            let name = truncated(container.name());
            let text =
                format!("container {name} has its own mount at {path}: lxcfs was not injected into it");
            notes.push(Note::skipped(Reason::Conflict, text));
            continue;
        }
        for source in &mut sources {
            match own_mounts.iter().find(|(_, path)| *path == source.path || is_below(path, &source.path)) {
                None => {
                    source.is_used = true;
                    new.push(source.mount.clone());
                }
                Some((volume, path)) if *volume == source.volume.name && *path == source.path => {
                    source.is_used = true;
                }
                // The user's own mount takes precedence.
                Some(_) => {}
            }
        }
        if !new.is_empty() {
            mounts.push((container.list, container.index, new));
        }
    }
    sources.retain(|source| source.is_used);
    if sources.is_empty() {
        notes.push(Note::skipped(Reason::NoContainer, "lxcfs was injected into no container"));
        return Ok(Vec::new());
    }
    let before = builder.operation_count();
    let volumes = sources.iter_mut().filter_map(|source| source.volume.new.take()).collect();
    builder.add_items(VOLUMES, volumes, ListPosition::Last)?;
    for (list, index, mounts) in mounts {
        let index = index.to_string();
        builder.add_items(&pointer(["spec", list, &index, "volumeMounts"]), mounts, ListPosition::Last)?;
    }
    let names: Vec<&str> = sources.iter().map(|source| source.volume.name.as_ref()).collect();
    mark_safe_to_evict(builder, &names)?;
    add_node_affinity(builder, settings)?;
    notes.push(Note::without_warning(if builder.operation_count() == before {
        Reason::AlreadyInjected
    } else {
        Reason::Lxcfs
    }));
    let mut files: Vec<_> = sources.iter().filter_map(|source| source.file.map(LxcfsFile::name)).collect();
    files.sort_unstable();
    Ok(files)
}

fn exclusion(pod: PodView<'_>, enforced: PodSecurityLevel, settings: &Lxcfs) -> Option<Note> {
    let skipped =
        |reason, cause: String| Some(Note::skipped(reason, format!("lxcfs was not injected: {cause}")));
    if enforced > PodSecurityLevel::Privileged {
        let level = enforced.as_str();
        let cause = format!("the namespace enforces Pod Security {level}, which forbids hostPath volumes");
        return skipped(Reason::PodSecurity, cause);
    }
    if pod.is_set("shareProcessNamespace")
        && settings.shared_process_namespace == SharedProcessNamespace::Skip
    {
        let cause = String::from("with shareProcessNamespace it shows the pod's limits, not the containers'");
        return skipped(Reason::SharedProcessNamespace, cause);
    }
    if pod.has_own_user_namespace() && !settings.user_namespaces {
        let cause = String::from("with hostUsers: false, the pod would not start (lxcfs.userNamespaces)");
        return skipped(Reason::UserNamespace, cause);
    }
    let class = pod.runtime_class()?;
    let matches = |pattern: &String| match pattern.strip_suffix('*') {
        Some(prefix) => class.starts_with(prefix),
        None => class == pattern,
    };
    if settings.skip_runtime_classes.iter().any(matches) {
        return skipped(
            Reason::RuntimeClass,
            format!(
                "runtime class {} is excluded by skipRuntimeClasses of the configuration",
                truncated(class)
            ),
        );
    }
    None
}

/// Returns the requested mounts. Adds a note for each file that cannot be mounted.
fn mount_sources<'a>(pod: PodView<'_>, settings: &'a Lxcfs, notes: &mut Vec<Note>) -> Vec<Source<'a>> {
    let mut unknown = |text: String| notes.push(Note::skipped(Reason::UnknownFile, text));
    let mut files = match pod.annotation(FILES) {
        None => settings.files(),
        Some(names) => {
            let mut files = Vec::new();
            for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
                match LxcfsFile::parse(name).map(|file| (file, settings.obstacle(file))) {
                    Some((file, None)) => files.push(file),
                    Some((_, Some(obstacle))) => unknown(format!("lxcfs: {obstacle}")),
                    None => unknown(format!("lxcfs has no file {:?}", truncated(name))),
                }
            }
            files.sort_unstable();
            files.dedup();
            files
        }
    };
    if files.contains(&LxcfsFile::Cpu) {
        files.retain(|file| *file != LxcfsFile::CpuOnline);
    }
    let mut sources: Vec<Source<'a>> =
        files.into_iter().filter_map(|file| mount_source(pod, settings.mount(Some(file))?, notes)).collect();
    if settings.repairable && !sources.is_empty() {
        sources.extend(settings.mount(None).and_then(|mount| mount_source(pod, mount, notes)));
    }
    sources
}

fn mount_source<'a>(pod: PodView<'_>, wanted: &'a LxcfsMount, notes: &mut Vec<Note>) -> Option<Source<'a>> {
    let own_name = wanted.volume.get("name").and_then(Value::as_str).unwrap_or_default();
    // The names of these volumes and their alternative names are all distinct.
    let other_name = || Some(format!("etcd-guard-{own_name}"));
    let Some(volume) = volumes::place(pod, &wanted.volume, other_name, &BTreeMap::new()) else {
        let text = format!(
            "lxcfs: {} was not mounted: the pod has different volumes with both names of its volume",
            wanted.path
        );
        notes.push(Note::skipped(Reason::Conflict, text));
        return None;
    };
    let mut mount = wanted.mount.clone();
    if volume.name != own_name {
        mount = with_member(mount, "name", volume.name.clone());
    }
    Some(Source { file: wanted.file, path: normalized(&wanted.path), mount, volume, is_used: false })
}

/// Returns the containers that receive files.
fn containers<'a>(pod: PodView<'a>, settings: &'a Lxcfs) -> impl Iterator<Item = ContainerView<'a>> {
    let names = |key: &str| {
        let text = pod.annotation(key)?;
        Some(text.split(',').map(str::trim).filter(|name| !name.is_empty()).collect::<Vec<_>>())
    };
    let (only, except) = (names(ONLY_CONTAINERS), names(EXCLUDED_CONTAINERS).unwrap_or_default());
    let early = pod
        .containers("initContainers")
        .filter(|container| settings.init_containers || container.is_native_sidecar());
    early.chain(pod.containers("containers")).filter(move |container| {
        only.as_ref().is_none_or(|only| only.contains(&container.name()))
            && !except.contains(&container.name())
            && (!settings.only_with_limits || pod.has_limits() || container.has_limits())
    })
}

/// Returns the path of a container's mount that hides one of the files, for instance a mount of /proc.
fn hiding_mount<'a>(
    pod: PodView<'_>,
    own_mounts: &'a [(&str, Cow<'_, str>)],
    sources: &[Source<'_>],
    settings: &Lxcfs,
) -> Option<&'a str> {
    let files = || sources.iter().filter(|source| source.file.is_some());
    let hides = |path: &str| files().any(|source| is_below(&source.path, path));
    let is_from_lxcfs =
        |volume: &str, path: &str| path == LxcfsFile::Cpu.path() && is_cpu_of_lxcfs(pod, volume, settings);
    let (_, path) = own_mounts.iter().find(|(volume, path)| hides(path) && !is_from_lxcfs(volume, path))?;
    Some(path)
}

/// Whether a volume of the pod is the cpu directory that lxcfs serves.
fn is_cpu_of_lxcfs(pod: PodView<'_>, volume: &str, settings: &Lxcfs) -> bool {
    let host_path = |volume: &Value| {
        let path = volume.get("hostPath")?.get("path")?.as_str()?;
        Some(normalized(path).into_owned())
    };
    let lxcfs_path = settings.mount(Some(LxcfsFile::Cpu)).and_then(|mount| host_path(&mount.volume));
    lxcfs_path.is_some() && pod.volume(volume).and_then(host_path) == lxcfs_path
}

/// Adds the volumes to the cluster autoscaler's annotation. Without it, the autoscaler does not drain the node, because
/// it treats hostPath volumes as local data.
fn mark_safe_to_evict(builder: &mut PatchBuilder, names: &[&str]) -> Result<(), PatchError> {
    let present = PodView::new(builder.object()).annotation(SAFE_TO_EVICT).unwrap_or_default();
    let length = present.len() + names.iter().map(|name| name.len() + 1).sum::<usize>();
    let mut listed = String::with_capacity(length);
    listed.push_str(present);
    for name in names {
        if !present.split(',').any(|volume| volume.trim() == *name) {
            if !listed.trim().is_empty() {
                listed.push(',');
            }
            listed += name;
        }
    }
    builder.set(&pointer(["metadata", "annotations", SAFE_TO_EVICT]), listed)
}

fn add_node_affinity(builder: &mut PatchBuilder, settings: &Lxcfs) -> Result<(), PatchError> {
    // The scheduler ignores a pod with a node name; an affinity could only make the kubelet reject it.
    let is_assigned = PodView::new(builder.object()).spec("nodeName").is_some_and(|name| *name != "");
    if is_assigned || settings.node_affinity == NodeAffinity::Off {
        return Ok(());
    }
    let label = &settings.node_label;
    let condition = json!({"key": label.key, "operator": "In", "values": [label.value]});
    match settings.node_affinity {
        NodeAffinity::Off => Ok(()),
        NodeAffinity::Require => affinity::require(builder, &[(affinity::EXPRESSIONS, &[condition])]),
        NodeAffinity::Prefer => {
            let term = json!({"weight": 100, "preference": {"matchExpressions": [condition]}});
            affinity::prefer(builder, &[term])
        }
    }
}
