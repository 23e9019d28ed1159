//! The time between the deletion of a pod and SIGTERM.

use std::time::Duration;

use k8s_openapi::api::core::v1::{LifecycleHandler, Pod};

use super::translation::etcd_container;

/// Returns the duration of the preStop hook of the etcd container: of a `sleep` action, or of a command `sleep SECONDS`,
/// also behind `sh -c`. Other hooks end at once.
pub(super) fn pre_stop_delay(pod: &Pod) -> Duration {
    let lifecycle = etcd_container(pod).and_then(|container| container.lifecycle.as_ref());
    let hook = lifecycle.and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    let seconds = hook.and_then(sleep_seconds).unwrap_or_default();
    Duration::from_secs(seconds.try_into().unwrap_or_default())
}

fn sleep_seconds(hook: &LifecycleHandler) -> Option<i64> {
    if let Some(sleep) = &hook.sleep {
        return Some(sleep.seconds);
    }
    let command = hook.exec.as_ref()?.command.as_ref()?.join(" ");
    let (_, seconds) = command.rsplit_once("sleep ")?;
    seconds.trim().parse().ok()
}
