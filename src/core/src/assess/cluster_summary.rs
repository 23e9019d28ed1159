//! Summary of a whole cluster, counted as an assessment of one of its pods counts it, for the status of all clusters.

#[cfg(test)]
mod tests;

use crate::{
    assess::{
        missing_voters::{MissingVoter, missing_voters, silent_pods},
        unproven::unproven,
    },
    etcd::member::{ListedMember, MemberId},
    membership::{Member, Membership, MembershipError, listed_members},
    reason::Reason,
    snapshot::Snapshot,
    tally::Tally,
};

/// Summary of one cluster.
#[derive(Clone, Debug)]
pub struct ClusterSummary<'a> {
    /// The listed members, also if they cannot be matched with the pods.
    pub list: Vec<ListedMember>,
    /// The members with their evidence; `None` if they cannot be counted.
    pub membership: Option<Membership<'a>>,
    /// The numbers without any deletion; `None` if voters cannot be counted.
    pub tally: Option<Tally>,
    /// Voters that are not healthy; all pods if voters cannot be counted.
    pub missing: Vec<MissingVoter>,
    /// Why the deletion of any pod of the cluster would be denied.
    pub obstacle: Option<(Reason, String)>,
    /// Ids of the members with a CORRUPT alarm; 0 if etcd cannot determine the member.
    pub corrupt: Vec<MemberId>,
    /// Whether a member reports that the cluster is out of space.
    pub no_space: bool,
}

// === impl ClusterSummary ===

impl<'a> ClusterSummary<'a> {
    /// Summarizes the cluster of this snapshot.
    pub fn new(snapshot: &'a Snapshot) -> Self {
        let mut summary = Self {
            list: listed_members(snapshot),
            membership: None,
            tally: None,
            missing: Vec::new(),
            obstacle: None,
            corrupt: snapshot.corrupt_members(),
            no_space: snapshot.is_out_of_space(),
        };
        let ids = snapshot.cluster_ids();
        if ids.len() > 1 {
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            let text = format!("its pods belong to different etcd clusters: {}", ids.join(" and "));
            summary.obstacle = Some((Reason::SplitCluster, text));
            return summary;
        }
        match Membership::new(snapshot) {
            Ok(membership) => {
                summary.tally = Some(Tally::new(&membership, |_| false));
                summary.missing = missing_voters(&membership);
                summary.obstacle = membership
                    .contradiction()
                    .map(|proof| (Reason::MemberListWrong, format!("the member list is wrong: {proof}")));
                summary.membership = Some(membership);
            }
            Err(MembershipError::Unproven) => {
                summary.missing = silent_pods(snapshot);
                let text = String::from("no member could prove a quorum");
                summary.obstacle = Some((unproven(snapshot), text));
            }
            Err(MembershipError::Ambiguous(identity)) => {
                let text =
                    format!("pod {} cannot be matched with one member: {}", identity.pod, identity.cause);
                summary.obstacle = Some((Reason::AmbiguousMember, text));
            }
        }
        summary
    }

    /// All listed members, with their evidence.
    pub fn members(&self) -> &[Member<'a>] {
        self.membership.as_ref().map_or(&[], |membership| membership.members())
    }

    /// The member that this pod runs.
    pub fn member_of_pod(&self, pod: &str) -> Option<&ListedMember> {
        self.membership.as_ref()?.member_of_pod(pod).map(|member| &member.listed)
    }

    /// The members that run in no pod of the snapshot.
    pub fn without_pod(&self) -> impl Iterator<Item = &Member<'a>> {
        self.members().iter().filter(|member| member.pod.is_none())
    }
}
