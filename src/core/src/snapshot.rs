//! Snapshot of one etcd cluster: the facts on which a verdict is based.

mod etcdctl;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixture;
pub mod silence;
mod stop_script;

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

pub use self::{
    etcdctl::EtcdctlFlags,
    silence::{ContainerState, Listener, Path, PodReport, Silence},
    stop_script::StopScript,
};
use crate::{
    etcd::{
        error::MemberError,
        member::{Alarm, AlarmKind, ClusterId, MemberId, Scheme, Status},
        probe_result::ProbeResult,
    },
    mistakes::Mistake,
};

/// Result of one probe round: the pods of a cluster as the API server returns them, and each member's reply.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Display name of the cluster: `NAMESPACE/OWNER`.
    pub cluster: String,
    /// Namespace of the pods.
    pub namespace: String,
    /// Start of the probe round: the facts are not older than this.
    pub taken_at: Instant,
    /// All pods of the cluster.
    pub pods: Vec<MemberPod>,
    /// Members that run in none of these pods and replied at one of their client URLs.
    pub external_members: Vec<ExternalMember>,
    /// Members that run in no pod of this snapshot. The configuration denies all addresses of their client URLs.
    pub denied_members: Vec<MemberId>,
    /// Other namespaces in which pods of external members were found.
    pub other_namespaces: BTreeSet<String>,
    /// When the reservation of a pod expires on this replica, by the name of the pod. For texts only.
    pub reserved_until: BTreeMap<String, Instant>,
    /// Names of the pods whose credentials the guard may not read, because it lacks a Role.
    pub without_role: BTreeSet<String>,
}

/// A pod that runs a member.
#[derive(Clone, Debug)]
pub struct MemberPod {
    /// Name of the pod.
    pub name: String,
    /// Uid of the pod. Its successor with the same name has another uid.
    pub uid: String,
    /// Name of the container that runs etcd.
    pub container: String,
    /// Flags that `etcdctl` needs in that container.
    pub etcdctl: EtcdctlFlags,
    /// Address of the pod; empty if it has none yet.
    pub ip: String,
    /// Name of the member, if etcd's flags or environment in the pod contain it.
    pub member_name: Option<String>,
    /// Hostname of the pod, if its specification sets one.
    pub hostname: String,
    /// Peer URLs that etcd's flags or environment in the pod advertise.
    pub peer_urls: Vec<String>,
    /// State of the pod's owner.
    pub owner: OwnerState,
    /// Kind of the pod's controller; empty without a controller. It is reported only: members may have mixed owners.
    pub owner_kind: String,
    /// Revision of the StatefulSet from which the pod was created; empty without one.
    pub revision: String,
    /// Whether the pod has a deletion timestamp.
    pub terminating: bool,
    /// Whether this guard approved the pod's deletion, which may not be visible yet.
    pub reserved: bool,
    /// What the API server shows of the pod and etcd's container.
    pub report: PodReport,
    /// What is known about the path to the member.
    pub path: Path,
    /// Start of an earlier probe round, if the pod and the probe said the same then.
    pub silent_since: Option<Instant>,
    /// Number of other containers of the pod that run. They can accept connections in the place of etcd, as the proxy of
    /// a service mesh does.
    pub other_containers: usize,
    /// Effect of a deletion on the member's data.
    pub storage: Storage,
    /// The script because of which [`Storage::RemovedByHook`] is assumed; absent if the hook certainly removes the member.
    pub stop_script: Option<StopScript>,
    /// Scheme over which the member is probed. A reply over `https` proves a certificate of the cluster's CA, unless an
    /// annotation accepts the certificates that all members of the cluster issue themselves.
    pub scheme: Scheme,
    /// Reply from the pod's address.
    pub reply: ProbeResult,
}

/// State of a pod's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerState {
    /// Whether the target has the same owner or, without an owner, the same labels.
    pub has_target: bool,
    /// Whether the owner was deleted: it has a deletion timestamp, or it existed and is gone. The pod is deleted next.
    pub is_deleted: bool,
}

/// A listed member that runs in no pod of the snapshot: in another namespace, or outside of Kubernetes.
#[derive(Clone, Debug)]
pub struct ExternalMember {
    /// Id of the member, from its own reply at one of its client URLs.
    pub id: MemberId,
    /// The member's reply.
    pub reply: ProbeResult,
    /// Whether this guard approved the deletion of the member's pod, which may not be visible yet.
    pub reserved: bool,
}

/// Effect of a pod's deletion on its member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// The data remains, and the pod's successor is the same member.
    Persistent,
    /// The data is deleted with the pod: the member cannot return, and still counts as a voter.
    Ephemeral,
    /// The data is on the pod's node, and the pod's successor may be scheduled to another node.
    OnNode,
    /// The claim that holds the data is being deleted, or is deleted with the pod.
    ClaimTerminating,
    /// The data remains, but a preStop hook removes the member from the member list, or may remove it.
    RemovedByHook,
}

/// Why a pod counts as leaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// The pod has a deletion timestamp.
    Terminating,
    /// The guard approved its deletion, which may not be visible yet.
    Reserved,
    /// Its owner was deleted.
    OwnerDeleted,
}

// === impl OwnerState ===

impl OwnerState {
    /// The owner of the target, which is not being deleted.
    pub const OF_TARGET: Self = Self { has_target: true, is_deleted: false };
}

// === impl ExternalMember ===

impl ExternalMember {
    /// Why the member's pod is leaving, if it is. External members of terminating pods are not part of a snapshot.
    pub fn departure(&self) -> Option<Departure> {
        self.reserved.then_some(Departure::Reserved)
    }
}

// === impl Departure ===

impl Departure {
    /// Value of the status field.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Terminating => "terminating",
            Self::Reserved => "reserved",
            Self::OwnerDeleted => "owner-deleted",
        }
    }
}

// === impl Storage ===

impl Storage {
    /// Whether the successor of the deleted pod is the same member.
    pub fn preserves_member(self) -> bool {
        self == Self::Persistent
    }

    /// Whether the data remains if the container does not run: a preStop hook runs only in a running container.
    pub fn preserves_data(self) -> bool {
        matches!(self, Self::Persistent | Self::RemovedByHook)
    }

    /// Whether the data is in the pod itself.
    pub fn ends_with_pod(self) -> bool {
        self == Self::Ephemeral
    }

    /// Value of the status field.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Persistent => "persistent",
            Self::Ephemeral => "ephemeral",
            Self::OnNode => "on-node",
            Self::ClaimTerminating => "claim-terminating",
            Self::RemovedByHook => "removed-by-hook",
        }
    }
}

// === impl MemberPod ===

impl MemberPod {
    /// The same pod, as a pod with another owner than the target.
    pub fn with_foreign_owner(mut self) -> Self {
        self.owner.has_target = false;
        self.terminating &= !Mistake::IgnoreForeignTerminating.is_active();
        self
    }

    /// Why the pod is leaving, if it is.
    pub fn departure(&self) -> Option<Departure> {
        if self.terminating {
            Some(Departure::Terminating)
        } else if self.reserved {
            Some(Departure::Reserved)
        } else {
            self.owner.is_deleted.then_some(Departure::OwnerDeleted)
        }
    }

    /// Whether the guard may lack the credentials or the address of the member, although the member may be healthy.
    pub fn may_lack_access(&self) -> bool {
        match self.reply.cause() {
            Some(
                MemberError::CredentialsRejected(_)
                | MemberError::Tls(_)
                | MemberError::UnadvertisedScheme(_),
            ) => true,
            Some(MemberError::Unreachable(_) | MemberError::Refused(_) | MemberError::Closed(_)) => {
                self.is_running() && !self.terminating
            }
            _ => false,
        }
    }

    /// The command that runs `etcdctl` in this pod.
    pub fn etcdctl_command(&self, namespace: &str, arguments: &str) -> String {
        self.etcdctl.command(namespace, &self.name, &self.container, arguments)
    }
}

// === impl Snapshot ===

impl Snapshot {
    /// Cluster id of the pods' replies, if all are the same.
    pub fn cluster_id(&self) -> Option<ClusterId> {
        let mut ids = self.pods.iter().filter_map(|pod| pod.reply.status()).map(|status| status.cluster_id);
        let id = ids.next()?;
        ids.all(|other| other == id).then_some(id)
    }

    /// Records that the data of this pod remains, because only its container restarts. A hook runs then as well.
    pub fn keep_data(&mut self, pod: &str) {
        for pod in self.pods.iter_mut().filter(|known| known.name == pod) {
            if pod.storage != Storage::RemovedByHook {
                pod.storage = Storage::Persistent;
            }
        }
    }

    /// Records that neither the data nor the member of this pod ends: it only answers nothing for a while.
    pub fn keep_member(&mut self, pod: &str) {
        for pod in self.pods.iter_mut().filter(|known| known.name == pod) {
            pod.storage = Storage::Persistent;
        }
    }

    /// Marks the deletion of this pod as approved.
    pub fn mark_reserved(&mut self, uid: &str) {
        for pod in self.pods.iter_mut().filter(|pod| pod.uid == uid) {
            pod.reserved = true;
        }
    }

    /// Replies of all pods and external members.
    pub fn replies(&self) -> impl Iterator<Item = &ProbeResult> {
        self.pods.iter().map(|pod| &pod.reply).chain(self.external_members.iter().map(|member| &member.reply))
    }

    /// Statuses of all pods and external members that reply.
    pub fn statuses(&self) -> impl Iterator<Item = &Status> {
        self.replies().filter_map(ProbeResult::status)
    }

    /// Ids of the clusters that the replies name, in ascending order. More than one means that the pods belong to
    /// different clusters.
    pub fn cluster_ids(&self) -> BTreeSet<ClusterId> {
        self.statuses().map(|status| status.cluster_id).collect()
    }

    /// Ids of the members with a CORRUPT alarm; 0 if etcd cannot determine the member.
    pub fn corrupt_members(&self) -> Vec<MemberId> {
        let alarms = self.alarms().filter(|alarm| alarm.kind == AlarmKind::Corrupt);
        alarms.map(|alarm| alarm.member_id).collect()
    }

    /// Whether a member reports a NOSPACE alarm.
    pub fn is_out_of_space(&self) -> bool {
        self.alarms().any(|alarm| alarm.kind == AlarmKind::NoSpace)
    }

    /// Ids of the members with a NOSPACE alarm.
    pub fn members_without_space(&self) -> BTreeSet<MemberId> {
        let alarms = self.alarms().filter(|alarm| alarm.kind == AlarmKind::NoSpace);
        alarms.map(|alarm| alarm.member_id).collect()
    }

    fn alarms(&self) -> impl Iterator<Item = &Alarm> {
        self.statuses().flat_map(|status| &status.alarms)
    }

    /// Namespace and name of a pod.
    pub fn namespaced_name(&self, pod: &MemberPod) -> (String, String) {
        (self.namespace.clone(), pod.name.clone())
    }

    /// The pod with this name.
    pub fn pod(&self, name: &str) -> Option<&MemberPod> {
        self.pods.iter().find(|pod| pod.name == name)
    }
}
