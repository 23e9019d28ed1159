//! Stray pods: a few pods of a StatefulSet, or pods with the same labels, that run members of another cluster than the
//! others.
//!
//! The deletion of such a pod can be the remedy of the split, and must not cost the quorum of the pod's own cluster. It is
//! therefore assessed by the member list of that cluster, with the members that replied for that cluster only.

use crate::{
    etcd::member::ClusterId,
    membership::Membership,
    snapshot::{MemberPod, Snapshot},
};

/// Returns the part of a split snapshot that shows the cluster of the pod `target`, if the pod is a stray: more pods with
/// its owner reply for another cluster, and the pod's own cluster proves its member list.
pub fn cluster_of_stray(snapshot: &Snapshot, target: &str) -> Option<Snapshot> {
    let target = snapshot.pod(target)?;
    let own = cluster(target)?;
    let mut part = snapshot.clone();
    part.pods.retain(|pod| cluster(pod) == Some(own));
    part.external_members
        .retain(|member| member.reply.status().is_some_and(|status| status.cluster_id == own));
    (is_in_minority(snapshot, target) && Membership::new(&part).is_ok()).then_some(part)
}

/// Whether more pods with the owner of the target reply for another cluster than for the target's cluster.
pub fn is_in_minority(snapshot: &Snapshot, target: &MemberPod) -> bool {
    let count =
        |id| snapshot.pods.iter().filter(|pod| pod.owner.has_target && cluster(pod) == Some(id)).count();
    let own = cluster(target);
    own.is_some_and(|own| snapshot.cluster_ids().into_iter().any(|id| count(id) > count(own)))
}

fn cluster(pod: &MemberPod) -> Option<ClusterId> {
    pod.reply.status().map(|status| status.cluster_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        assess::assess,
        policy::{Permission, Policy},
        reason::Reason,
        snapshot::fixture::cluster,
    };

    /// Adds members of another cluster with this number of voters to a cluster of three; `siblings` of them have the
    /// owner of the three.
    fn split(voters: usize, siblings: usize) -> Snapshot {
        let mut other = cluster(voters);
        for n in 0..voters {
            other = other.restate(n, |status| status.cluster_id = ClusterId(0xc2));
            other = other.change(n, |pod| {
                pod.name = format!("stray-{n}");
                pod.owner.has_target = n >= voters - siblings;
            });
        }
        let mut snapshot = cluster(3);
        snapshot.pods.extend(other.pods);
        snapshot
    }

    fn reason(snapshot: &Snapshot, target: &str, policy: &Policy) -> Reason {
        let part = cluster_of_stray(snapshot, target).expect("a stray pod");
        assess(&part, part.pod(target).unwrap(), policy).reason
    }

    #[test]
    fn approves_stray_that_its_own_cluster_does_not_need() {
        let policy = Policy::default();
        assert_eq!(reason(&split(3, 1), "stray-2", &policy), Reason::SafeToDelete);
        assert_eq!(reason(&split(3, 1).crash(4), "stray-2", &policy), Reason::QuorumAtRisk);
    }

    #[test]
    fn denies_stray_that_its_own_cluster_needs() {
        assert_eq!(reason(&split(2, 1), "stray-1", &Policy::default()), Reason::QuorumAtRisk);
        assert_eq!(reason(&split(1, 1), "stray-0", &Policy::default()), Reason::SingleMember);
        let allowed = Policy { single_member: Permission::Allow, ..Policy::default() };
        assert_eq!(reason(&split(1, 1), "stray-0", &allowed), Reason::SingleMemberAllowed);
    }

    #[test]
    fn requires_minority_and_proof() {
        assert!(cluster_of_stray(&split(1, 1), "etcd-0").is_none(), "the majority");
        assert!(cluster_of_stray(&split(3, 3), "stray-0").is_none(), "as many pods");
        assert!(cluster_of_stray(&split(1, 1).starve(3), "stray-0").is_none(), "no proven member list");
        assert!(cluster_of_stray(&split(1, 1).silence(3), "stray-0").is_none(), "no reply");
        assert!(cluster_of_stray(&cluster(3), "etcd-0").is_none(), "one cluster");
    }
}
