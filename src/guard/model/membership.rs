//! Members of one cluster, each with its evidence: the pod that runs it, and the replies of the probe round.

pub(in crate::guard) mod identity;
pub(in crate::guard) mod scheme;

use self::identity::{AmbiguousIdentity, identify};
use crate::etcd::{ListedMember, MemberId, ProbeResult};
use crate::guard::model::snapshot::{Departure, ExternalMember, MemberPod, Snapshot};

/// The listed members of one cluster.
#[derive(Clone, Debug)]
pub(in crate::guard) struct Membership<'a> {
    members: Vec<Member<'a>>,
}

/// One listed member with its evidence.
#[derive(Clone, Debug)]
pub(in crate::guard) struct Member<'a> {
    /// The member's entry in the member list.
    pub(in crate::guard) listed: ListedMember,
    /// The pod that runs the member.
    pub(in crate::guard) pod: Option<&'a MemberPod>,
    /// The reply at one of the member's client URLs, if no pod was known to run it.
    pub(in crate::guard) external: Option<&'a ExternalMember>,
    /// Whether the configuration denies probes of all addresses of the member's client URLs.
    pub(in crate::guard) is_address_denied: bool,
    /// Whether the member's data is corrupt.
    pub(in crate::guard) is_corrupt: bool,
}

/// Why the members of a cluster are unknown.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::guard) enum MembershipError {
    /// No member served a linearizable read, so that no member list is proven.
    Unproven,
    /// The pods cannot be matched with the members.
    Ambiguous(AmbiguousIdentity),
}

// === impl Membership ===

impl<'a> Membership<'a> {
    /// Matches the members that at least one serving member lists with the pods and replies of a snapshot.
    pub(in crate::guard) fn new(snapshot: &'a Snapshot) -> Result<Self, MembershipError> {
        let list = listed_members(snapshot);
        if list.is_empty() {
            return Err(MembershipError::Unproven);
        }
        let by_pod = identify(snapshot, &list).map_err(MembershipError::Ambiguous)?;
        let corrupt = snapshot.corrupt_members();
        // An alarm without a member id means that etcd cannot determine whose data is corrupt: no member is trusted.
        let all_corrupt = corrupt.contains(&MemberId(0));
        let members = list.into_iter().map(|listed| Member {
            pod: snapshot.pods.iter().find(|pod| by_pod.get(pod.name.as_str()) == Some(&listed.id)),
            external: snapshot.external_members.iter().find(|member| member.id == listed.id),
            is_address_denied: snapshot.denied_members.contains(&listed.id),
            is_corrupt: all_corrupt || corrupt.contains(&listed.id),
            listed,
        });
        Ok(Self { members: members.collect() })
    }

    /// All listed members, learners included.
    pub(in crate::guard) fn members(&self) -> &[Member<'a>] {
        &self.members
    }

    /// The members that vote, also those that never started.
    pub(in crate::guard) fn voters(&self) -> impl Iterator<Item = &Member<'a>> {
        self.members.iter().filter(|member| !member.listed.is_learner)
    }

    /// The member that the pod with this name runs.
    pub(in crate::guard) fn member_of_pod(&self, name: &str) -> Option<&Member<'a>> {
        self.members.iter().find(|member| member.pod.is_some_and(|pod| pod.name == name))
    }
}

/// Returns all members that at least one serving member lists. During a membership change the lists may differ: a member
/// in one of them counts, and a voter in one of them is a voter. This can only raise the required quorum.
pub(in crate::guard) fn listed_members(snapshot: &Snapshot) -> Vec<ListedMember> {
    let mut union: Vec<ListedMember> = Vec::new();
    for reply in snapshot.replies() {
        let ProbeResult::Healthy { members, .. } = reply else { continue };
        for member in members {
            match union.iter_mut().find(|known| known.id == member.id) {
                Some(known) => known.is_learner &= member.is_learner,
                None => union.push(member.clone()),
            }
        }
    }
    union
}

// === impl Member ===

impl Member<'_> {
    /// Id of the member.
    pub(in crate::guard) fn id(&self) -> MemberId {
        self.listed.id
    }

    /// Name of the pod, or of the member if no pod is known to run it.
    pub(in crate::guard) fn name(&self) -> String {
        match self.pod {
            Some(pod) => pod.name.clone(),
            None if self.listed.has_started() => self.listed.name.clone(),
            None => format!("member {}", self.listed.id),
        }
    }

    /// The member's reply. A reply from its pod takes precedence over one from a client URL.
    pub(in crate::guard) fn reply(&self) -> Option<&ProbeResult> {
        self.pod.map(|pod| &pod.reply).or_else(|| self.external.map(|member| &member.reply))
    }

    /// Whether a linearizable read succeeded at the member's own address.
    pub(in crate::guard) fn is_serving(&self) -> bool {
        self.reply().is_some_and(ProbeResult::is_healthy)
    }

    /// Whether the member serves over a scheme that it advertises, and its data is not corrupt.
    pub(in crate::guard) fn is_healthy(&self) -> bool {
        let has_scheme = self.pod.is_none_or(|pod| self.listed.advertises(pod.scheme));
        !self.is_corrupt && self.is_serving() && has_scheme
    }

    /// Whether the member's process responds, even with an error.
    pub(in crate::guard) fn is_responding(&self) -> bool {
        self.reply().is_some_and(|reply| {
            reply.status().is_some() || reply.cause().is_some_and(|cause| !cause.is_unanswered())
        })
    }

    /// Why the member's pod is leaving, if it is.
    pub(in crate::guard) fn departure(&self) -> Option<Departure> {
        let of_pod = self.pod.and_then(MemberPod::departure);
        of_pod.or_else(|| self.external.and_then(ExternalMember::departure))
    }

    /// Whether the member's pod is leaving: a leaving voter does not count as remaining.
    pub(in crate::guard) fn is_leaving(&self) -> bool {
        self.departure().is_some()
    }
}
