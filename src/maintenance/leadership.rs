//! The choice of the voter that leads next.

use crate::guard::{ClusterStatus, Role};

/// Returns the pod that shall lead: among the serving voters that qualify, the one that has applied the most.
pub(crate) fn transferee(cluster: &ClusterStatus, qualifies: impl Fn(&str) -> bool) -> Option<&str> {
    let voters = cluster
        .members
        .iter()
        .filter(|member| member.role == Role::Follower && member.serving && member.leaving.is_none());
    let candidates =
        voters.filter_map(|member| Some((member.lag.unwrap_or(u64::MAX), member.pod.as_deref()?)));
    candidates.filter(|(_, pod)| qualifies(pod)).min().map(|(_, pod)| pod)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::MemberStatus;

    /// A healthy cluster of three members, of which `etcd-0` leads.
    fn cluster() -> ClusterStatus {
        let member = |ordinal: u64, role| MemberStatus {
            pod: Some(format!("etcd-{ordinal}")),
            id: Some(format!("{ordinal}")),
            name: Some(format!("etcd-{ordinal}")),
            role,
            serving: true,
            version: Some(String::from("3.5.35")),
            lag: Some(0),
            ..MemberStatus::default()
        };
        ClusterStatus {
            namespace: String::from("prod"),
            name: String::from("etcd"),
            id: None,
            voters: Some(3),
            healthy: Some(3),
            quorum: Some(2),
            spare: Some(1),
            term: Some(2),
            members: vec![member(0, Role::Leader), member(1, Role::Follower), member(2, Role::Follower)],
            reservations: Vec::new(),
            policy: Vec::new(),
            problems: Vec::new(),
        }
    }

    #[test]
    fn transferee_is_the_most_advanced_voter_that_qualifies() {
        let mut cluster = cluster();
        cluster.members[1].lag = Some(7);
        assert_eq!(transferee(&cluster, |_| true), Some("etcd-2"));
        assert_eq!(transferee(&cluster, |pod| pod != "etcd-2"), Some("etcd-1"));
        cluster.members[2].lag = None;
        assert_eq!(transferee(&cluster, |_| true), Some("etcd-1"), "the lag of etcd-2 is unknown");
        cluster.members[1].serving = false;
        assert_eq!(transferee(&cluster, |pod| pod != "etcd-2"), None);
        assert_eq!(transferee(&cluster, |pod| pod == "etcd-0"), None, "the leader");
    }
}
