//! What was seen of one etcd cluster at one moment: the facts that a verdict rests on.

use tokio::time::Instant;

use crate::etcd::{ClusterId, Reply};

/// One look at a cluster: its pods as the apiserver has them, and what answered at each.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// What people call the cluster: `NAMESPACE/OWNER`.
    pub cluster: String,
    /// The namespace of its pods.
    pub namespace: String,
    /// When the probe round began: the facts are no older than this.
    pub taken_at: Instant,
    /// All pods of the cluster.
    pub pods: Vec<MemberPod>,
}

/// A pod that runs a member.
#[derive(Clone, Debug)]
pub struct MemberPod {
    /// The pod's name.
    pub name: String,
    /// Tells it from its successor of the same name.
    pub uid: String,
    /// The container that runs etcd.
    pub container: String,
    /// Its address, empty while it has none.
    pub ip: String,
    /// The name that etcd was told to take, where the pod says so.
    pub member_name: Option<String>,
    /// Whether its deletion was accepted already.
    pub terminating: bool,
    /// Whether its deletion was allowed by this guard and may be on its way.
    pub reserved: bool,
    /// Whether the kubelet says that etcd's container runs.
    pub running: bool,
    /// What a deletion does to the member's data.
    pub storage: Storage,
    /// What answered at its address.
    pub reply: Reply,
}

/// What becomes of a member's data when its pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// It stays, and the pod's successor is the same member.
    Persistent,
    /// It goes with the pod: the member can never come back, and goes on counting as a voter.
    Ephemeral,
}

// === impl Snapshot ===

impl Snapshot {
    /// The cluster that the pods answer for, if they answer for one.
    #[must_use]
    pub fn cluster_id(&self) -> Option<ClusterId> {
        let mut ids = self.pods.iter().filter_map(|pod| pod.reply.status()).map(|status| status.cluster_id);
        let id = ids.next()?;
        ids.all(|other| other == id).then_some(id)
    }

    /// From now on this pod's deletion is on its way.
    pub(super) fn mark_reserved(&mut self, uid: &str) {
        for pod in self.pods.iter_mut().filter(|pod| pod.uid == uid) {
            pod.reserved = true;
        }
    }

    /// The pod of this name.
    #[must_use]
    pub fn pod(&self, name: &str) -> Option<&MemberPod> {
        self.pods.iter().find(|pod| pod.name == name)
    }
}
