//! Reservations of approved deletions, as the ledgers store them.

use std::ops::Not;

use serde::{Deserialize, Serialize};

use crate::objects::pod::Pod;

/// One approved deletion in a ledger.
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
    /// Id of the etcd cluster in hexadecimal; absent if no member reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Whether the request names no uid: it can also delete the successor of the pod.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub by_name: bool,
    /// Id of the image that etcd's container ran when an update of the pod was approved. The same pod returns with another image.
    /// Absent for all other requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_id: Option<String>,
}

/// A pod that exists and may run a member.
#[derive(Clone, Copy, Debug)]
pub struct LivePod<'a> {
    /// Namespace of the pod.
    pub namespace: &'a str,
    /// Name of the pod.
    pub name: &'a str,
    /// Uid of the pod.
    pub uid: &'a str,
    /// Whether its own container runs, and its member passed a linearizable read in this evaluation.
    pub serves: bool,
    /// Id of the image that etcd's container runs; empty if it is unknown.
    pub image_id: &'a str,
}

impl<'a> LivePod<'a> {
    /// Describes a pod whose etcd container runs this image. Whether the pod serves is not known without a probe.
    pub fn new(pod: &'a Pod, image_id: &'a str) -> Self {
        let metadata = &pod.metadata;
        Self {
            namespace: &metadata.namespace,
            name: &metadata.name,
            uid: &metadata.uid,
            serves: false,
            image_id,
        }
    }
}
