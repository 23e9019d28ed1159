//! What the silence of a member proves.

use crate::{
    etcd::probe_result::ProbeResult,
    snapshot::{ContainerState, Listener, MemberPod, Silence, Snapshot},
};

/// Whether the silence of a member proves that it takes part in no quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// It does.
    Complete,
    /// It does if the pod and the probe still say the same later.
    Unconfirmed,
    /// It does not.
    Absent,
}

/// Returns what the silence of the target proves. Two witnesses are required, and both must repeat what they said: the kubelet
/// reports late, and a refused connection may only mean that this replica is refused.
pub(super) fn proof_of_silence(snapshot: &Snapshot, target: &MemberPod) -> Proof {
    let Some(silence) = target.silence() else { return Proof::Absent };
    if target.is_running() {
        return Proof::Absent;
    }
    let is_shown = match silence {
        // Nothing runs without a node.
        Silence::Unscheduled => return Proof::Complete,
        Silence::Unanswered => false,
        Silence::ClosedByProxy if is_guard_rejected(snapshot) => false,
        Silence::NoAddress | Silence::Refused | Silence::ClosedByProxy => {
            target.never_started() || is_path_known(snapshot, target) || is_down_with_all(snapshot, target)
        }
    };
    match (is_shown, target.is_silence_confirmed(snapshot.taken_at)) {
        (false, _) => Proof::Absent,
        (true, true) => Proof::Complete,
        (true, false) => Proof::Unconfirmed,
    }
}

/// Whether the silence of a pod is evidence that its member does not run, although nothing has confirmed it.
pub fn is_silence_evident(snapshot: &Snapshot, pod: &MemberPod) -> bool {
    proof_of_silence(snapshot, pod) != Proof::Absent
}

/// Whether no pod is ready.
pub(super) fn is_none_ready(snapshot: &Snapshot) -> bool {
    !snapshot.pods.iter().any(|pod| pod.report.is_ready)
}

/// Whether connections of this replica are known to reach the target's listener.
fn is_path_known(snapshot: &Snapshot, target: &MemberPod) -> bool {
    let answers = |pod: &MemberPod| pod.name != target.name && pod.reply.status().is_some();
    target.path.is_known(snapshot.pods.iter().any(answers))
}

/// Whether the whole cluster is down, which the kubelets say of every pod. If the address of the listener is not known, none of
/// the containers may run.
fn is_down_with_all(snapshot: &Snapshot, target: &MemberPod) -> bool {
    let is_stopped = |pod: &MemberPod| pod.report.container != ContainerState::Running;
    is_none_ready(snapshot)
        && snapshot.statuses().next().is_none()
        && snapshot.pods.iter().all(|pod| pod.silence().is_some())
        && (target.path.listener == Listener::Stated || snapshot.pods.iter().all(is_stopped))
}

/// Whether members whose containers run reject the guard: then the guard may use the wrong scheme or credentials, and a
/// closed connection is no proof that etcd does not listen.
fn is_guard_rejected(snapshot: &Snapshot) -> bool {
    snapshot.pods.iter().any(|pod| match &pod.reply {
        ProbeResult::NoStatus { cause } => pod.is_running() && !cause.is_unanswered(),
        ProbeResult::Healthy { .. } | ProbeResult::StatusOnly { .. } => false,
    })
}
