//! Status of clusters and members, as JSON for programs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    etcd::{ListedMember, MemberId, ProbeResult, Status, stale_read_fix},
    guard::{
        assess::{cluster_summary::ClusterSummary, unreached_cause},
        model::{
            membership::Member,
            reservation::Reservation,
            snapshot::{Departure, MemberPod, Snapshot},
        },
        policy::effective::PolicySetting,
    },
    k8s::OptInLabel,
};

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

// === impl Survey ===

impl Survey {
    pub(in crate::guard) fn with_problem(mut self, problem: String) -> Self {
        self.problems.push(problem);
        self
    }
}

// === impl Role ===

impl Role {
    /// Value of the role in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::Learner => "learner",
            Self::NotListed => "not-listed",
            Self::Unknown => "unknown",
        }
    }

    fn new(member: &ListedMember, leader: Option<MemberId>) -> Self {
        if member.is_learner {
            Self::Learner
        } else if leader == Some(member.id) {
            Self::Leader
        } else {
            Self::Follower
        }
    }
}

// === impl ClusterStatus ===

impl ClusterStatus {
    pub(in crate::guard) fn new(
        snapshot: &Snapshot,
        summary: &ClusterSummary<'_>,
        reserved: &[Reservation],
        policy: Vec<PolicySetting>,
        warnings: Vec<String>,
    ) -> Self {
        let tally = summary.tally.as_ref();
        let signed = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let prefix = format!("{}/", snapshot.namespace);
        let name = snapshot.cluster.strip_prefix(&prefix).unwrap_or(&snapshot.cluster).to_owned();
        let is_of_cluster = |reservation: &&Reservation| {
            summary.list.iter().any(|member| member.id.to_string() == reservation.member)
                || snapshot.pods.iter().any(|pod| pod.uid == reservation.uid)
        };
        let reservations = reserved.iter().filter(is_of_cluster).map(|reservation| ReservationStatus {
            pod: reservation.pod.clone(),
            at: reservation.at.clone(),
            by: reservation.by.clone(),
        });
        Self {
            namespace: snapshot.namespace.clone(),
            name,
            id: snapshot.cluster_id().map(|id| id.to_string()),
            voters: tally.map(|tally| tally.voters),
            healthy: tally.map(|tally| tally.healthy),
            quorum: tally.map(|tally| tally.quorum),
            spare: tally.map(|tally| signed(tally.remaining) - signed(tally.quorum)),
            term: tally.map(|tally| tally.term),
            members: members(snapshot, summary),
            reservations: reservations.collect(),
            policy,
            problems: problems(summary).into_iter().chain(warnings).collect(),
        }
    }
}

fn problems(summary: &ClusterSummary<'_>) -> Vec<String> {
    let obstacle = summary.obstacle.iter().map(|(reason, text)| format!("{reason}: {text}"));
    let missing = summary.missing.iter().map(|voter| format!("{}: {}", voter.name, voter.cause));
    let corrupt = summary.corrupt.iter().map(|id| match id.0 {
        0 => String::from("data is corrupt at a member that etcd cannot determine (alarm CORRUPT)"),
        _ => format!("member {id}: its data is corrupt (alarm CORRUPT)"),
    });
    let space = summary.no_space.then(|| {
        String::from("the cluster is out of space and rejects writes until space is freed (alarm NOSPACE)")
    });
    let stale_reads = stale_reads(summary.members());
    obstacle.chain(missing).chain(corrupt).chain(space).chain(stale_reads).collect()
}

/// Returns one sentence per release that can confirm a linearizable read at a deposed leader.
fn stale_reads(members: &[Member<'_>]) -> Vec<String> {
    let mut by_release: BTreeMap<&str, (String, Vec<String>)> = BTreeMap::new();
    for member in members {
        let Some(status) = member.reply().and_then(ProbeResult::status) else { continue };
        if let Some(fixed) = stale_read_fix(&status.version) {
            let (_, names) = by_release.entry(&status.version).or_insert((fixed, Vec::new()));
            names.push(member.name());
        }
    }
    let sentence = |(version, (fixed, names)): (&str, (String, Vec<String>))| {
        format!(
            "etcd {version} ({}) can confirm a linearizable read at a deposed leader (etcd issue 20418): upgrade to {fixed} \
             or later",
            names.join(", ")
        )
    };
    by_release.into_iter().map(sentence).collect()
}

/// Returns the status of each pod, then of each member without a pod.
fn members(snapshot: &Snapshot, summary: &ClusterSummary<'_>) -> Vec<MemberStatus> {
    let leader = summary.tally.as_ref().and_then(|tally| tally.leader);
    let max_applied = snapshot.statuses().map(|status| status.applied_index).max();
    let with_member = |status: MemberStatus, member: &ListedMember| MemberStatus {
        id: Some(member.id.to_string()),
        name: Some(member.name.clone()).filter(|_| member.has_started()),
        role: Role::new(member, leader),
        ..status
    };
    let in_pod = |pod: &MemberPod| {
        let mut status = MemberStatus {
            pod: Some(pod.name.clone()),
            owner_kind: Some(pod.owner_kind.clone()).filter(|kind| !kind.is_empty()),
            address: Some(pod.ip.clone()).filter(|address| !address.is_empty()),
            storage: Some(pod.storage.as_str().to_owned()),
            leaving: leaving(pod.departure()),
            ..MemberStatus::new(&pod.reply, max_applied)
        };
        // A reply contains the member's id. A member that is not listed was removed.
        if pod.reply.status().is_some() && !summary.list.is_empty() {
            status.role = Role::NotListed;
        }
        match summary.member_of_pod(&pod.name) {
            Some(member) => with_member(status, member),
            None => status,
        }
    };
    let without_pod = |member: &Member<'_>| {
        let status = match member.external {
            Some(external) => MemberStatus {
                leaving: leaving(member.departure()),
                ..MemberStatus::new(&external.reply, max_applied)
            },
            None => {
                MemberStatus { cause: Some(unreached_cause(member).to_owned()), ..MemberStatus::default() }
            }
        };
        let status = MemberStatus { address: member.listed.client_urls.first().cloned(), ..status };
        with_member(status, &member.listed)
    };
    snapshot.pods.iter().map(in_pod).chain(summary.without_pod().map(without_pod)).collect()
}

fn leaving(departure: Option<Departure>) -> Option<String> {
    departure.map(|departure| departure.as_str().to_owned())
}

// === impl MemberStatus ===

impl MemberStatus {
    /// The facts of a reply, without the entry of the member list.
    fn new(reply: &ProbeResult, max_applied: Option<u64>) -> Self {
        let status = reply.status();
        let lag = |status: &Status| Some(max_applied?.saturating_sub(status.applied_index));
        Self {
            id: status.map(|status| status.member_id.to_string()),
            serving: reply.is_healthy(),
            cause: reply.cause().map(ToString::to_string),
            version: status.map(|status| status.version.clone()),
            lag: status.and_then(lag),
            downgrade: status.and_then(|status| status.downgrade.clone()),
            ..Self::default()
        }
    }
}
