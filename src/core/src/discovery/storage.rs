//! The durability of a member's data when its pod is deleted, as far as the pod's specification shows it.

mod removal_hook;

use self::removal_hook::removes_member;
use crate::{
    discovery::member_settings::MemberSettings,
    objects::{
        pod::{Container, Pod},
        pod_volumes::Volume,
    },
    snapshot::Storage,
};

/// Node label that binds a pod to one node, so that its successor finds the same files.
const NODE_LABEL: &str = "kubernetes.io/hostname";

/// Returns the durability that the volumes of the data directory and of the write-ahead log provide: etcd restores a
/// member only from both. A preStop hook can remove the member from the cluster.
pub(super) fn read(pod: &Pod, container: &Container, settings: &MemberSettings) -> Storage {
    let mut durability = Storage::Persistent;
    for volume in volumes(pod, container, settings) {
        match durability_of(pod, volume) {
            Storage::Persistent => {}
            Storage::Ephemeral => return Storage::Ephemeral,
            lost => durability = lost,
        }
    }
    if durability == Storage::Persistent
        && pod.lasting_containers().any(|container| removes_member(pod, container))
    {
        return Storage::RemovedByHook;
    }
    durability
}

/// Whether the data is on volumes, which outlive a restart of the container.
pub(super) fn outlives_container(pod: &Pod, container: &Container, settings: &MemberSettings) -> bool {
    volumes(pod, container, settings).all(|volume| volume.is_some())
}

/// Returns the durability that one volume provides. A claim outlives the pod. A hostPath outlives the pod if the
/// successor runs on the same node. Other volumes, and the container's file system, are deleted with the pod.
fn durability_of(pod: &Pod, volume: Option<&Volume>) -> Storage {
    match volume {
        Some(volume) if volume.persistent_volume_claim.is_some() => Storage::Persistent,
        Some(volume) if volume.host_path.is_some() && is_bound_to_its_node(pod) => Storage::Persistent,
        Some(volume) if volume.host_path.is_some() => Storage::OnNode,
        _ => Storage::Ephemeral,
    }
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
/// first mounted claim or hostPath.
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
            claim.or_else(|| mounted().find(|volume| volume.host_path.is_some()))
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
    by_owner || pod.spec.node_selector.contains_key(NODE_LABEL)
}
