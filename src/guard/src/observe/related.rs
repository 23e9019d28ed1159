//! The relation of pods of other owners to a cluster: by their replies or, without a reply, by names and URLs.

use std::collections::{BTreeMap, BTreeSet};

use crate::observe::external::voters_without_pod;
use etcd_guard_core::{
    etcd::{
        member::{ClusterId, ListedMember, MemberId},
        probe_result::ProbeResult,
    },
    membership::{
        Membership,
        identity::{Evidence, may_run},
        scheme::reject_unadvertised_schemes,
    },
    snapshot::{MemberPod, Snapshot},
};

/// Adds the pods that run members of the snapshot's cluster. A pod that replies must name the cluster and a listed member.
/// A pod that does not reply must match a voter without a pod.
pub(super) fn add_related(snapshot: &mut Snapshot, found: Vec<MemberPod>) {
    if found.is_empty() {
        return;
    }
    let known = snapshot.cluster_ids();
    let clusters = if known.is_empty() { clusters_of_own_pods(snapshot, &found) } else { known };
    let (replying, silent): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|pod| pod.reply.status().is_some());
    let is_related =
        |pod: &MemberPod| pod.reply.status().is_some_and(|status| clusters.contains(&status.cluster_id));
    snapshot.pods.extend(replying.into_iter().filter(is_related));
    reject_unadvertised_schemes(snapshot);
    let voters = voters_without_pod(snapshot);
    let is_candidate = |pod: &MemberPod| voters.iter().any(|voter| may_run(pod, &snapshot.namespace, voter));
    let silent: Vec<MemberPod> = silent.into_iter().filter(is_candidate).collect();
    snapshot.pods.extend(silent);
    let Ok(membership) = Membership::new(snapshot) else { return };
    let bound: BTreeSet<String> = snapshot
        .pods
        .iter()
        .filter(|pod| pod.owner.has_target || membership.member_of_pod(&pod.name).is_some())
        .map(|pod| pod.name.clone())
        .collect();
    snapshot.pods.retain(|pod| bound.contains(&pod.name));
}

/// Returns the cluster of pods that do not reply: the cluster of other pods whose member list has a member that replies
/// from no other pod and that one of these pods can run. Empty if the best source relates them to several clusters. A pod
/// whose command advertises other peer URLs than the member is not related: if the guard cannot reach a whole cluster, its
/// pods must not be assigned to another cluster.
fn clusters_of_own_pods(snapshot: &Snapshot, found: &[MemberPod]) -> BTreeSet<ClusterId> {
    let replied: BTreeSet<MemberId> =
        found.iter().filter_map(|pod| pod.reply.status()).map(|status| status.member_id).collect();
    let mut lists: BTreeMap<ClusterId, Vec<&ListedMember>> = BTreeMap::new();
    for pod in found {
        if let ProbeResult::Healthy { status, members } = &pod.reply {
            let silent = members.iter().filter(|member| !replied.contains(&member.id));
            lists.entry(status.cluster_id).or_default().extend(silent);
        }
    }
    // The rule for names of pods of other owners applies: the pods and the lists have no other relation yet.
    let own: Vec<MemberPod> = snapshot.pods.iter().cloned().map(MemberPod::with_foreign_owner).collect();
    for evidence in Evidence::ALL {
        let namespace = &snapshot.namespace;
        let is_stated = |pod: &MemberPod, member: &ListedMember| {
            pod.peer_urls.is_empty() || Evidence::AdvertisedUrl.relates(pod, namespace, member)
        };
        let is_related = |members: &[&ListedMember]| {
            own.iter().any(|pod| {
                members
                    .iter()
                    .any(|member| is_stated(pod, member) && evidence.relates(pod, namespace, member))
            })
        };
        let related: BTreeSet<ClusterId> =
            lists.iter().filter(|(_, members)| is_related(members)).map(|(id, _)| *id).collect();
        if !related.is_empty() {
            return if related.len() == 1 { related } else { BTreeSet::new() };
        }
    }
    BTreeSet::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use etcd_guard_core::snapshot::fixture::cluster;

    /// Splits the healthy pods of a snapshot into the siblings of `etcd-2` and pods of other owners.
    fn split(mut snapshot: Snapshot) -> (Snapshot, Vec<MemberPod>) {
        let others = snapshot.pods.drain(..2).map(MemberPod::with_foreign_owner).collect();
        (snapshot, others)
    }

    fn names(snapshot: &Snapshot) -> Vec<&str> {
        snapshot.pods.iter().map(|pod| pod.name.as_str()).collect()
    }

    fn with_cluster(mut pods: Vec<MemberPod>, id: u64) -> Vec<MemberPod> {
        for pod in &mut pods {
            if let ProbeResult::Healthy { status, .. } | ProbeResult::StatusOnly { status, .. } =
                &mut pod.reply
            {
                status.cluster_id = ClusterId(id);
            }
            pod.name = format!("other-{}", pod.name);
        }
        pods
    }

    #[test]
    fn adds_members_of_the_same_cluster() {
        let (mut snapshot, others) = split(cluster(3));
        let strangers = with_cluster(others.clone(), 0xc2);
        add_related(&mut snapshot, [strangers, others].concat());
        assert_eq!(names(&snapshot), ["etcd-2", "etcd-0", "etcd-1"]);
    }

    #[test]
    fn adds_silent_pod_that_matches_voter() {
        let (mut snapshot, others) = split(cluster(3).silence(0));
        let mut stranger = others[0].clone();
        (stranger.name, stranger.ip) = (String::from("web-0"), String::new());
        add_related(&mut snapshot, [vec![stranger], others].concat());
        assert_eq!(names(&snapshot), ["etcd-2", "etcd-1", "etcd-0"]);
    }

    /// The member of the only sibling is frozen.
    #[test]
    fn finds_cluster_of_silent_sibling() {
        let (mut snapshot, others) = split(cluster(3).silence(2));
        add_related(&mut snapshot, others);
        assert_eq!(names(&snapshot), ["etcd-2", "etcd-0", "etcd-1"]);
    }

    /// The address in the peer URL of a deleted pod was assigned again.
    #[test]
    fn ignores_sibling_that_advertises_another_url() {
        let url = |pod: &mut MemberPod| pod.peer_urls = vec![String::from("http://10.0.0.9:2380")];
        let (mut snapshot, others) = split(cluster(3).silence(2).change(2, url));
        add_related(&mut snapshot, others);
        assert_eq!(names(&snapshot), ["etcd-2"]);
    }

    #[test]
    fn ignores_cluster_whose_members_reply_elsewhere() {
        let all = cluster(3);
        let (mut snapshot, others) = split(all.clone().silence(2));
        let mut third = all.pods[2].clone();
        (third.name, third.owner.has_target) = (String::from("moved-0"), false);
        add_related(&mut snapshot, [others, vec![third]].concat());
        assert_eq!(names(&snapshot), ["etcd-2"]);
    }

    #[test]
    fn ignores_several_clusters_of_a_silent_sibling() {
        let (mut snapshot, others) = split(cluster(3).silence(2));
        let strangers = with_cluster(others.clone(), 0xc2);
        add_related(&mut snapshot, [strangers, others].concat());
        assert_eq!(names(&snapshot), ["etcd-2"]);
    }
}
