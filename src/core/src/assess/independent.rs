//! Pods of one owner that each run a cluster of their own, such as the shards of a cache.
//!
//! The API server shows one StatefulSet, and etcd shows as many clusters as it has pods. Each of them is assessed alone: to
//! count them together would deny every deletion for good.

use crate::{
    etcd::probe_result::ProbeResult,
    snapshot::{MemberPod, Snapshot},
};

/// Returns the part of a split snapshot that shows the pod `target` alone, if each pod that replies has proved a member list
/// in which its own member is the only voter.
pub fn cluster_of_independent_pod(snapshot: &Snapshot, target: &str) -> Option<Snapshot> {
    let pods = || snapshot.pods.iter().filter(|pod| pod.reply.status().is_some());
    if snapshot.cluster_ids().len() < 2 || !snapshot.external_members.is_empty() || !pods().all(is_alone) {
        return None;
    }
    let mut part = snapshot.clone();
    part.pods.retain(|pod| pod.name == target);
    (!part.pods.is_empty()).then_some(part)
}

/// Whether the member list of this pod's own member contains no other voter.
fn is_alone(pod: &MemberPod) -> bool {
    match &pod.reply {
        ProbeResult::Healthy { status, members } => {
            let mut voters = members.iter().filter(|member| !member.is_learner);
            voters.next().is_some_and(|voter| voter.id == status.member_id) && voters.next().is_none()
        }
        ProbeResult::StatusOnly { .. } | ProbeResult::NoStatus { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        assess::assess,
        etcd::member::ClusterId,
        policy::{Permission, Policy},
        reason::Reason,
        snapshot::{
            Storage,
            fixture::{cluster, id, listed},
        },
    };

    /// Three pods of one StatefulSet, each the only voter of its cluster.
    fn independent() -> Snapshot {
        (0..3).fold(cluster(3), |snapshot, n| {
            snapshot.change(n, |pod| {
                if let ProbeResult::Healthy { status, members } = &mut pod.reply {
                    status.cluster_id = ClusterId(0xc0 + u64::try_from(n).unwrap());
                    status.leader = Some(id(n));
                    *members = vec![listed(n)];
                }
            })
        })
    }

    fn reason(snapshot: &Snapshot, policy: &Policy) -> Reason {
        let part = cluster_of_independent_pod(snapshot, "etcd-1").expect("a cluster of its own");
        assess(&part, part.pod("etcd-1").unwrap(), policy).reason
    }

    #[test]
    fn pod_with_its_own_cluster_is_assessed_alone() {
        let snapshot = independent();
        assert_eq!(reason(&snapshot, &Policy::default()), Reason::SingleMember);
        let restart = Policy { single_member: Permission::Allow, ..Policy::default() };
        assert_eq!(reason(&snapshot, &restart), Reason::SingleMemberAllowed);
        let ephemeral = snapshot.clone().change(1, |pod| pod.storage = Storage::Ephemeral);
        assert_eq!(reason(&ephemeral, &restart), Reason::PermanentLoss);
        let lose = Policy { ephemeral_data: Permission::Allow, ..restart.clone() };
        assert_eq!(reason(&ephemeral, &lose), Reason::SingleMemberAllowed);
        // The state of another pod does not matter.
        assert_eq!(reason(&snapshot.clone().crash(0), &restart), Reason::SingleMemberAllowed);
        assert_eq!(reason(&snapshot.crash(1), &Policy::default()), Reason::MemberNotServing);
    }

    #[test]
    fn every_reply_must_prove_a_single_voter() {
        let is_none = |snapshot: &Snapshot| cluster_of_independent_pod(snapshot, "etcd-1").is_none();
        assert!(is_none(&cluster(3)), "one cluster");
        let two_voters = independent().change(0, |pod| {
            if let ProbeResult::Healthy { members, .. } = &mut pod.reply {
                members.push(listed(2));
            }
        });
        assert!(is_none(&two_voters));
        assert!(is_none(&independent().starve(0)), "its list is not proven");
        let foreign_list = independent().change(0, |pod| {
            if let ProbeResult::Healthy { members, .. } = &mut pod.reply {
                *members = vec![listed(1)];
            }
        });
        assert!(is_none(&foreign_list));
    }
}
