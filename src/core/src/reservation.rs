//! Reservations of approved deletions, as the shared record stores them.

use std::ops::Not;

use serde::{Deserialize, Serialize};

/// One approved deletion in the shared record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Reservation {
    /// Uid of the pod that may be leaving. Its successor has another uid.
    pub uid: String,
    /// Namespace of the pod: one etcd cluster may have members in several.
    #[serde(default)]
    pub namespace: String,
    /// Name of the pod, for display.
    pub pod: String,
    /// The pod's member id in hexadecimal, for display and for members in other namespaces.
    #[serde(default)]
    pub member: String,
    /// Time of the approval by the wall clock of the replica that approved it. No lifetime is measured from it; together
    /// with the uid it distinguishes two approvals of one pod.
    pub at: String,
    /// Name of the user that requested the approved deletion.
    #[serde(default)]
    pub by: String,
    /// Whether the deletion of the pod's node was approved. The deletion of the pod follows minutes later.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub of_node: bool,
}

/// A pod that exists and may run a member.
#[derive(Clone, Copy, Debug)]
pub struct LivePod<'a> {
    /// Name of the pod.
    pub name: &'a str,
    /// Uid of the pod.
    pub uid: &'a str,
}
