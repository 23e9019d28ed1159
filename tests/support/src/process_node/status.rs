//! The status of a pod as a kubelet reports it. The id of an image is its name.

use std::{net::Ipv4Addr, time::SystemTime};

use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::{Value, json};

use super::translation::is_native_sidecar;

/// The state of a pod's containers, which follows the etcd container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Waits for an image that does not exist.
    ImagePull,
    Running {
        since: SystemTime,
        ready: bool,
    },
    /// Ended, and restarted after a pause.
    CrashLoop {
        exit_code: i32,
    },
    /// Ended permanently, because the pod is terminating.
    Ended {
        exit_code: i32,
    },
}

/// Parts of the status that do not depend on the state.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) address: Ipv4Addr,
    pub(super) created: SystemTime,
    pub(super) restarts: u32,
}

/// Returns a patch of the pod's status. It contains the uid, so that it does not apply to a successor of the same name.
pub(super) fn patch(pod: &Pod, facts: &Facts, state: &State) -> Value {
    let ready = matches!(state, State::Running { ready: true, .. });
    let phase = match state {
        State::ImagePull => "Pending",
        State::Running { .. } | State::CrashLoop { .. } => "Running",
        State::Ended { exit_code: 0 } => "Succeeded",
        State::Ended { .. } => "Failed",
    };
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let condition = |kind: &str, met: bool| json!({"type": kind, "status": if met { "True" } else { "False" }, "lastTransitionTime": now});
    let lasting = |container: &Container| {
        json!({
            "name": container.name,
            "image": container.image,
            "imageID": if *state == State::ImagePull { None } else { container.image.as_deref() }.unwrap_or_default(),
            "ready": ready,
            "started": matches!(state, State::Running { .. }),
            "restartCount": facts.restarts,
            "state": container_state(state),
        })
    };
    let completed = |container: &Container| {
        json!({
            "name": container.name,
            "image": container.image,
            "imageID": "",
            "ready": true,
            "started": false,
            "restartCount": 0,
            "state": container_state(&State::Ended { exit_code: 0 }),
        })
    };
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers).map(lasting);
    let init_containers = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let init_containers = init_containers.map(|container| {
        if is_native_sidecar(container) { lasting(container) } else { completed(container) }
    });
    json!({
        "metadata": {"uid": pod.metadata.uid},
        "status": {
            "phase": phase,
            "podIP": facts.address.to_string(),
            "podIPs": [{"ip": facts.address.to_string()}],
            "startTime": humantime::format_rfc3339_seconds(facts.created).to_string(),
            "conditions": [
                condition("Initialized", true),
                condition("ContainersReady", ready),
                condition("Ready", ready),
            ],
            "containerStatuses": containers.collect::<Vec<_>>(),
            "initContainerStatuses": init_containers.collect::<Vec<_>>(),
        },
    })
}

fn container_state(state: &State) -> Value {
    match state {
        State::Running { since, .. } => {
            json!({"running": {"startedAt": humantime::format_rfc3339_seconds(*since).to_string()}})
        }
        State::ImagePull => json!({"waiting": {"reason": "ImagePullBackOff"}}),
        State::CrashLoop { exit_code } => {
            let message = format!("the process ended with exit code {exit_code}");
            json!({"waiting": {"reason": "CrashLoopBackOff", "message": message}})
        }
        State::Ended { exit_code } => {
            let reason = if *exit_code == 0 { "Completed" } else { "Error" };
            json!({"terminated": {"exitCode": exit_code, "reason": reason}})
        }
    }
}

impl Facts {
    pub(super) fn new(address: Ipv4Addr) -> Self {
        Self { address, created: SystemTime::now(), restarts: 0 }
    }
}
