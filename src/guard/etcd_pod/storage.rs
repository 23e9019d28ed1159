//! What becomes of a member's data when its pod is deleted, as far as the pod tells.

use super::settings::Settings;
use crate::{
    guard::snapshot::Storage,
    k8s::pod::{Container, Pod, Volume},
};

/// Binds a pod to one node, so that its successor finds what it left there.
const NODE_LABEL: &str = "kubernetes.io/hostname";

/// What holds the data directory decides: a claim outlives the pod; a path of the node does if the pod comes back to that
/// node; anything else goes with it, the container's own file system too. What a hook removes is no member any more.
pub(super) fn read(pod: &Pod, container: &Container, settings: &Settings) -> Storage {
    match volume(pod, container, settings) {
        Some(volume) if volume.persistent_volume_claim.is_some() => {}
        Some(volume) if volume.host_path.is_some() => {
            if !is_bound_to_its_node(pod) {
                return Storage::OnNode;
            }
        }
        _ => return Storage::Ephemeral,
    }
    if pod.spec.containers.iter().any(removes_the_member) {
        Storage::RemovedByHook
    } else {
        Storage::Persistent
    }
}

/// The claim that holds the data, if one does.
pub(super) fn claim(pod: &Pod, container: &Container, settings: &Settings) -> Option<String> {
    let claim = volume(pod, container, settings)?.persistent_volume_claim.as_ref()?;
    Some(claim.claim_name.clone())
}

/// The volume with the data directory. Where none is named, any lasting volume counts as the one.
fn volume<'a>(pod: &'a Pod, container: &Container, settings: &Settings) -> Option<&'a Volume> {
    let by_name = |name: &str| pod.spec.volumes.iter().find(|volume| volume.name == name);
    let mounts = &container.volume_mounts;
    match settings.get("data-dir") {
        Some(dir) => {
            let holding = mounts.iter().filter(|mount| is_below(dir, &mount.mount_path));
            by_name(&holding.max_by_key(|mount| mount.mount_path.len())?.name)
        }
        None => {
            let mounted = || mounts.iter().filter_map(|mount| by_name(&mount.name));
            // A path of the node may be its clock's zone, or its certificates.
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

/// Whether a preStop hook takes the member out of the list: `etcdctl member remove`, or the script that older charts
/// bring along for it.
fn removes_the_member(container: &Container) -> bool {
    let hook =
        container.lifecycle.as_ref().and_then(|it| it.pre_stop.as_ref()).and_then(|it| it.exec.as_ref());
    let Some(hook) = hook else { return false };
    let text = hook.command.join(" ");
    let words: Vec<&str> = text.split_whitespace().collect();
    words.windows(2).any(|pair| matches!(pair, ["member", "remove"]))
        || words.iter().any(|word| word.ends_with("/etcd/prestop.sh"))
}
