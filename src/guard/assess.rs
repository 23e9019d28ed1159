//! The heart: what was seen of a cluster, and which pod is to go, become a reason. Pure: no I/O, no clock, no async.
//!
//! The rule, over ALL voters of the member list (never-started ones too, learners never), with q = voters / 2 + 1:
//! the deletion of T passes if `|healthy \ {T} \ on their way out| >= q`. A voter is healthy only if the linearizable
//! read passed at its own address. What cannot be counted is not healthy; what cannot be told is denied.

mod census;

use std::collections::BTreeSet;

pub(in crate::guard) use self::census::{Census, census};
use super::{
    identity::{self, Identity},
    policy::{LeaderPolicy, Permission, Policy},
    snapshot::{Elsewhere, MemberPod, Snapshot},
    verdict::Reason,
};
use crate::etcd::{AlarmKind, Cause, ClusterId, ListedMember, MemberId, Reply, Status};

/// The numbers of a verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Voters in the member list.
    pub voters: usize,
    /// Voters that were just proven healthy.
    pub healthy: usize,
    /// Voters that a majority takes.
    pub quorum: usize,
    /// Healthy voters that would remain: without the target, and without those that are on their way out.
    pub remaining: usize,
    /// The leader, where the serving members name one with one voice.
    pub leader: Option<MemberId>,
    /// The highest term of a serving member.
    pub term: u64,
}

/// A reason with the facts that its text names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assessment {
    /// Why.
    pub reason: Reason,
    /// The target's member, where it is known.
    pub member: Option<MemberId>,
    /// The numbers, where it came to counting.
    pub tally: Option<Tally>,
    /// The voters that are missing and why: members that are not healthy.
    pub missing: Vec<Missing>,
    /// Pods of healthy voters that are on their way out.
    pub leaving: Vec<String>,
    /// The cluster ids that were seen, where there are several.
    pub clusters: Vec<ClusterId>,
    /// Whether a member says that the cluster is out of space.
    pub no_space: bool,
}

/// A voter that is not healthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The pod or, where there is none, the member by its id.
    pub who: String,
    /// What is wrong with it.
    pub why: String,
}

/// A voter with the pod that runs it, if one is seen.
struct Voter<'a> {
    member: &'a ListedMember,
    pod: Option<&'a MemberPod>,
    /// Its answer, where it runs in no pod of the snapshot.
    elsewhere: Option<&'a Elsewhere>,
    corrupt: bool,
}

/// Judges the deletion of the pod `target` of this snapshot. What a leader that is to be moved first would be answered
/// after that, a new assessment tells.
#[must_use]
pub fn assess(snapshot: &Snapshot, target: &MemberPod, policy: &Policy) -> Assessment {
    let clusters: BTreeSet<ClusterId> = statuses(snapshot).map(|status| status.cluster_id).collect();
    if clusters.len() > 1 {
        return Assessment {
            clusters: clusters.into_iter().collect(),
            ..Assessment::of(Reason::SplitCluster)
        };
    }
    // Checked before the quorum: a pod that gives nothing may be the one whose restart is the cure.
    let idle = is_idle(target);
    let list = union_of_lists(snapshot);
    if list.is_empty() {
        // A kubelet tells late that a container runs: nothing votes here for sure only where nobody listens.
        let votes_nowhere = idle && (is_refused(target) || target.ip.is_empty());
        let reason = if votes_nowhere { Reason::MemberNotServing } else { unproven(snapshot) };
        return Assessment { missing: silent_pods(snapshot), ..Assessment::of(reason) };
    }

    let members = match identity::resolve(snapshot, &list) {
        Ok(members) => members,
        Err(ambiguity) => {
            let missing = vec![Missing { who: ambiguity.pod, why: ambiguity.why }];
            return Assessment { missing, ..Assessment::of(Reason::AmbiguousMember) };
        }
    };
    let voters = voters(snapshot, &list, &members);
    let own = members.of(&target.name);
    let tally = tally(snapshot, &voters, own);
    let verdict = |reason| Assessment {
        member: own,
        tally: Some(tally.clone()),
        missing: missing(&voters),
        leaving: leaving(&voters, own),
        no_space: statuses(snapshot).any(|it| it.alarms.iter().any(|alarm| alarm.kind == AlarmKind::NoSpace)),
        ..Assessment::of(reason)
    };

    let Some(own) = own else {
        // It answers to no listed id. Only when every voter is accounted for elsewhere has it surely no vote. If it does
        // not answer at all, a voter without a pod may be this one, found by another name.
        let answers = target.reply.status().is_some();
        let accounted =
            voters.iter().all(|voter| voter.pod.is_some() || (answers && voter.elsewhere.is_some()));
        return verdict(if accounted { Reason::NotAVoter } else { Reason::AmbiguousMember });
    };
    if !voters.iter().any(|voter| voter.member.id == own) {
        return verdict(Reason::NotAVoter);
    }
    // Some member proves a quorum. If the voters in sight are too few for one without the target, there is one out of
    // sight, and it may be this: a kubelet tells of a container some time after it runs, and of its address. Where nobody
    // listens it can only be one that has just started, and any voter that lives explains the quorum better.
    let lives = |voter: &&Voter<'_>| voter.lives() && !voter.is_leaving() && voter.member.id != own;
    let living = voters.iter().filter(lives).count();
    let in_sight = if is_refused(target) { living } else { tally.remaining };
    let may_be_needed = in_sight < tally.quorum;
    if idle && !may_be_needed {
        return verdict(Reason::MemberNotServing);
    }
    let is_loss = !target.storage.keeps_the_member() && policy.ephemeral_data == Permission::Deny;
    if tally.voters == 1 {
        if is_loss {
            return verdict(Reason::PermanentLoss);
        }
        let allowed = policy.single_member == Permission::Allow;
        return verdict(if allowed { Reason::SingleMemberAllowed } else { Reason::SingleMember });
    }
    if tally.remaining < tally.quorum {
        let with_leaving = tally.remaining + leaving(&voters, Some(own)).len();
        let only_for_now = with_leaving >= tally.quorum;
        return verdict(if only_for_now { Reason::DisruptionInProgress } else { Reason::QuorumAtRisk });
    }
    if is_loss && tally.remaining == tally.quorum {
        return verdict(Reason::PermanentLoss);
    }
    match tally.leader {
        Some(leader) if leader == own => match policy.leader {
            LeaderPolicy::Deny | LeaderPolicy::Transfer => verdict(Reason::LeaderProtected),
            LeaderPolicy::Allow => verdict(Reason::LeaderAllowed),
        },
        Some(leader) if voters.iter().any(|it| it.member.id == leader && it.is_healthy()) => {
            verdict(Reason::SafeToDelete)
        }
        // Nobody is named, or somebody who does not serve at its own address: a leader that died a moment ago is
        // named like that.
        _ => verdict(Reason::ElectionInProgress),
    }
}

/// Whether the target gives its cluster nothing and loses nothing by a deletion: nothing answered at its address, the
/// kubelet says that its container does not run, and its data stays.
fn is_idle(target: &MemberPod) -> bool {
    let is_silent = matches!(&target.reply, Reply::Silent { cause } if cause.is_silence());
    is_silent && !target.running && target.storage.keeps_the_data()
}

/// Whether nobody listens at the target's address: then it serves nobody, whatever is not told yet.
fn is_refused(target: &MemberPod) -> bool {
    matches!(&target.reply, Reply::Silent { cause: Cause::Refused(_) })
}

fn statuses(snapshot: &Snapshot) -> impl Iterator<Item = &Status> {
    snapshot.replies().filter_map(Reply::status)
}

/// All members that any serving member lists. While the membership changes the lists may differ: who is in one of them
/// counts, and who votes in one of them votes, which can only raise the quorum that is asked for.
pub(super) fn union_of_lists(snapshot: &Snapshot) -> Vec<ListedMember> {
    let mut union: Vec<ListedMember> = Vec::new();
    for reply in snapshot.replies() {
        let Reply::Serving { members, .. } = reply else { continue };
        for member in members {
            match union.iter_mut().find(|known| known.id == member.id) {
                Some(known) => known.is_learner &= member.is_learner,
                None => union.push(member.clone()),
            }
        }
    }
    union
}

/// Why no member could prove a quorum.
fn unproven(snapshot: &Snapshot) -> Reason {
    let answers = |pod: &&MemberPod| match &pod.reply {
        Reply::Silent { cause } => matches!(cause, Cause::LoginTimedOut(_)),
        Reply::Serving { status, .. } | Reply::Answering { status, .. } => !status.is_learner,
    };
    let answering = snapshot.pods.iter().filter(answers).count();
    let rejected = |pod: &MemberPod| matches!(pod.reply.cause(), Some(Cause::CredentialsRejected(_)));
    if snapshot.pods.iter().any(rejected) {
        Reason::CredentialsRejected
    } else if answering == 0 {
        Reason::EtcdUnreachable
    } else if answering > snapshot.pods.len() / 2 {
        Reason::ElectionInProgress
    } else {
        Reason::QuorumLost
    }
}

/// Members whose data is corrupt, as anybody says; 0 where etcd cannot tell whose.
fn corrupt(snapshot: &Snapshot) -> Vec<MemberId> {
    statuses(snapshot)
        .flat_map(|status| &status.alarms)
        .filter(|alarm| alarm.kind == AlarmKind::Corrupt)
        .map(|alarm| alarm.member_id)
        .collect()
}

fn voters<'a>(snapshot: &'a Snapshot, list: &'a [ListedMember], members: &Identity) -> Vec<Voter<'a>> {
    let corrupt = corrupt(snapshot);
    // An alarm without a member means that etcd cannot tell whose data is wrong: then it is everybody's.
    let all_corrupt = corrupt.contains(&MemberId(0));
    list.iter()
        .filter(|member| !member.is_learner)
        .map(|member| Voter {
            member,
            pod: snapshot.pods.iter().find(|pod| members.of(&pod.name) == Some(member.id)),
            elsewhere: snapshot.elsewhere.iter().find(|it| it.id == member.id),
            corrupt: all_corrupt || corrupt.contains(&member.id),
        })
        .collect()
}

fn tally(snapshot: &Snapshot, voters: &[Voter<'_>], own: Option<MemberId>) -> Tally {
    let (leader, term) = leader(snapshot);
    Tally {
        voters: voters.len(),
        healthy: voters.iter().filter(|voter| voter.is_healthy()).count(),
        quorum: voters.len() / 2 + 1,
        remaining: voters
            .iter()
            .filter(|voter| voter.is_healthy() && !voter.is_leaving() && Some(voter.member.id) != own)
            .count(),
        leader,
        term,
    }
}

/// Whom the serving members of the highest term name with one voice, and that term. Others do not count: a member that
/// is cut off names a leader of the past, and before 3.5 raises its term for ever.
fn leader(snapshot: &Snapshot) -> (Option<MemberId>, u64) {
    let serving = snapshot.replies().filter(|reply| reply.is_serving());
    let serving: Vec<&Status> = serving.filter_map(Reply::status).collect();
    let term = serving.iter().map(|status| status.term).max().unwrap_or(0);
    let mut named = serving.iter().filter(|status| status.term == term).map(|status| status.leader);
    let leader = named.next().flatten();
    let one_voice = named.all(|other| other == leader);
    (leader.filter(|_| one_voice), term)
}

/// Who should take over from the target: of the voters that serve and stay, the one that has applied most.
#[must_use]
pub fn heir<'a>(snapshot: &'a Snapshot, target: &MemberPod) -> Option<(&'a MemberPod, &'a Status)> {
    let corrupt = corrupt(snapshot);
    snapshot
        .pods
        .iter()
        .filter(|pod| pod.name != target.name && !pod.terminating && !pod.reserved)
        .filter_map(|pod| match &pod.reply {
            Reply::Serving { status, .. } if !status.is_learner => Some((pod, status)),
            _ => None,
        })
        .filter(|(_, status)| !corrupt.contains(&status.member_id))
        .max_by_key(|(_, status)| status.applied_index)
}

fn missing(voters: &[Voter<'_>]) -> Vec<Missing> {
    voters
        .iter()
        .filter(|voter| !voter.is_healthy())
        .map(|voter| {
            let id = voter.member.id;
            match voter.pod {
                _ if voter.corrupt => Missing { who: voter.name(), why: String::from("its data is corrupt") },
                Some(pod) => Missing { who: pod.name.clone(), why: why_missing(pod) },
                None if voter.member.has_started() => Missing { who: voter.name(), why: voter.why_unseen() },
                None => Missing { who: format!("member {id}"), why: String::from("it has never started") },
            }
        })
        .collect()
}

fn silent_pods(snapshot: &Snapshot) -> Vec<Missing> {
    snapshot.pods.iter().map(|pod| Missing { who: pod.name.clone(), why: why_missing(pod) }).collect()
}

fn why_missing(pod: &MemberPod) -> String {
    match pod.reply.cause() {
        None => String::from("it answered as another member"),
        Some(cause) => cause.to_string(),
    }
}

fn leaving(voters: &[Voter<'_>], own: Option<MemberId>) -> Vec<String> {
    voters
        .iter()
        .filter(|voter| voter.is_healthy() && voter.is_leaving() && Some(voter.member.id) != own)
        .map(Voter::name)
        .collect()
}

// === impl Voter ===

impl Voter<'_> {
    /// A pod's own word counts before that of a name.
    fn is_healthy(&self) -> bool {
        let reply = self.pod.map(|pod| &pod.reply).or_else(|| self.elsewhere.map(|it| &it.reply));
        !self.corrupt && reply.is_some_and(Reply::is_serving)
    }

    /// Whether somebody answers for it, if only to refuse.
    fn lives(&self) -> bool {
        let reply = self.pod.map(|pod| &pod.reply).or_else(|| self.elsewhere.map(|it| &it.reply));
        reply.is_some_and(|reply| {
            reply.status().is_some() || reply.cause().is_some_and(|cause| !cause.is_silence())
        })
    }

    fn why_unseen(&self) -> String {
        match self.elsewhere.and_then(|it| it.reply.cause()) {
            Some(cause) => cause.to_string(),
            None => String::from("no pod of it is seen, and none of its client URLs answers for it"),
        }
    }

    fn is_leaving(&self) -> bool {
        self.pod.is_some_and(|pod| pod.terminating || pod.reserved)
            || self.elsewhere.is_some_and(|it| it.reserved)
    }

    fn name(&self) -> String {
        match self.pod {
            Some(pod) => pod.name.clone(),
            None if self.member.has_started() => self.member.name.clone(),
            None => format!("member {}", self.member.id),
        }
    }
}

// === impl Assessment ===

impl Assessment {
    /// Whether leadership is to be moved before this pod goes.
    pub(super) fn wants_transfer(&self, policy: &Policy) -> bool {
        self.reason == Reason::LeaderProtected && policy.leader == LeaderPolicy::Transfer
    }

    pub(super) fn of(reason: Reason) -> Self {
        Self {
            reason,
            member: None,
            tally: None,
            missing: Vec::new(),
            leaving: Vec::new(),
            clusters: Vec::new(),
            no_space: false,
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
