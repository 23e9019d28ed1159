//! Why a member does not answer, and what each part of the evidence rests on.
//!
//! A refused connection proves only that this path refuses this client: a member that listens on the loopback address, or a
//! network policy that rejects the guard, refuses connections while the member serves. The kubelet reports late. Neither is
//! a fact about the member, and two of them are not one either, unless they are repeated.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    etcd::{error::MemberError, probe_result::ProbeResult},
    snapshot::MemberPod,
};

/// Time after which the pod and the probe must still say that a member does not run. The kubelet compares its containers with
/// the runtime every second, and then writes the status of the pod.
pub const CONFIRMATION_TIME: Duration = Duration::from_secs(2);

/// What the API server shows of a pod and its etcd container, as the kubelet has reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodReport {
    /// State of etcd's container.
    pub container: ContainerState,
    /// Whether the pod has a node. Before, no kubelet runs anything of it.
    pub is_scheduled: bool,
    /// Whether the pod is ready.
    pub is_ready: bool,
}

/// State of etcd's container, as the kubelet has reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerState {
    /// It runs.
    Running,
    /// It ran in this pod, and does not run.
    Stopped,
    /// It waits, has no earlier state, and has never restarted.
    NeverStarted,
}

/// What the specification of a pod shows of the address at which its member listens for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// A setting names an address that other pods reach.
    Stated,
    /// The port or the address is a guess.
    Guessed,
    /// The member listens on the loopback address only.
    Loopback,
}

/// What is known about the path from this replica to a member's listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// What the specification shows.
    pub listener: Listener,
    /// Whether the member has answered this replica at this address before.
    pub has_answered: bool,
}

/// Why nothing answers as the member of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// The pod has no node.
    Unscheduled,
    /// The pod has no address.
    NoAddress,
    /// The address refuses connections.
    Refused,
    /// Another container of the pod accepts connections and closes them, as the proxy of a service mesh does while etcd
    /// does not listen.
    ClosedByProxy,
    /// No answer in time, or no route: the process may be frozen, or the network partitioned.
    Unanswered,
}

// === impl PodReport ===

impl PodReport {
    /// A pod on a node, with this state of etcd's container.
    pub const fn with_container(container: ContainerState) -> Self {
        Self { container, is_scheduled: true, is_ready: false }
    }
}

// === impl ContainerState ===

impl ContainerState {
    /// The state of a container that has started.
    pub const fn of_started(is_running: bool) -> Self {
        if is_running { Self::Running } else { Self::Stopped }
    }
}

// === impl Path ===

impl Path {
    /// Whether connections of this replica are known to reach the listener. `others_answer` states whether another pod of the
    /// cluster answers now.
    pub fn is_known(self, others_answer: bool) -> bool {
        match self.listener {
            Listener::Stated => self.has_answered || others_answer,
            Listener::Guessed => self.has_answered,
            // A proxy in the pod may have forwarded the earlier answer.
            Listener::Loopback => false,
        }
    }
}

// === impl MemberPod ===

impl MemberPod {
    /// Whether etcd's container runs, as the kubelet has reported it.
    pub fn is_running(&self) -> bool {
        self.report.container == ContainerState::Running
    }

    /// Whether etcd's container has never run in this pod, as the kubelet has reported it.
    pub fn never_started(&self) -> bool {
        self.report.container == ContainerState::NeverStarted
    }

    /// Why the member does not answer; `None` if a process of it answers, also with an error.
    pub fn silence(&self) -> Option<Silence> {
        let ProbeResult::NoStatus { cause } = &self.reply else { return None };
        Some(match cause {
            MemberError::Closed(_) if self.other_containers > 0 => Silence::ClosedByProxy,
            cause if !cause.is_unanswered() => return None,
            _ if !self.report.is_scheduled => Silence::Unscheduled,
            _ if self.ip.is_empty() => Silence::NoAddress,
            MemberError::Refused(_) => Silence::Refused,
            _ => Silence::Unanswered,
        })
    }

    /// Whether the pod and the probe said the same [`CONFIRMATION_TIME`] before this instant.
    pub fn is_silence_confirmed(&self, at: Instant) -> bool {
        self.silent_since.is_some_and(|since| at.saturating_duration_since(since) >= CONFIRMATION_TIME)
    }

    /// Whether this pod is silent for the same reason as in an earlier observation, with its container in the same state. A
    /// container in a crash loop may have run in between.
    pub fn is_silent_as(&self, earlier: &Self) -> bool {
        self.uid == earlier.uid
            && self.silence().is_some()
            && self.silence() == earlier.silence()
            && self.report.container == earlier.report.container
    }

    /// Whether the data of the member remains, or there is none, if the pod is deleted while its container does not run. A
    /// container that never started has written nothing, but an earlier pod may have left data outside of this one: on a
    /// claim that is deleted with the pod, or on its node.
    pub fn keeps_data_while_stopped(&self) -> bool {
        self.storage.preserves_data() || (self.never_started() && self.storage.ends_with_pod())
    }
}
