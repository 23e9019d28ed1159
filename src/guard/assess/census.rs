//! A whole cluster in numbers, counted as a verdict on one of its pods would count them, for people who look before
//! anything goes.

#[cfg(test)]
mod tests;

use super::{
    Reason, Snapshot, Tally, corrupt, missing, silent_pods, statuses, tally, union_of_lists, unproven, voters,
};
use crate::{
    etcd::{AlarmKind, ListedMember, MemberId},
    guard::{assess::Missing, identity},
};

/// What is known of a cluster.
#[derive(Clone, Debug)]
pub(in crate::guard) struct Census {
    /// The members that are listed.
    pub(in crate::guard) list: Vec<ListedMember>,
    /// The numbers, without any target; `None` where nothing can be counted.
    pub(in crate::guard) tally: Option<Tally>,
    /// Who is missing and why: of the voters, or of all pods where nothing can be counted.
    pub(in crate::guard) missing: Vec<Missing>,
    /// Why any deletion would be denied, whichever pod it is of.
    pub(in crate::guard) obstacle: Option<(Reason, String)>,
    /// Members whose data is corrupt; 0 where etcd cannot tell whose.
    pub(in crate::guard) corrupt: Vec<MemberId>,
    /// Whether a member says that the cluster is out of space.
    pub(in crate::guard) no_space: bool,
    members: Vec<(String, MemberId)>,
}

/// Counts a cluster.
pub(in crate::guard) fn census(snapshot: &Snapshot) -> Census {
    let list = union_of_lists(snapshot);
    let no_space =
        statuses(snapshot).any(|it| it.alarms.iter().any(|alarm| alarm.kind == AlarmKind::NoSpace));
    let mut census = Census {
        tally: None,
        missing: Vec::new(),
        obstacle: None,
        corrupt: corrupt(snapshot),
        no_space,
        members: Vec::new(),
        list,
    };
    let ids: std::collections::BTreeSet<_> = statuses(snapshot).map(|status| status.cluster_id).collect();
    if ids.len() > 1 {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        census.obstacle =
            Some((Reason::SplitCluster, format!("its pods answer as clusters {}", ids.join(" and "))));
        return census;
    }
    if census.list.is_empty() {
        census.missing = silent_pods(snapshot);
        census.obstacle = Some((unproven(snapshot), String::from("no member could prove a quorum")));
        return census;
    }
    let members = match identity::resolve(snapshot, &census.list) {
        Ok(members) => members,
        Err(ambiguity) => {
            let text = format!("which member pod {} runs: {}", ambiguity.pod, ambiguity.why);
            census.obstacle = Some((Reason::AmbiguousMember, text));
            return census;
        }
    };
    let voters = voters(snapshot, &census.list, &members);
    let (tally, missing) = (tally(snapshot, &voters, None), missing(&voters));
    drop(voters);
    let of_pod = |name: &String| Some((name.clone(), members.of(name)?));
    census.members = snapshot.pods.iter().filter_map(|pod| of_pod(&pod.name)).collect();
    census.tally = Some(tally);
    census.missing = missing;
    census
}

// === impl Census ===

impl Census {
    /// The member that this pod runs.
    pub(in crate::guard) fn member_of(&self, pod: &str) -> Option<&ListedMember> {
        let (_, id) = self.members.iter().find(|(name, _)| name == pod)?;
        self.list.iter().find(|member| member.id == *id)
    }

    /// The members that run in no pod of the snapshot.
    pub(in crate::guard) fn without_pod(&self) -> impl Iterator<Item = &ListedMember> {
        self.list.iter().filter(|member| !self.members.iter().any(|(_, id)| *id == member.id))
    }
}
