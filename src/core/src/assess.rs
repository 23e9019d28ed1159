//! Assessment of a deletion: a snapshot, the target and the policy determine a reason. Pure: no I/O, no clock, no async.
//!
//! Rule, over ALL voters of the member list (also those that never started; never learners), with q = voters / 2 + 1:
//! the deletion of T is approved if `|healthy \ {T} \ leaving| >= q`. A voter is healthy only if the linearizable read
//! succeeded at its own address. A voter without proof is not healthy; a deletion that cannot be evaluated is denied.

pub mod cluster_summary;
mod doubt;
pub mod independent;
mod missing_voters;
pub mod node_deletion;
pub mod scale_down;
mod silence;
pub mod stray;
mod unproven;

pub use self::{
    missing_voters::{MissingVoter, describe_broken, describe_missing, inaccessible_pod, unreached_cause},
    silence::is_silence_evident,
};
use self::{
    missing_voters::{missing_voters, silent_pods},
    silence::{Proof, is_none_ready, proof_of_silence},
    unproven::unproven,
};
use crate::{
    etcd::{
        member::{ClusterId, MemberId, Status},
        probe_result::ProbeResult,
    },
    membership::{
        Member, Membership, MembershipError, contradiction::Contradiction,
        single_member::SingleMemberEvidence,
    },
    policy::{LeaderPolicy, Permission, Policy},
    reason::Reason,
    snapshot::{MemberPod, Silence, Snapshot},
    tally::Tally,
};

/// A reason with the facts that its text contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assessment {
    /// Reason of the approval or denial.
    pub reason: Reason,
    /// The target's member, if it is known.
    pub member: Option<MemberId>,
    /// The numbers, if voters were counted.
    pub tally: Option<Tally>,
    /// Voters that are not healthy.
    pub missing: Vec<MissingVoter>,
    /// Names of healthy voters that are leaving, without the target.
    pub leaving: Vec<String>,
    /// The proof that the member list is wrong.
    pub contradiction: Option<Contradiction>,
    /// The leader, and why it does not answer the guard, if the other voters follow it.
    pub silent_leader: Option<(String, String)>,
    /// Why a wrong member list could make an approval unsafe, if nothing excludes it.
    pub doubts: Vec<String>,
    /// Number of listed voters that respond, if they are too few for the quorum that a passed read proves.
    pub too_few_responding: Option<usize>,
    /// Cluster ids of the replies, if they differ.
    pub clusters: Vec<ClusterId>,
    /// Whether a member reports that the cluster is out of space.
    pub no_space: bool,
    /// Number of voters that the policy requires.
    pub min_voters: u32,
    /// Whether the deletion would be approved if the pod and the probe still said the same after [`CONFIRMATION_TIME`].
    ///
    /// [`CONFIRMATION_TIME`]: crate::snapshot::silence::CONFIRMATION_TIME
    pub awaits_confirmation: bool,
}

/// Assesses the deletion of the pod `target` of this snapshot. For a leader whose leadership must be moved first, the
/// deletion is assessed again with a new snapshot.
pub fn assess(snapshot: &Snapshot, target: &MemberPod, policy: &Policy) -> Assessment {
    let membership = Membership::new(snapshot);
    assess_members(snapshot, &membership, target, policy, SingleMemberEvidence::default())
}

/// Assesses a deletion like [`assess`], with the `membership` of the snapshot, and with the `evidence` that a cluster without
/// any answer has one voter.
pub fn assess_members(
    snapshot: &Snapshot,
    membership: &Result<Membership<'_>, MembershipError>,
    target: &MemberPod,
    policy: &Policy,
    evidence: SingleMemberEvidence,
) -> Assessment {
    let clusters = snapshot.cluster_ids();
    if clusters.len() > 1 {
        let clusters = clusters.into_iter().collect();
        return Assessment { clusters, ..Assessment::new(Reason::SplitCluster) };
    }
    let membership = match membership {
        Ok(membership) => membership,
        Err(MembershipError::Unproven) => return assess_unproven(snapshot, target, policy, evidence),
        Err(MembershipError::Ambiguous(identity)) => {
            let pod = snapshot.pod(&identity.pod);
            let owner_kind = pod.map(|pod| pod.owner_kind.clone()).unwrap_or_default();
            let (name, cause) = (identity.pod.clone(), identity.cause.clone());
            let missing = vec![MissingVoter { name, owner_kind, cause }];
            return Assessment { missing, ..Assessment::new(Reason::AmbiguousMember) };
        }
    };
    let member = membership.member_of_pod(&target.name);
    let own = member.map(Member::id);
    let tally = Tally::new(membership, |member| Some(member.id()) == own);
    let leaving = leaving(membership, own);
    let idleness = Idleness::new(snapshot, membership, &tally, target);
    let verdict = |reason: Reason| Assessment {
        awaits_confirmation: idleness == Idleness::Unconfirmed && !reason.allows(),
        member: own,
        tally: Some(tally.clone()),
        missing: missing_voters(membership),
        leaving: leaving.clone(),
        contradiction: membership.contradiction(),
        silent_leader: silent_leader(membership),
        doubts: doubt::doubts(membership, &tally, |member| Some(member.id()) == own),
        too_few_responding: (!membership.explains_reads()).then(|| membership.responding_voters()),
        no_space: snapshot.is_out_of_space(),
        min_voters: policy.min_voters,
        ..Assessment::new(reason)
    };

    if membership.contradiction().is_some() {
        return verdict(Reason::MemberListWrong);
    }
    let Some(member) = member else {
        // The pod matches no listed member. It certainly is not a voter only if every voter is known to run elsewhere. If
        // the pod does not reply, a voter without a pod may be this pod's member under another name, and a pod of which
        // only the name matches a voter may be no member at all.
        let replies = replies(target);
        let is_known = |voter: &Member<'_>| voter.pod.is_some() || (replies && voter.external.is_some());
        let all_known = membership.voters().all(is_known);
        let is_not_needed = replies || idleness == Idleness::Proven || tally.has_quorum();
        let has_no_vote = all_known && is_not_needed;
        let reason = || without_listed_vote(membership, &tally, target);
        let assessment = verdict(if has_no_vote { reason() } else { Reason::AmbiguousMember });
        let awaits_confirmation = assessment.awaits_confirmation && all_known;
        return Assessment { awaits_confirmation, ..assessment };
    };
    if member.listed.is_learner {
        return verdict(without_listed_vote(membership, &tally, target));
    }
    // Checked before the quorum: the restart of a member that serves nothing may be the repair.
    if idleness == Idleness::Proven {
        return verdict(Reason::MemberNotServing);
    }
    // The member list can shrink while every deletion retains its quorum.
    let has_too_few = tally.voters < usize::try_from(policy.min_voters).unwrap_or(usize::MAX);
    if tally.voters == 1 {
        let reason = single_member(target, policy);
        return verdict(if reason.allows() && has_too_few { Reason::TooFewVoters } else { reason });
    }
    if !tally.has_quorum() {
        let outdated =
            membership.voters().filter(|voter| is_remaining_but_outdated(voter, member.id())).count();
        return verdict(if tally.remaining + outdated >= tally.quorum {
            // All of them will follow the new leader in a moment.
            Reason::ElectionInProgress
        } else if tally.remaining + leaving.len() >= tally.quorum {
            Reason::DisruptionInProgress
        } else {
            Reason::QuorumAtRisk
        });
    }
    // A voter that never started has no data that could be lost.
    let is_loss = is_loss(target, policy) && (member.listed.has_started() || replies(target));
    if is_loss && tally.has_no_spare() {
        return verdict(Reason::PermanentLoss);
    }
    if has_too_few {
        return verdict(Reason::TooFewVoters);
    }
    let leader = tally.leader.and_then(|leader| membership.voters().find(|voter| voter.id() == leader));
    verdict(match leader {
        Some(leader) if leader.id() == member.id() => Reason::LeaderProtected,
        // The reads of all voters passed through this leader. Nothing proves that the others can reach each other.
        Some(leader) if leader.is_healthy() && leader.is_leaving() => Reason::DisruptionInProgress,
        Some(leader) if leader.is_healthy() || leads_without_clients(leader) => Reason::SafeToDelete,
        // No leader is named, or the named one does not serve at its own address: followers name a leader that has just
        // stopped for a moment.
        _ => Reason::ElectionInProgress,
    })
}

/// Whether the leader takes part in raft, because the reads of the others pass through it, and only the guard gets no answer from
/// its client port. It does not count as healthy: the others are a quorum without it. A leader that has just stopped is named
/// for a moment as well.
fn leads_without_clients(leader: &Member<'_>) -> bool {
    let says_otherwise = |status: &Status| status.leader != Some(leader.id());
    let may_lead = leader.outdated().is_none()
        && !leader.reply().and_then(ProbeResult::status).is_some_and(says_otherwise);
    let runs = leader.pod.is_some_and(MemberPod::is_running) && !leader.is_leaving();
    runs && may_lead && !leader.is_corrupt && !leader.is_disputed
}

/// Returns the name of the leader and why it does not answer, if the other voters follow it.
fn silent_leader(membership: &Membership<'_>) -> Option<(String, String)> {
    let leader = membership.leadership().leader?;
    let leader = membership.voters().find(|voter| voter.id() == leader)?;
    match leader.reply()? {
        ProbeResult::NoStatus { cause } => Some((leader.name(), cause.to_string())),
        ProbeResult::Healthy { .. } | ProbeResult::StatusOnly { .. } => None,
    }
}

/// Returns the reason for the deletion of a pod that runs no listed voter. It may still run one that raft counts.
fn without_listed_vote(membership: &Membership<'_>, tally: &Tally, target: &MemberPod) -> Reason {
    let is_listed = membership.member_of_pod(&target.name).is_some();
    let leads = target.reply.status().is_some_and(|status| membership.is_named_leader(status.member_id));
    match () {
        // A member that was just removed leads until it has applied its removal.
        () if leads => Reason::ElectionInProgress,
        () if (is_listed || replies(target)) && !membership.explains_reads() => Reason::QuorumAtRisk,
        // If the listed learner votes, the voters that leave could be too many for it.
        () if is_listed && !membership.keeps_quorum_of_responding() => Reason::DisruptionInProgress,
        // A voter that responds and does not serve explains the reads only in releases with true lists.
        () if is_listed && membership.may_lose_promotions() && !tally.has_quorum() => Reason::QuorumAtRisk,
        () => Reason::NotAVoter,
    }
}

/// Returns the reason for the deletion of the only voter of a cluster.
fn single_member(target: &MemberPod, policy: &Policy) -> Reason {
    match policy.single_member {
        _ if is_loss(target, policy) => Reason::PermanentLoss,
        Permission::Allow => Reason::SingleMemberAllowed,
        Permission::Deny => Reason::SingleMember,
    }
}

/// Whether the target's member cannot return after the deletion, and the policy does not accept this.
fn is_loss(target: &MemberPod, policy: &Policy) -> bool {
    !target.storage.preserves_member() && policy.ephemeral_data == Permission::Deny
}

/// Whether a voter other than the target would remain, and serves, but reports a former term.
fn is_remaining_but_outdated(voter: &Member<'_>, target: MemberId) -> bool {
    voter.outdated().is_some() && !voter.is_corrupt && !voter.is_leaving() && voter.id() != target
}

/// Whether the target's member returned its status.
fn replies(target: &MemberPod) -> bool {
    target.reply.status().is_some()
}

/// Assesses a deletion while no member proves a member list.
fn assess_unproven(
    snapshot: &Snapshot,
    target: &MemberPod,
    policy: &Policy,
    evidence: SingleMemberEvidence,
) -> Assessment {
    let denial = || {
        let is_single = policy.single_member == Permission::Allow && evidence.is_conclusive();
        if is_single { single_member(target, policy) } else { unproven(snapshot) }
    };
    let keeps_data = target.keeps_data_while_stopped();
    // No member proves a quorum, and no pod is ready: the only question is whether the data may go. A member that was repaired
    // first may answer already.
    let may_be_lost = !keeps_data && is_none_ready(snapshot);
    let accepts_loss = may_be_lost && policy.ephemeral_data == Permission::Allow;
    let proof = proof_of_silence(snapshot, target);
    let reason = match proof {
        Proof::Complete if keeps_data || accepts_loss => Reason::MemberNotServing,
        Proof::Complete | Proof::Unconfirmed if may_be_lost && !accepts_loss => Reason::PermanentLoss,
        Proof::Complete | Proof::Unconfirmed | Proof::Absent => denial(),
    };
    let awaits_confirmation = proof == Proof::Unconfirmed && (keeps_data || accepts_loss) && !reason.allows();
    Assessment { awaits_confirmation, missing: silent_pods(snapshot), ..Assessment::new(reason) }
}

/// Whether the deletion of the target costs nothing, because its member does not run, and no data is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Idleness {
    /// It costs nothing.
    Proven,
    /// It costs nothing if the pod and the probe still say the same later.
    Unconfirmed,
    /// It may cost a voter, or data.
    Unproven,
}

// === impl Idleness ===

impl Idleness {
    /// Judges the target of a deletion in a cluster whose member list is proven.
    fn new(snapshot: &Snapshot, membership: &Membership<'_>, tally: &Tally, target: &MemberPod) -> Self {
        let Some(silence) = target.silence() else { return Self::Unproven };
        if target.is_running() || !target.keeps_data_while_stopped() {
            return Self::Unproven;
        }
        // The others are a quorum, also if the kubelet reports late and the target serves. A container that starts meanwhile makes
        // a difference only to data that ends with the pod.
        if tally.has_quorum() {
            let is_confirmed =
                target.storage.preserves_data() || target.is_silence_confirmed(snapshot.taken_at);
            return if is_confirmed { Self::Proven } else { Self::Unconfirmed };
        }
        // At least one member proves a quorum. If the other voters in the snapshot are too few for it, an unseen voter takes
        // part, which may be the target: the kubelet reports a container and its address some time after the start. A target
        // that refuses connections can only be a member that has just started; any voter that responds is a more likely
        // explanation of the quorum.
        let own = membership.member_of_pod(&target.name).map(Member::id);
        let responding = membership
            .voters()
            .filter(|voter| voter.is_responding() && !voter.is_leaving() && Some(voter.id()) != own)
            .count();
        let is_refused = matches!(silence, Silence::Refused | Silence::Unscheduled);
        if !is_refused || (own.is_some() && responding < tally.quorum) {
            return Self::Unproven;
        }
        match proof_of_silence(snapshot, target) {
            Proof::Complete => Self::Proven,
            Proof::Unconfirmed => Self::Unconfirmed,
            Proof::Absent => Self::Unproven,
        }
    }
}

/// Names of healthy voters that are leaving, without the target.
fn leaving(membership: &Membership<'_>, target: Option<MemberId>) -> Vec<String> {
    membership
        .voters()
        .filter(|voter| voter.is_healthy() && voter.is_leaving() && Some(voter.id()) != target)
        .map(Member::name)
        .collect()
}

/// Returns the pod that should take over leadership from the target: the best of the healthy voters that are not leaving.
/// `rollout` is the revision to which a rollout in progress updates the pods.
pub fn transferee<'a>(
    snapshot: &'a Snapshot,
    target: &MemberPod,
    rollout: Option<&str>,
) -> Option<(&'a MemberPod, &'a Status)> {
    best_transferee(transferees(snapshot, target), rollout)
}

/// Returns the best candidate. One that a rollout has updated comes first: the rollout will not delete it, so that leadership
/// moves at most twice. Then the one that has applied most raft entries. Of equal ones, the one whose pod has the highest uid is
/// chosen, because uids are random. If the guard chose by name, the leaders of all clusters would be on one node after a drain.
pub fn best_transferee<'a>(
    candidates: Vec<(&'a MemberPod, &'a Status)>,
    rollout: Option<&str>,
) -> Option<(&'a MemberPod, &'a Status)> {
    let is_updated = |pod: &MemberPod| rollout.is_some_and(|revision| pod.revision == revision);
    candidates.into_iter().max_by_key(|(pod, status)| (is_updated(pod), status.applied_index, &pod.uid))
}

/// Returns the pods that can take over leadership from the target: those of the healthy voters that are not leaving.
pub fn transferees<'a>(snapshot: &'a Snapshot, target: &MemberPod) -> Vec<(&'a MemberPod, &'a Status)> {
    let Ok(membership) = Membership::new(snapshot) else { return Vec::new() };
    let candidates = snapshot.pods.iter().filter(|pod| pod.name != target.name).filter_map(|pod| {
        let member = membership.member_of_pod(&pod.name)?;
        let is_candidate = member.is_healthy() && !member.listed.is_learner && !member.is_leaving();
        pod.reply.status().filter(|status| is_candidate && !status.is_learner).map(|status| (pod, status))
    });
    candidates.collect()
}

// === impl Assessment ===

impl Assessment {
    /// Whether the policy, as it applies to the requester, requires a transfer of leadership before the deletion. A leader that
    /// does not answer moves nothing.
    pub fn wants_transfer(&self, policy: &Policy) -> bool {
        self.reason == Reason::LeaderProtected
            && self.silent_leader.is_none()
            && policy.leader == LeaderPolicy::Transfer
    }

    /// An assessment with this reason and no further facts.
    pub(super) fn new(reason: Reason) -> Self {
        Self {
            reason,
            member: None,
            tally: None,
            missing: Vec::new(),
            leaving: Vec::new(),
            contradiction: None,
            silent_leader: None,
            doubts: Vec::new(),
            too_few_responding: None,
            clusters: Vec::new(),
            no_space: false,
            min_voters: 0,
            awaits_confirmation: false,
        }
    }
}

#[cfg(test)]
mod tests;
