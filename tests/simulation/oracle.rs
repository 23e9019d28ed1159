//! The invariants, checked against the state of the simulated machines after each approval.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use crate::{policies::Policies, raft::Cluster};

/// The knowledge about members and approvals that no simulated process has.
#[derive(Default)]
pub(crate) struct Oracle {
    /// The last time at which each member served, and at which it did not.
    served: BTreeMap<usize, Instant>,
    unserved: BTreeMap<usize, Instant>,
    /// The pod whose process runs each member.
    pub(crate) running: BTreeMap<usize, String>,
    /// Pods with an approved deletion, by uid, until their successors serve.
    departures: BTreeMap<String, Departure>,
    /// The approved evictions by name that the API server has not executed, with their members and the times of the approvals.
    pending: BTreeMap<u64, (usize, Instant)>,
    /// The number of evictions by name so far.
    evictions: u64,
    /// StatefulSets with an approved deletion, by uid, with the number in the uid of the object that was created last
    /// before the request.
    approved_sets: BTreeMap<String, u64>,
    /// Pods of which a deletion was approved by break-glass, by uid.
    overruled: BTreeSet<String>,
    pub(crate) violations: Vec<String>,
    /// Number of verdicts by request and reason.
    pub(crate) verdicts: BTreeMap<(&'static str, &'static str), u32>,
    /// The margin of each approval that removes a voter. Only these approvals are judged.
    pub(crate) margins: Vec<Margin>,
    /// All approvals.
    pub(crate) approvals: u32,
    /// Number of approvals that are not judged, by cause.
    pub(crate) unjudged: BTreeMap<&'static str, u32>,
    /// The reason of the last approval for each pod, by uid.
    pub(crate) reasons: BTreeMap<String, &'static str>,
    /// The policies since the start of the run.
    pub(crate) policies: Policies,
}

/// Time between the end of an evaluation and the check of its approval, at most: a call of the guard that begins meanwhile
/// can find a member stopped that serves in the check.
const CHECK_DELAY: Duration = Duration::from_millis(300);

/// The beginning of a violation of the safety invariant. Other violations concern policies and liveness.
pub(crate) const SAFETY: &str = "safety: ";

/// An approval of this cause is not judged: a policy permits the deletion of the only voter.
const ONLY_VOTER: &str = "the policy for the only voter";

/// The voters beyond the quorum that remained after an approval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Margin {
    /// Simulated time since the start of the run.
    pub(crate) at: Duration,
    /// Number of voters of the cluster.
    pub(crate) voters: usize,
    /// Negative if the remaining voters are no quorum.
    pub(crate) remaining: i64,
}

/// A pod that leaves.
struct Departure {
    member: usize,
    approved_at: Instant,
    /// Approved requests that can still delete the pod.
    requests: u32,
    is_reserved: bool,
    is_executed: bool,
}

/// An approval.
pub(crate) struct Approval<'a> {
    /// The members of the pods that are deleted, with the uids of the pods.
    pub(crate) targets: &'a [(usize, String)],
    pub(crate) reason: &'static str,
    /// Whether the verdict has no warning that the deletion could not be reserved. A break-glass annotation permits this.
    pub(crate) is_reserved: bool,
    /// The uid of the StatefulSet: the object of the request, or the owner in the deleted pod. `None` for evictions and nodes.
    pub(crate) owner: Option<&'a str>,
    pub(crate) operation: Operation,
    /// Time at which the API server called the guard. A fault after this time is not the guard's responsibility.
    pub(crate) requested_at: Instant,
    /// The number in the uid of the object that was created last before the request.
    pub(crate) last_created: u64,
    /// The start of the run.
    pub(crate) started: Instant,
}

/// The object whose deletion is requested in a dry run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DryRun {
    /// The namespace of the cluster.
    Namespace,
    /// The claim with the data of this member.
    Claim(usize),
    /// The headless Service of all pods.
    Service,
}

/// The operation that is approved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Deletes or evicts a pod, or deletes its node.
    Delete,
    /// Deletes a StatefulSet.
    DeleteOwner,
    /// Reduces the replicas of a StatefulSet. The deletion of each pod has a review of its own.
    ScaleDown,
}

/// Returns the position of a pod in the order of creation.
fn created(uid: &str) -> u64 {
    uid.trim_start_matches("uid-").parse().unwrap()
}

// === impl Oracle ===

impl Oracle {
    /// Records which members serve now.
    pub(crate) fn observe(&mut self, cluster: &Cluster, now: Instant) {
        for (member, state) in cluster.members.iter().enumerate() {
            if !state.is_removed && cluster.serves(member, now) {
                self.served.insert(member, now);
                // The process of a deleted pod can run until the kubelet has stopped it, also beside a newer pod.
                let running = self.running.get(&member).map_or(0, |uid| created(uid));
                self.departures
                    .retain(|uid, departure| departure.member != member || created(uid) >= running);
            } else {
                self.unserved.insert(member, now);
            }
        }
    }

    /// Checks an approval, and records that its pods leave.
    pub(crate) fn check(&mut self, cluster: &Cluster, approval: &Approval<'_>) {
        let Approval { targets, reason, is_reserved, owner, operation, requested_at, last_created, started } =
            *approval;
        let approved_at = Instant::now();
        self.approvals += 1;
        self.reasons.extend(targets.iter().map(|(_, uid)| (uid.clone(), reason)));
        let is_target = |member: usize| targets.iter().any(|(target, _)| *target == member);
        // The review of a scale-down counts only deletions that were approved before it began, because the deletion of each of its
        // pods has a review of its own. A deletion that was approved by break-glass counts only in reviews that begin later,
        // because break-glass ignores concurrent reviews.
        // Without a reservation, replicas learn of an approval when it is executed.
        let counts = |uid: &String, departure: &Departure| {
            let may_be_later = operation == Operation::ScaleDown || self.overruled.contains(uid);
            let is_known = departure.is_reserved || departure.is_executed;
            is_known && (!may_be_later || departure.approved_at < requested_at)
        };
        let is_leaving = |member: usize| {
            is_target(member)
                || self.awaits_eviction(member, operation, requested_at)
                || self
                    .departures
                    .iter()
                    .any(|(uid, departure)| departure.member == member && counts(uid, departure))
        };
        let served = |member: &usize| self.served.get(member).is_some_and(|at| *at >= requested_at);
        let remaining: Vec<usize> =
            cluster.voters().filter(served).filter(|member| !is_leaving(*member)).collect();
        let connected = |leader: usize| {
            remaining.iter().filter(|voter| Self::could_reach(cluster, leader, **voter, requested_at)).count()
        };
        let most = remaining.iter().map(|leader| connected(*leader)).max().unwrap_or(0);
        let is_voter = |member: usize| cluster.voters().any(|voter| voter == member);
        let votes = targets.iter().any(|(member, _)| is_voter(*member));
        // The evaluation can be based on the membership before a change that occurred since the request.
        let has_changed = cluster.changed_at.is_some_and(|changed| changed >= requested_at);
        let always_served = |member: usize| self.served_since(member, requested_at);
        let others = self.departures.values().filter(|departure| !is_target(departure.member));
        let last_approval = others.map(|departure| departure.approved_at).max();
        // A member that did not serve at some moment of the evaluation can be found not to serve. The evaluation finds all
        // earlier approvals before it probes the member.
        let was_idle = |member: usize| {
            let unserved = self.unserved.get(&member).copied();
            last_approval.is_none_or(|approval| unserved.is_none_or(|at| at + CHECK_DELAY >= approval))
        };
        // The process of a pod that was deleted by force can run the member beside a new pod that has not started.
        let runs = |member: usize, uid: &String| self.running.get(&member) == Some(uid);
        let is_lost = |member: usize, uid| runs(member, uid) && (always_served(member) || !was_idle(member));
        let concerns_idle = ["MemberNotServing", "IntentHarmless"].contains(&reason);
        let is_new = |uid: &String| !self.departures.contains_key(uid);
        let loses_nothing =
            concerns_idle && !targets.iter().any(|(member, uid)| is_new(uid) && is_lost(*member, uid));
        // A second request for a pod that leaves already removes no further voter.
        let is_repeated = targets.iter().all(|(_, uid)| self.departures.contains_key(uid));
        // Approvals by break-glass are not judged. Their pods count as leaving for later approvals.
        if reason == "BreakGlass" {
            self.overruled.extend(targets.iter().map(|(_, uid)| uid.clone()));
        }
        // A further request for such a pod is approved because of the reservation, also if the first request failed afterwards.
        let is_overruled = ["BreakGlass", "AlreadyTerminating"].contains(&reason)
            && targets.iter().all(|(_, uid)| self.overruled.contains(uid));
        // A pod that is created between the request to delete its StatefulSet and the execution of that request is deleted as part
        // of the cascade: a known gap.
        let approved_set = owner.and_then(|owner| self.approved_sets.get(owner));
        let is_gap = reason == "OwnerDeleted"
            && approved_set.is_some_and(|last| targets.iter().all(|(_, uid)| created(uid) > *last));
        let voter_count = cluster.voters().count();
        let is_permitted = reason == "SingleMemberAllowed"
            && voter_count == 1
            && self.policies.permitted_single_member_since(requested_at);
        // The first cause that applies counts.
        let causes = [
            (!votes, "the pod runs no voter"),
            (is_repeated, "the pod leaves already"),
            (loses_nothing, "the member did not serve"),
            (is_overruled, "break-glass"),
            (has_changed, "the membership changed during the review"),
            (is_gap, "known gap of cascades"),
            (is_permitted, ONLY_VOTER),
        ];
        let cause = causes.into_iter().find(|(applies, _)| *applies).map(|(_, cause)| cause);
        // The guard does not count voters for a member that does not serve, also if an earlier approval requires its judgement.
        let costs_a_voter = operation == Operation::Delete
            && cause.is_none_or(|cause| cause == ONLY_VOTER)
            && (!concerns_idle || targets.iter().any(|(member, _)| self.served_since(*member, requested_at)));
        let min_voters = self.policies.min_voters_since(requested_at);
        if costs_a_voter && voter_count < min_voters {
            self.violations.push(format!(
                "{reason} approved a deletion with {voter_count} voters, and the policy requires {min_voters}"
            ));
        }
        if let Some(cause) = cause {
            *self.unjudged.entry(cause).or_default() += 1;
        } else {
            let signed = |count: usize| i64::try_from(count).unwrap();
            let remaining_voters = signed(most) - signed(cluster.quorum());
            let at = approved_at.duration_since(started);
            self.margins.push(Margin { at, voters: voter_count, remaining: remaining_voters });
            if remaining_voters < 0 {
                let text = self.describe_loss(cluster, approval, &remaining, most);
                self.violations.push(text);
            }
        }
        match operation {
            Operation::Delete => {}
            Operation::DeleteOwner => {
                self.approved_sets.extend(owner.map(|owner| (owner.to_owned(), last_created)));
            }
            Operation::ScaleDown => return,
        }
        for (member, uid) in targets {
            let new =
                Departure { member: *member, approved_at, requests: 0, is_reserved, is_executed: false };
            let departure = self.departures.entry(uid.clone()).or_insert(new);
            departure.requests += 1;
            departure.is_reserved |= is_reserved;
        }
    }

    /// Records the approval of an eviction by name, which can also remove a later pod of the member.
    pub(crate) fn await_eviction(&mut self, member: usize) -> u64 {
        self.evictions += 1;
        self.pending.insert(self.evictions, (member, Instant::now()));
        self.evictions
    }

    /// Whether an approved eviction by name can still remove a pod of this member. The review of a scale-down counts only
    /// approvals from before it began.
    fn awaits_eviction(&self, member: usize, operation: Operation, requested_at: Instant) -> bool {
        self.pending.values().any(|(pending, approved_at)| {
            *pending == member && (operation != Operation::ScaleDown || *approved_at < requested_at)
        })
    }

    /// Records the end of an eviction by name. `successor` is the evicted pod, if it is not the one of the review. The departures
    /// that were approved before the eviction must leave a quorum without the successor. Reviews after the eviction count it.
    pub(crate) fn end_eviction(&mut self, cluster: &Cluster, eviction: u64, successor: Option<String>) {
        let Some((member, approved_at)) = self.pending.remove(&eviction) else { return };
        let Some(uid) = successor else { return };
        let now = Instant::now();
        let is_earlier = |voter: usize| {
            let of_voter = self.departures.values().filter(|departure| departure.member == voter);
            of_voter.into_iter().any(|departure| departure.approved_at < approved_at)
        };
        let remaining = cluster.voters().filter(|voter| *voter != member && !is_earlier(*voter)).count();
        let costs_quorum = cluster.serves(member, now) && remaining < cluster.quorum();
        if costs_quorum && cluster.voters().count() == 1 {
            // No reservation protects an only voter: docs/limitations.md.
            *self.unjudged.entry("known gap of an only voter's successor").or_default() += 1;
        } else if costs_quorum {
            let name = &cluster.members[member].name;
            self.violations.push(format!(
                "{SAFETY}an eviction by name removed the successor {uid} of {name}: {remaining} voters remain, and the quorum is {}",
                cluster.quorum()
            ));
        }
        let departure =
            Departure { member, approved_at: now, requests: 1, is_reserved: true, is_executed: false };
        self.departures.entry(uid).or_insert(departure);
    }

    /// Returns the violation by an approval after which these voters remain, of which `connected` reach each other.
    fn describe_loss(
        &self,
        cluster: &Cluster,
        approval: &Approval<'_>,
        remaining: &[usize],
        connected: usize,
    ) -> String {
        let names = |members: &[usize]| {
            members.iter().map(|member| cluster.members[*member].name.as_str()).collect::<Vec<_>>()
        };
        let target: Vec<usize> = approval.targets.iter().map(|(member, _)| *member).collect();
        let leaving: Vec<String> = self
            .departures
            .iter()
            .map(|(uid, departure)| format!("{} {uid}", cluster.members[departure.member].name))
            .collect();
        format!(
            "{SAFETY}{} approved {:?}: of {} voters {:?} remain, {connected} of them connected, and the quorum is {}; \
             {leaving:?} leave already",
            approval.reason,
            names(&target),
            cluster.voters().count(),
            names(remaining),
            cluster.quorum(),
        )
    }

    /// Checks the approval of a dry run in a run without break-glass. The text of a violation begins with `approval`.
    pub(crate) fn check_dry_run(
        &mut self,
        cluster: &Cluster,
        approval: &str,
        object: &DryRun,
        requested_at: Instant,
    ) {
        // The evaluation can be based on the membership before a change that occurred since the request.
        let has_changed = cluster.changed_at.is_some_and(|changed| changed >= requested_at);
        let served = |voter: &usize| self.served_since(*voter, requested_at);
        let reason = match object {
            DryRun::Namespace => "the namespace contains the data of all members",
            DryRun::Claim(member) if cluster.voters().any(|voter| voter == *member) && !has_changed => {
                "the claim has the data of a voter"
            }
            DryRun::Service
                if cluster.voters().filter(served).count() >= cluster.quorum() && !has_changed =>
            {
                "a quorum served during the whole review"
            }
            DryRun::Claim(_) | DryRun::Service => return,
        };
        self.violations.push(format!("{SAFETY}{approval}: {reason}"));
    }

    /// Whether a member has served without interruption since this instant.
    pub(crate) fn served_since(&self, member: usize, since: Instant) -> bool {
        self.served.contains_key(&member)
            && self.unserved.get(&member).is_none_or(|unserved| *unserved < since)
    }

    /// Whether two members reached each other at some time since `since`.
    fn could_reach(cluster: &Cluster, a: usize, b: usize, since: Instant) -> bool {
        let is_open = |from: usize, to: usize| {
            let cut = cluster.cut.iter().find(|(cut_from, cut_to, _)| (*cut_from, *cut_to) == (from, to));
            cut.is_none_or(|(_, _, at)| *at >= since)
        };
        a == b || is_open(a, b) && is_open(b, a)
    }

    /// Records that an approved request does not delete the pod.
    pub(crate) fn abort(&mut self, uid: &str) {
        if let Some(departure) = self.departures.get_mut(uid) {
            departure.requests = departure.requests.saturating_sub(1);
            if departure.requests == 0 && !departure.is_executed {
                self.departures.remove(uid);
            }
        }
    }

    /// Records that an approved request has deleted the pod.
    pub(crate) fn execute(&mut self, uid: &str) {
        if let Some(departure) = self.departures.get_mut(uid) {
            departure.is_executed = true;
        }
    }

    pub(crate) fn count(&mut self, request: &'static str, reason: &'static str) {
        *self.verdicts.entry((request, reason)).or_default() += 1;
    }
}
