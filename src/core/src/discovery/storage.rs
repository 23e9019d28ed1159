//! The durability of a member's data when its pod is deleted, as far as the pod's specification shows it.

mod removal_hook;

pub(super) use self::removal_hook::HookEffect;
use self::removal_hook::effect_of_hooks;
use crate::{
    discovery::member_settings::MemberSettings,
    objects::{
        pod::{Container, Pod},
        pod_volumes::Volume,
    },
    snapshot::{StopScript, Storage},
};

/// Returns the durability that the volumes of the data directory and of the write-ahead log provide: etcd restores a
/// member only from both. A preStop hook can remove the member from the cluster; the scripts are those because of which
/// this is assumed.
pub(super) fn read(
    pod: &Pod,
    container: &Container,
    settings: &MemberSettings,
) -> (Storage, Vec<StopScript>) {
    let mut durability = Storage::Persistent;
    for volume in volumes(pod, container, settings) {
        match durability_of(pod, volume) {
            Storage::Persistent => {}
            Storage::Ephemeral => return (Storage::Ephemeral, Vec::new()),
            lost => durability = lost,
        }
    }
    if durability != Storage::Persistent {
        return (durability, Vec::new());
    }
    match effect_of_hooks(pod, container) {
        HookEffect::KeepsMember => (Storage::Persistent, Vec::new()),
        HookEffect::RemovesMember => (Storage::RemovedByHook, Vec::new()),
        HookEffect::Unknown(scripts) => (Storage::RemovedByHook, scripts),
    }
}

/// Returns the effect of a script with this content that a preStop hook of a container runs. `etcd` is the name of the
/// container that runs the member.
pub(super) fn effect_of_script(pod: &Pod, etcd: &str, container: &str, content: &str) -> HookEffect {
    let found = pod.lasting_containers().find(|candidate| candidate.name == container);
    found.map_or(HookEffect::KeepsMember, |found| {
        removal_hook::effect_of_script(pod, found, container == etcd, content)
    })
}

/// Whether the data is on volumes, which outlive a restart of the container.
pub(super) fn outlives_container(pod: &Pod, container: &Container, settings: &MemberSettings) -> bool {
    volumes(pod, container, settings).all(|volume| volume.is_some())
}

/// Returns the durability that one volume provides. A claim and external storage outlive the pod. A hostPath outlives the pod if the
/// successor runs on the same node. Other volumes, and the container's file system, are deleted with the pod.
fn durability_of(pod: &Pod, volume: Option<&Volume>) -> Storage {
    match volume {
        Some(volume) if volume.persistent_volume_claim.is_some() => Storage::Persistent,
        Some(volume) if volume.external_storage.is_some() => Storage::Persistent,
        Some(volume) if volume.host_path.is_some() && is_bound_to_its_node(pod) => Storage::Persistent,
        Some(volume) if volume.host_path.is_some() => Storage::OnNode,
        _ => Storage::Ephemeral,
    }
}

/// Whether data is in a directory of the pod's node.
pub(super) fn is_on_node(pod: &Pod, container: &Container, settings: &MemberSettings) -> bool {
    volumes(pod, container, settings).flatten().any(|volume| volume.host_path.is_some())
}

/// Returns the names of the claims that hold the data and the write-ahead log, without duplicates.
pub(super) fn claims(pod: &Pod, container: &Container, settings: &MemberSettings) -> Vec<String> {
    let volumes = volumes(pod, container, settings).flatten();
    let mut names: Vec<String> = volumes
        .filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.clone()))
        .collect();
    names.dedup();
    names
}

/// Returns the volume of the data directory and, if `--wal-dir` is set, the volume of the write-ahead log. A missing
/// volume means that the files are in the container's file system. Without `--data-dir`, the volume of the data is the
/// first mounted claim, external storage or hostPath.
fn volumes<'a>(
    pod: &'a Pod,
    container: &'a Container,
    settings: &MemberSettings,
) -> impl Iterator<Item = Option<&'a Volume>> {
    let by_name = |name: &str| pod.spec.volumes.iter().find(|volume| volume.name == name);
    let mounts = &container.volume_mounts;
    let holding = |dir: &str| {
        let mounts = mounts.iter().filter(|mount| is_below(dir, &mount.mount_path));
        by_name(&mounts.max_by_key(|mount| mount.mount_path.len())?.name)
    };
    let data = match settings.get("data-dir") {
        Some(dir) => holding(dir),
        None => {
            let mounted = || mounts.iter().filter_map(|mount| by_name(&mount.name));
            // Claims take precedence, because a hostPath can also contain the time zone or certificates.
            let claim = mounted().find(|volume| volume.persistent_volume_claim.is_some());
            claim
                .or_else(|| mounted().find(|volume| volume.external_storage.is_some()))
                .or_else(|| mounted().find(|volume| volume.host_path.is_some()))
        }
    };
    std::iter::once(data).chain(settings.get("wal-dir").map(holding))
}

fn is_below(path: &str, folder: &str) -> bool {
    let folder = folder.trim_end_matches('/');
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn is_bound_to_its_node(pod: &Pod) -> bool {
    let by_owner = pod.controller().is_some_and(|owner| matches!(owner.kind.as_str(), "DaemonSet" | "Node"));
    by_owner || pod.spec.only_node(false).is_some()
}
