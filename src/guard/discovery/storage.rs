//! The durability of a member's data when its pod is deleted, as far as the pod's specification shows it.

use crate::{
    guard::{discovery::member_settings::MemberSettings, model::snapshot::Storage},
    k8s::pod::{Container, Pod, Volume},
};

/// Node label that binds a pod to one node, so that its successor finds the same files.
const NODE_LABEL: &str = "kubernetes.io/hostname";

/// Returns the durability that the volume of the data directory provides. A claim outlives the pod. A hostPath outlives
/// the pod if the successor runs on the same node. Other volumes, and the container's file system, are deleted with the
/// pod. A preStop hook can remove the member from the cluster.
pub(in crate::guard) fn read(pod: &Pod, container: &Container, settings: &MemberSettings) -> Storage {
    match volume(pod, container, settings) {
        Some(volume) if volume.persistent_volume_claim.is_some() => {}
        Some(volume) if volume.host_path.is_some() => {
            if !is_bound_to_its_node(pod) {
                return Storage::OnNode;
            }
        }
        _ => return Storage::Ephemeral,
    }
    if pod.spec.containers.iter().any(has_hook_that_removes_member) {
        Storage::RemovedByHook
    } else {
        Storage::Persistent
    }
}

/// Returns the name of the claim that holds the data.
pub(in crate::guard) fn claim(pod: &Pod, container: &Container, settings: &MemberSettings) -> Option<String> {
    let claim = volume(pod, container, settings)?.persistent_volume_claim.as_ref()?;
    Some(claim.claim_name.clone())
}

/// Returns the volume of the data directory. Without `--data-dir`, the volume is the first mounted claim or hostPath.
fn volume<'a>(pod: &'a Pod, container: &Container, settings: &MemberSettings) -> Option<&'a Volume> {
    let by_name = |name: &str| pod.spec.volumes.iter().find(|volume| volume.name == name);
    let mounts = &container.volume_mounts;
    match settings.get("data-dir") {
        Some(dir) => {
            let holding = mounts.iter().filter(|mount| is_below(dir, &mount.mount_path));
            by_name(&holding.max_by_key(|mount| mount.mount_path.len())?.name)
        }
        None => {
            let mounted = || mounts.iter().filter_map(|mount| by_name(&mount.name));
            // Claims take precedence, because a hostPath can also contain the time zone or certificates.
            let claim = mounted().find(|volume| volume.persistent_volume_claim.is_some());
            claim.or_else(|| mounted().find(|volume| volume.host_path.is_some()))
        }
    }
}

fn is_below(path: &str, folder: &str) -> bool {
    let folder = folder.trim_end_matches('/');
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn is_bound_to_its_node(pod: &Pod) -> bool {
    let by_owner = pod.controller().is_some_and(|owner| matches!(owner.kind.as_str(), "DaemonSet" | "Node"));
    by_owner || pod.spec.node_selector.contains_key(NODE_LABEL)
}

/// Whether a preStop hook removes the member from the member list: with `etcdctl member remove`, or with the script of
/// older Bitnami charts.
fn has_hook_that_removes_member(container: &Container) -> bool {
    let hook = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref()?.exec.as_ref());
    let Some(hook) = hook else { return false };
    let text = hook.command.join(" ");
    let words: Vec<&str> = text.split_whitespace().collect();
    words.windows(2).any(|pair| matches!(pair, ["member", "remove"]))
        || words.iter().any(|word| word.ends_with("/etcd/prestop.sh"))
}
