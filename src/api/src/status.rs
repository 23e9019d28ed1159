//! The answer to `GET /status`: clusters and members.

use serde::{Deserialize, Serialize};

use etcd_guard_core::{opt_in_label::OptInLabel, policy::PolicySetting};

/// The beginning of each warning about a priority, after the namespace.
pub const PRIORITY_WARNING: &str = "priority below the guard's";

/// Status of all surveyed clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Survey {
    /// The clusters, by namespace and name.
    pub clusters: Vec<ClusterStatus>,
    /// What could not be surveyed, one sentence each.
    pub problems: Vec<String>,
    /// Guarded namespaces whose clusters are not known; `None` if that concerns all namespaces.
    pub unread_namespaces: Option<Vec<String>>,
    /// Findings about guarded namespaces that concern no single cluster, one sentence each.
    pub warnings: Vec<String>,
    /// Guarded namespaces and pods in which a member may not be recognized.
    pub gaps: Vec<RecognitionGap>,
    /// The priority of the guard's own pod; `None` if the guard runs in no pod or cannot read it.
    pub guard_priority: Option<i32>,
    /// The label of guarded namespaces, `KEY=VALUE`.
    pub opt_in_label: Option<OptInLabel>,
}

/// A guarded namespace without a recognized member, or an unrecognized pod that declares a port of etcd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecognitionGap {
    /// The namespace.
    pub namespace: String,
    /// The pod; `None` if the namespace has no recognized member.
    pub pod: Option<String>,
    /// The gap and its remedy.
    pub text: String,
}

/// One etcd cluster at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// The namespace of its pods.
    pub namespace: String,
    /// Name of the pods' controller, or the pods' labels.
    pub name: String,
    /// Cluster id in hexadecimal, if the members agree on it.
    pub id: Option<String>,
    /// Voters in the member list; `None` if they could not be counted.
    pub voters: Option<usize>,
    /// Voters that the probe round proved healthy.
    pub healthy: Option<usize>,
    /// Number of voters in a majority.
    pub quorum: Option<usize>,
    /// Number of healthy voters above the quorum; negative without a quorum.
    pub spare: Option<i64>,
    /// The raft term.
    pub term: Option<u64>,
    /// The members: first those in pods, then the others.
    pub members: Vec<MemberStatus>,
    /// Approved deletions that may not be visible yet.
    pub reservations: Vec<ReservationStatus>,
    /// The effective policy of the first pod, by setting.
    pub policy: Vec<PolicySetting>,
    /// Problems, one sentence each.
    pub problems: Vec<String>,
    /// States that do not end by themselves, one sentence each, with the next command at its end.
    pub traps: Vec<String>,
    /// The last backup that `kubectl etcd-guard backup` recorded.
    pub last_backup: Option<BackupStatus>,
}

/// A recorded backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupStatus {
    /// Time of the backup (RFC 3339), by the clock of its command.
    pub at: String,
    /// The revision up to which it has all changes.
    pub revision: u64,
}

/// A member, or a pod that should run one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberStatus {
    /// The pod that runs it, if one is known.
    pub pod: Option<String>,
    /// Kind of the controller of this pod, as its ownerReference names it.
    pub owner_kind: Option<String>,
    /// Address of the pod, or the client URL of a member outside of the pods.
    pub address: Option<String>,
    /// Its id in hexadecimal.
    pub id: Option<String>,
    /// Its name in the member list.
    pub name: Option<String>,
    /// Role in the cluster.
    pub role: Role,
    /// Whether the linearizable read succeeded at its own address.
    pub serving: bool,
    /// Why it is not serving.
    pub cause: Option<String>,
    /// etcd's release.
    pub version: Option<String>,
    /// Number of raft entries that it has applied fewer than the most advanced member.
    pub lag: Option<u64>,
    /// Size of its database in bytes.
    pub database_bytes: Option<u64>,
    /// Bytes of its database that defragmentation frees.
    pub free_bytes: Option<u64>,
    /// Bytes of the database at which it rejects writes, if it reports them.
    pub quota_bytes: Option<u64>,
    /// Effect of the pod's deletion on the data.
    pub storage: Option<String>,
    /// The version to which etcd is being downgraded, if a downgrade is in progress.
    pub downgrade: Option<String>,
    /// `terminating`, `reserved` if the guard has just approved its deletion, or `owner-deleted`.
    pub leaving: Option<String>,
}

/// Role of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// All serving members of the highest term name it as the leader.
    Leader,
    /// Any other voter.
    Follower,
    /// A member that does not vote.
    Learner,
    /// The pod runs a member that is not in the member list.
    NotListed,
    /// The pod cannot be matched with a member.
    #[default]
    Unknown,
}

/// An approved deletion that may not be visible yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReservationStatus {
    /// The pod.
    pub pod: String,
    /// Time of the approval (RFC 3339), by the clock of the replica that approved it.
    pub at: String,
    /// User that requested the approved deletion.
    pub by: String,
}

// === impl Role ===

impl Role {
    /// Value of the role in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::Learner => "learner",
            Self::NotListed => "not-listed",
            Self::Unknown => "unknown",
        }
    }
}
