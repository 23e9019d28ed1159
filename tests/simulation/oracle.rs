//! The invariants, checked against the state of the simulated machines after each approval.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use crate::raft::Cluster;

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
    /// Pods of which a deletion was approved by break-glass, by uid.
    overruled: BTreeSet<String>,
    pub(crate) violations: Vec<String>,
    /// Number of verdicts by request and reason.
    pub(crate) verdicts: BTreeMap<(&'static str, &'static str), u32>,
    /// The margin of each approval that removes a voter. Only these approvals are judged.
    pub(crate) margins: Vec<Margin>,
    /// All approvals.
    pub(crate) approvals: u32,
    /// The reason of the last approval for each pod, by uid.
    pub(crate) reasons: BTreeMap<String, &'static str>,
}

/// Time between the end of an evaluation and the check of its approval, at most: a call of the guard that begins meanwhile
/// can find a member stopped that serves in the check.
const CHECK_DELAY: Duration = Duration::from_millis(300);

/// The beginning of a violation of the safety invariant. Other violations concern liveness.
pub(crate) const SAFETY: &str = "safety: ";

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
    is_executed: bool,
}

/// An approval.
pub(crate) struct Approval<'a> {
    /// The members of the pods that are deleted, with the uids of the pods.
    pub(crate) targets: &'a [(usize, String)],
    pub(crate) reason: &'static str,
    /// Whether the request concerns the owner of the pods, so that reviews of their deletions follow.
    pub(crate) is_of_owner: bool,
    /// Time at which the API server called the guard. A fault after this time is not the guard's responsibility.
    pub(crate) requested_at: Instant,
    /// The start of the run.
    pub(crate) started: Instant,
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
        let Approval { targets, reason, is_of_owner, requested_at, started } = *approval;
        let approved_at = Instant::now();
        self.approvals += 1;
        self.reasons.extend(targets.iter().map(|(_, uid)| (uid.clone(), reason)));
        let is_target = |member: usize| targets.iter().any(|(target, _)| *target == member);
        let is_leaving = |member: usize| {
            is_target(member) || self.departures.values().any(|departure| departure.member == member)
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
        if votes && !has_changed && !loses_nothing && !is_repeated && !is_overruled {
            let signed = |count: usize| i64::try_from(count).unwrap();
            let remaining_voters = signed(most) - signed(cluster.quorum());
            let at = approved_at.duration_since(started);
            self.margins.push(Margin { at, voters: cluster.voters().count(), remaining: remaining_voters });
            if remaining_voters < 0 {
                let names = |members: &[usize]| {
                    members.iter().map(|member| cluster.members[*member].name.as_str()).collect::<Vec<_>>()
                };
                let target: Vec<usize> = targets.iter().map(|(member, _)| *member).collect();
                let leaving: Vec<usize> =
                    self.departures.values().map(|departure| departure.member).collect();
                self.violations.push(format!(
                    "{SAFETY}{reason} approved {:?}: of {} voters {:?} remain, {most} of them connected, and the quorum \
                     is {}; {:?} leave already",
                    names(&target),
                    cluster.voters().count(),
                    names(&remaining),
                    cluster.quorum(),
                    names(&leaving),
                ));
            }
        }
        if is_of_owner && reason == "IntentHarmless" {
            // The members of these pods do not run. A pod whose member starts is reviewed when the garbage collector deletes it.
            return;
        }
        for (member, uid) in targets {
            let departure = Departure { member: *member, approved_at, requests: 0, is_executed: false };
            self.departures.entry(uid.clone()).or_insert(departure).requests += 1;
        }
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
