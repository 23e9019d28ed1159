//! The pods that a drain evicts, by the rules of `kubectl drain`.
//!
//! Source: `staging/src/k8s.io/kubectl/pkg/drain/filters.go`.

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::OwnerReference};

/// The annotation of the mirror of a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The evictions that the user permitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Permitted {
    /// Evict pods whose `emptyDir` volumes are lost.
    pub(crate) empty_dir: bool,
    /// Evict pods without a controller, which nothing creates again.
    pub(crate) unmanaged: bool,
}

/// How a drain treats a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handling {
    /// The pod is evicted.
    Evict,
    /// The pod stays: its controller or its node would create it again at once.
    Ignore(&'static str),
    /// The eviction requires a flag.
    Refuse(&'static str),
}

/// Returns how a drain treats this pod.
pub(crate) fn handling(pod: &Pod, permitted: Permitted) -> Handling {
    let metadata = &pod.metadata;
    if metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(MIRROR)) {
        return Handling::Ignore("mirror of a static pod");
    }
    let is_finished = is_finished(pod);
    match controller(pod) {
        Some(controller) if controller.kind == "DaemonSet" && !is_finished => {
            return Handling::Ignore("pod of a DaemonSet");
        }
        // The eviction changes nothing, and the drain waits for the end of the pod.
        _ if metadata.deletion_timestamp.is_some() => return Handling::Evict,
        None if !is_finished && !permitted.unmanaged => {
            return Handling::Refuse("no controller creates the pod again: pass --force");
        }
        _ => {}
    }
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let has_empty_dir = volumes.iter().any(|volume| volume.empty_dir.is_some());
    if has_empty_dir && !is_finished && !permitted.empty_dir {
        return Handling::Refuse("the data of its emptyDir volumes is lost: pass --delete-emptydir-data");
    }
    Handling::Evict
}

/// Whether all containers of the pod have ended for good.
pub(super) fn is_finished(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Returns the controller of a pod, which creates a successor.
pub(super) fn controller(pod: &Pod) -> Option<&OwnerReference> {
    pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn handling_of(pod: &Value) -> Handling {
        handling(&serde_json::from_value(pod.clone()).unwrap(), Permitted::default())
    }

    fn owner(kind: &str) -> Value {
        json!([{"apiVersion": "apps/v1", "kind": kind, "name": "owner", "uid": "1", "controller": true}])
    }

    #[test]
    fn pods_are_treated_as_by_kubectl() {
        let set = json!({"ownerReferences": owner("StatefulSet")});
        let empty_dir = json!({"containers": [], "volumes": [{"name": "tmp", "emptyDir": {}}]});
        let is_refused = |pod: Value| matches!(handling_of(&pod), Handling::Refuse(_));
        let is_ignored = |pod: Value| matches!(handling_of(&pod), Handling::Ignore(_));
        assert_eq!(handling_of(&json!({"metadata": set})), Handling::Evict);
        assert!(is_refused(json!({"metadata": set, "spec": empty_dir})));
        assert!(is_refused(json!({"metadata": {"name": "bare"}})));
        assert!(is_ignored(json!({"metadata": {"ownerReferences": owner("DaemonSet")}})));
        assert!(is_ignored(json!({"metadata": {"annotations": {MIRROR: "x"}}})));
        let terminating = json!({"metadata": {"deletionTimestamp": "2026-11-24T06:00:00Z"}});
        assert_eq!(handling_of(&terminating), Handling::Evict);
        let finished =
            json!({"metadata": {"name": "job"}, "spec": empty_dir, "status": {"phase": "Succeeded"}});
        assert_eq!(handling_of(&finished), Handling::Evict);
    }

    #[test]
    fn flags_permit_evictions() {
        let bare = json!({
            "metadata": {"name": "bare"},
            "spec": {"containers": [], "volumes": [{"name": "tmp", "emptyDir": {}}]},
        });
        let bare: Pod = serde_json::from_value(bare).unwrap();
        assert_eq!(handling(&bare, Permitted { empty_dir: true, unmanaged: true }), Handling::Evict);
        assert!(matches!(
            handling(&bare, Permitted { empty_dir: false, unmanaged: true }),
            Handling::Refuse(_)
        ));
    }
}
