//! What is told of a cluster: plain words and numbers, as JSON for programs.

use serde::{Deserialize, Serialize};

use crate::{
    etcd::{ListedMember, MemberId, Reply},
    guard::{
        assess::Census,
        ledger::Reservation,
        settings::Setting,
        snapshot::{MemberPod, Snapshot, Storage},
    },
};

/// All clusters that were looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Survey {
    /// The clusters, by namespace and name.
    pub clusters: Vec<ClusterStatus>,
    /// What could not be looked at, one sentence each.
    pub problems: Vec<String>,
}

/// One etcd cluster at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// The namespace of its pods.
    pub namespace: String,
    /// What manages its pods, or their labels.
    pub name: String,
    /// Its id in hexadecimal, where its members tell one.
    pub id: Option<String>,
    /// Voters in the member list; `None` where they could not be counted.
    pub voters: Option<usize>,
    /// Voters that were just proven healthy.
    pub healthy: Option<usize>,
    /// Voters that a majority takes.
    pub quorum: Option<usize>,
    /// How many healthy voters may go until only a quorum is left; below zero where there is none.
    pub spare: Option<i64>,
    /// The raft term.
    pub term: Option<u64>,
    /// Its members: those in pods, then those without.
    pub members: Vec<MemberStatus>,
    /// Deletions that were allowed and may be on their way.
    pub reservations: Vec<ReservationStatus>,
    /// The policy in force for its first pod, choice by choice.
    pub policy: Vec<Setting>,
    /// What is wrong, one sentence each.
    pub problems: Vec<String>,
}

/// A member, or a pod that should run one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberStatus {
    /// The pod that runs it, if one is seen.
    pub pod: Option<String>,
    /// Its id in hexadecimal.
    pub id: Option<String>,
    /// Its name in the member list.
    pub name: Option<String>,
    /// What it is in its cluster.
    pub role: Role,
    /// Whether the linearizable read passed at its own address.
    pub serving: bool,
    /// Why it is not serving.
    pub cause: Option<String>,
    /// etcd's release.
    pub version: Option<String>,
    /// How many raft entries it has applied fewer than whoever has applied most.
    pub lag: Option<u64>,
    /// What a deletion of the pod does to its data.
    pub storage: Option<String>,
    /// `terminating`, or `reserved` where its deletion was allowed a moment ago.
    pub leaving: Option<String>,
}

/// What a member is in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The serving members name it with one voice.
    Leader,
    /// Any other voter.
    Follower,
    /// It has no vote.
    Learner,
    /// The pod runs a member that is not in the member list.
    NotListed,
    /// Which member the pod runs is not known.
    Unknown,
}

/// A deletion that was allowed and may be on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReservationStatus {
    /// The pod.
    pub pod: String,
    /// When it was allowed (RFC 3339), by the clock of whoever allowed it.
    pub at: String,
    /// For whom.
    pub by: String,
}

// === impl Survey ===

impl Survey {
    pub(super) fn with_problem(mut self, problem: String) -> Self {
        self.problems.push(problem);
        self
    }
}

// === impl Role ===

impl Role {
    /// The role's word, as JSON has it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::Learner => "learner",
            Self::NotListed => "not-listed",
            Self::Unknown => "unknown",
        }
    }

    fn of(member: &ListedMember, leader: Option<MemberId>) -> Self {
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
    pub(super) fn of(
        snapshot: &Snapshot,
        census: &Census,
        reserved: &[Reservation],
        policy: Vec<Setting>,
        mistakes: Vec<String>,
    ) -> Self {
        let tally = census.tally.as_ref();
        let signed = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let prefix = format!("{}/", snapshot.namespace);
        let name = snapshot.cluster.strip_prefix(&prefix).unwrap_or(&snapshot.cluster).to_owned();
        let ours = |it: &&Reservation| {
            let of_member = census.list.iter().any(|member| member.id.to_string() == it.member);
            of_member || snapshot.pods.iter().any(|pod| pod.uid == it.uid)
        };
        let reservations = reserved.iter().filter(ours).map(|it| ReservationStatus {
            pod: it.pod.clone(),
            at: it.at.clone(),
            by: it.by.clone(),
        });
        Self {
            namespace: snapshot.namespace.clone(),
            name,
            id: snapshot.cluster_id().map(|id| id.to_string()),
            voters: tally.map(|it| it.voters),
            healthy: tally.map(|it| it.healthy),
            quorum: tally.map(|it| it.quorum),
            spare: tally.map(|it| signed(it.remaining) - signed(it.quorum)),
            term: tally.map(|it| it.term),
            members: members(snapshot, census),
            reservations: reservations.collect(),
            policy,
            problems: problems(census).chain(mistakes).collect(),
        }
    }
}

fn problems(census: &Census) -> impl Iterator<Item = String> {
    let obstacle = census.obstacle.iter().map(|(reason, text)| format!("{text} [{reason}]"));
    let missing = census.missing.iter().map(|it| format!("{}: {}", it.who, it.why));
    let corrupt = census.corrupt.iter().map(|id| match id.0 {
        0 => String::from("data is corrupt somewhere, and etcd cannot tell at which member (alarm CORRUPT)"),
        _ => format!("member {id}: its data is corrupt (alarm CORRUPT)"),
    });
    let space = census.no_space.then(|| {
        String::from("the cluster is out of space and refuses writes until some is freed (alarm NOSPACE)")
    });
    let problems: Vec<String> = obstacle.chain(missing).chain(corrupt).chain(space).collect();
    problems.into_iter()
}

fn members(snapshot: &Snapshot, census: &Census) -> Vec<MemberStatus> {
    let leader = census.tally.as_ref().and_then(|it| it.leader);
    let most = snapshot.replies().filter_map(Reply::status).map(|it| it.applied_index).max();
    let lag = |reply: &Reply| Some(most?.saturating_sub(reply.status()?.applied_index));
    let told = |reply: &Reply| MemberStatus {
        pod: None,
        id: reply.status().map(|it| it.member_id.to_string()),
        name: None,
        role: Role::Unknown,
        serving: reply.is_serving(),
        cause: reply.cause().map(ToString::to_string),
        version: reply.status().map(|it| it.version.clone()),
        lag: lag(reply),
        storage: None,
        leaving: None,
    };
    let listed = |status: MemberStatus, member: &ListedMember| MemberStatus {
        id: Some(member.id.to_string()),
        name: Some(member.name.clone()).filter(|_| member.has_started()),
        role: Role::of(member, leader),
        ..status
    };
    let in_pod = |pod: &MemberPod| {
        let mut status = MemberStatus {
            pod: Some(pod.name.clone()),
            storage: Some(pod.storage.word().to_owned()),
            leaving: leaving(pod.terminating, pod.reserved),
            ..told(&pod.reply)
        };
        // Whoever answers knows its id; if the list does not, it was removed.
        if pod.reply.status().is_some() && !census.list.is_empty() {
            status.role = Role::NotListed;
        }
        match census.member_of(&pod.name) {
            Some(member) => listed(status, member),
            None => status,
        }
    };
    let without_pod = |member: &ListedMember| {
        let seen = snapshot.elsewhere.iter().find(|it| it.id == member.id);
        let silent = || MemberStatus {
            pod: None,
            id: None,
            name: None,
            role: Role::Unknown,
            serving: false,
            cause: Some(String::from("no pod of it is seen, and none of its client URLs answers for it")),
            version: None,
            lag: None,
            storage: None,
            leaving: None,
        };
        let status = seen.map_or_else(silent, |it| MemberStatus {
            leaving: leaving(false, it.reserved),
            ..told(&it.reply)
        });
        listed(status, member)
    };
    let in_pods = snapshot.pods.iter().map(in_pod);
    // Where nothing can be counted, nobody knows which members these pods run.
    let without_pods = census.without_pod().filter(|_| census.tally.is_some()).map(without_pod);
    in_pods.chain(without_pods).collect()
}

fn leaving(terminating: bool, reserved: bool) -> Option<String> {
    match (terminating, reserved) {
        (true, _) => Some(String::from("terminating")),
        (false, true) => Some(String::from("reserved")),
        (false, false) => None,
    }
}

// === impl Storage ===

impl Storage {
    /// In a word, for people.
    const fn word(self) -> &'static str {
        match self {
            Self::Persistent => "persistent",
            Self::Ephemeral => "ephemeral",
            Self::OnNode => "on-node",
            Self::ClaimTerminating => "claim-terminating",
            Self::RemovedByHook => "removed-by-hook",
        }
    }
}
