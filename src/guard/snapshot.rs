//! What was seen of one etcd cluster at one moment: the facts that a verdict rests on.

use tokio::time::Instant;

use crate::etcd::{ClusterId, MemberId, Reply};

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
    /// Members that run in none of these pods, and answered all the same.
    pub elsewhere: Vec<Elsewhere>,
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

/// A listed member that runs in no pod of the snapshot: in another namespace, or outside of Kubernetes.
#[derive(Clone, Debug)]
pub struct Elsewhere {
    /// The member, by its own word: it answered with this id at one of its client URLs.
    pub id: MemberId,
    /// What it answered.
    pub reply: Reply,
    /// Whether the deletion of its pod was allowed by this guard and may be on its way.
    pub reserved: bool,
}

/// What becomes of a member when its pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Its data stays, and the pod's successor is the same member.
    Persistent,
    /// Its data goes with the pod: the member can never come back, and goes on counting as a voter.
    Ephemeral,
    /// Its data lies on the pod's node, and nothing makes the successor come back to that node.
    OnNode,
    /// The claim that holds its data is being deleted, or is deleted with the pod.
    ClaimTerminating,
    /// Its data stays, but a preStop hook takes the member out of the list.
    RemovedByHook,
}

// === impl Storage ===

impl Storage {
    /// Whether the successor of the deleted pod is the same member.
    #[must_use]
    pub fn keeps_the_member(self) -> bool {
        self == Self::Persistent
    }

    /// Whether the data stays. A hook runs in a container that runs: a stopped one loses nothing by it.
    #[must_use]
    pub fn keeps_the_data(self) -> bool {
        matches!(self, Self::Persistent | Self::RemovedByHook)
    }
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

    /// What everybody answered, in pods and elsewhere.
    pub(super) fn replies(&self) -> impl Iterator<Item = &Reply> {
        self.pods.iter().map(|pod| &pod.reply).chain(self.elsewhere.iter().map(|member| &member.reply))
    }

    /// The pod of this name.
    #[must_use]
    pub fn pod(&self, name: &str) -> Option<&MemberPod> {
        self.pods.iter().find(|pod| pod.name == name)
    }
}
