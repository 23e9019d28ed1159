//! Members of one cluster, each with its evidence: the pod that runs it, and the replies of the probe round.

pub mod contradiction;
pub mod identity;
pub mod leadership;
pub mod scheme;
pub mod single_member;

use std::collections::BTreeMap;

use self::{
    identity::{AmbiguousIdentity, identify},
    leadership::Leadership,
};
use crate::{
    etcd::{
        member::{ListedMember, MemberId, Status},
        probe_result::ProbeResult,
    },
    mistakes::Mistake,
    snapshot::{Departure, ExternalMember, MemberPod, Snapshot},
};

/// The listed members of one cluster.
#[derive(Clone, Debug)]
pub struct Membership<'a> {
    members: Vec<Member<'a>>,
    /// The members that the pods run, by pod name.
    by_pod: BTreeMap<&'a str, MemberId>,
    leadership: Leadership,
}

/// One listed member with its evidence.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// The member's entry in the member list.
    pub listed: ListedMember,
    /// The pod that runs the member.
    pub pod: Option<&'a MemberPod>,
    /// The reply at one of the member's client URLs, if no pod was known to run it.
    pub external: Option<&'a ExternalMember>,
    /// Whether the configuration denies probes of all addresses of the member's client URLs.
    pub is_address_denied: bool,
    /// Whether the member's data is corrupt.
    pub is_corrupt: bool,
    /// Whether some of the member lists do not contain the member as a voter.
    pub is_disputed: bool,
    /// The leadership of the cluster, with which a healthy member agrees.
    leadership: Leadership,
}

/// Why the members of a cluster are unknown.
#[derive(Debug, PartialEq, Eq)]
pub enum MembershipError {
    /// No member served a linearizable read, so that no member list is proven.
    Unproven,
    /// The pods cannot be matched with the members.
    Ambiguous(AmbiguousIdentity),
}

// === impl Membership ===

impl<'a> Membership<'a> {
    /// Matches the members that at least one serving member lists with the pods and replies of a snapshot.
    pub fn new(snapshot: &'a Snapshot) -> Result<Self, MembershipError> {
        let list = listed_members(snapshot);
        if list.is_empty() {
            return Err(MembershipError::Unproven);
        }
        let by_pod = identify(snapshot, &list).map_err(MembershipError::Ambiguous)?;
        let corrupt = snapshot.corrupt_members();
        // An alarm without a member id means that etcd cannot determine which member is corrupt: no member is trusted.
        let all_corrupt = corrupt.contains(&MemberId(0));
        let members = list.into_iter().map(|listed| Member {
            pod: pod_of(snapshot, &by_pod, listed.id),
            external: snapshot.external_members.iter().find(|member| member.id == listed.id),
            is_address_denied: snapshot.denied_members.contains(&listed.id),
            is_corrupt: all_corrupt || corrupt.contains(&listed.id),
            is_disputed: is_disputed(snapshot, &listed),
            leadership: Leadership::default(),
            listed,
        });
        let mut members: Vec<Member<'a>> = members.collect();
        let serving: Vec<&Status> = members.iter().filter_map(Member::vote).collect();
        let leadership = Leadership::new(&serving);
        for member in &mut members {
            member.leadership = leadership;
        }
        Ok(Self { members, by_pod, leadership })
    }

    /// The leader and the term on which the serving voters agree.
    pub fn leadership(&self) -> Leadership {
        self.leadership
    }

    /// All listed members, learners included.
    pub fn members(&self) -> &[Member<'a>] {
        &self.members
    }

    /// The members that vote, also those that never started.
    pub fn voters(&self) -> impl Iterator<Item = &Member<'a>> {
        self.members.iter().filter(|member| !member.listed.is_learner)
    }

    /// The names of the pods that run members.
    pub fn pod_names(&self) -> impl Iterator<Item = &str> {
        self.by_pod.keys().copied()
    }

    /// The member that the pod with this name runs.
    pub fn member_of_pod(&self, name: &str) -> Option<&Member<'a>> {
        let id = self.by_pod.get(name)?;
        self.members.iter().find(|member| member.id() == *id)
    }
}

/// Returns the pod that runs the member: of several pods without a reply, one that is not terminating.
fn pod_of<'a>(
    snapshot: &'a Snapshot,
    by_pod: &BTreeMap<&str, MemberId>,
    id: MemberId,
) -> Option<&'a MemberPod> {
    let pods = snapshot.pods.iter().filter(|pod| by_pod.get(pod.name.as_str()) == Some(&id));
    pods.min_by_key(|pod| pod.terminating)
}

/// Returns all members that at least one serving member lists. During a membership change the lists may differ: a member
/// in one of them counts, and a voter in one of them is a voter. This can only raise the required quorum.
pub fn listed_members(snapshot: &Snapshot) -> Vec<ListedMember> {
    let mut union: Vec<ListedMember> = Vec::new();
    for reply in snapshot.replies() {
        let ProbeResult::Healthy { members, .. } = reply else { continue };
        for member in members {
            match union.iter_mut().find(|known| known.id == member.id) {
                Some(known) => {
                    known.is_learner &= member.is_learner;
                    // A member that has started in one of the lists has started.
                    if !known.has_started() {
                        known.name.clone_from(&member.name);
                        known.client_urls.clone_from(&member.client_urls);
                    }
                }
                None => union.push(member.clone()),
            }
        }
    }
    union
}

/// Whether the serving members list the voter differently: as a learner, or not at all. It counts for the quorum, and not as
/// healthy: raft may not count its vote.
fn is_disputed(snapshot: &Snapshot, voter: &ListedMember) -> bool {
    let omits_voter = |reply: &ProbeResult| match reply {
        ProbeResult::Healthy { members, .. } => {
            !members.iter().any(|member| member.id == voter.id && !member.is_learner)
        }
        ProbeResult::StatusOnly { .. } | ProbeResult::NoStatus { .. } => false,
    };
    !voter.is_learner && !Mistake::BelieveMemberList.is_active() && snapshot.replies().any(omits_voter)
}

// === impl Member ===

impl<'a> Member<'a> {
    /// Id of the member.
    pub fn id(&self) -> MemberId {
        self.listed.id
    }

    /// Name of the pod, or of the member if no pod is known to run it.
    pub fn name(&self) -> String {
        match self.pod {
            Some(pod) => pod.name.clone(),
            None if self.listed.has_started() => self.listed.name.clone(),
            None => format!("member {}", self.listed.id),
        }
    }

    /// The member's reply. A reply from its pod takes precedence over one from a client URL.
    pub fn reply(&self) -> Option<&'a ProbeResult> {
        self.pod.map(|pod| &pod.reply).or_else(|| self.external.map(|member| &member.reply))
    }

    /// Whether a linearizable read succeeded at the member's own address.
    pub fn is_serving(&self) -> bool {
        self.reply().is_some_and(ProbeResult::is_healthy)
    }

    /// Whether the member serves over a scheme that it advertises.
    fn is_trusted(&self) -> bool {
        self.is_serving() && self.pod.is_none_or(|pod| self.listed.advertises(pod.scheme))
    }

    /// The status of a voter that passed the linearizable read.
    fn vote(&self) -> Option<&'a Status> {
        let reply = self.reply().filter(|_| self.is_trusted() && !self.listed.is_learner);
        reply.and_then(ProbeResult::status)
    }

    /// Returns the status of a serving member that reports a former term: it follows a leader that was deposed.
    pub fn outdated(&self) -> Option<&'a Status> {
        let status = self.reply().filter(|_| self.is_trusted())?.status();
        status.filter(|status| !Mistake::CountStaleRead.is_active() && !self.leadership.is_current(status))
    }

    /// Whether the member serves over a scheme that it advertises, agrees with the leadership of the other voters, its data is
    /// not corrupt, and all member lists agree on it.
    pub fn is_healthy(&self) -> bool {
        !self.is_corrupt && !self.is_disputed && self.is_trusted() && self.outdated().is_none()
    }

    /// Whether the member's process responds, even with an error.
    pub fn is_responding(&self) -> bool {
        self.reply().is_some_and(|reply| {
            reply.status().is_some() || reply.cause().is_some_and(|cause| !cause.is_unanswered())
        })
    }

    /// Why the member's pod is leaving, if it is.
    pub fn departure(&self) -> Option<Departure> {
        let of_pod = self.pod.and_then(MemberPod::departure);
        of_pod.or_else(|| self.external.and_then(ExternalMember::departure))
    }

    /// Whether the member's pod is leaving: a leaving voter does not count as remaining.
    pub fn is_leaving(&self) -> bool {
        self.departure().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::fixture::cluster;

    #[test]
    fn voter_leaves_with_its_pod_or_the_owner_of_its_pod() {
        let causes: [(fn(&mut MemberPod), _); 4] = [
            (|_| {}, None),
            (|pod| pod.terminating = true, Some(Departure::Terminating)),
            (|pod| pod.reserved = true, Some(Departure::Reserved)),
            (|pod| pod.owner.is_deleted = true, Some(Departure::OwnerDeleted)),
        ];
        for (change, departure) in causes {
            let snapshot = cluster(3).change(1, change).change(1, |pod| pod.owner.has_target = false);
            let membership = Membership::new(&snapshot).unwrap();
            assert_eq!(membership.member_of_pod("etcd-1").unwrap().departure(), departure);
            assert!(!membership.member_of_pod("etcd-0").unwrap().is_leaving());
        }
    }

    /// A terminating pod without a reply, and its successor.
    #[test]
    fn prefers_pods_that_are_not_terminating() {
        let url =
            |pod: &mut MemberPod| pod.peer_urls = vec![String::from("http://etcd-1.etcd.prod.svc:2380")];
        let mut snapshot = cluster(3).silence(1).change(1, url).change(1, |pod| pod.terminating = true);
        let successor =
            MemberPod { name: String::from("successor"), terminating: false, ..snapshot.pods[1].clone() };
        let old = std::mem::replace(&mut snapshot.pods[1].name, String::from("predecessor"));
        for pod in &mut snapshot.pods {
            pod.ip = String::new();
        }
        snapshot.pods.push(successor);
        let membership = Membership::new(&snapshot).unwrap();
        assert_eq!(old, "etcd-1");
        for name in ["predecessor", "successor"] {
            assert_eq!(membership.member_of_pod(name).unwrap().pod.unwrap().name, "successor");
        }
    }
}
