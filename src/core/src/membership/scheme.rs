//! Acceptance of replies by the scheme over which they came.
//!
//! A pod that is no member can know the public ids of a cluster and answer like one of its members. It cannot answer over
//! TLS with a certificate of the cluster's CA. A reply therefore counts only over a scheme that the member advertises:
//! an impostor of a member with TLS would need TLS. Members of one cluster may use different schemes, while TLS is being
//! enabled member by member.
//!
//! Where an annotation accepts the certificates that members issue themselves (`--auto-tls`), TLS proves no more than plain
//! HTTP. A cluster in which a pod has a CA accepts no such certificate.

use crate::{
    etcd::{
        error::MemberError,
        member::{ListedMember, MemberId, Scheme},
        probe_result::ProbeResult,
    },
    snapshot::{MemberPod, Snapshot},
};

/// Replaces each reply that came over a scheme which its member does not advertise by a failure.
///
/// The lists of members that replied over TLS are proven, and decide about the others. Without such a list, every list
/// must contain the scheme, because the list of an impostor may contain its own. If the target's own pods use TLS, pods of
/// other owners then prove nothing over plain HTTP: an impostor could be the only one that replies.
pub fn reject_unadvertised_schemes(snapshot: &mut Snapshot) {
    let is_proven = |pod: &&MemberPod| pod.scheme == Scheme::Https && pod.reply.is_healthy();
    let has_proven = snapshot.pods.iter().any(|pod| is_proven(&pod));
    let uses_tls = snapshot.pods.iter().any(|pod| pod.owner.has_target && pod.scheme == Scheme::Https);
    if uses_tls && !has_proven {
        let is_foreign = |pod: &&mut MemberPod| !pod.owner.has_target && pod.scheme == Scheme::Http;
        for pod in snapshot.pods.iter_mut().filter(is_foreign).filter(|pod| pod.reply.status().is_some()) {
            pod.reply = ProbeResult::NoStatus { cause: MemberError::UnadvertisedScheme(pod.scheme.as_str()) };
        }
    }
    let external = snapshot.external_members.iter().filter(|_| !has_proven).map(|member| &member.reply);
    let of_pods = snapshot.pods.iter().filter(|pod| !has_proven || is_proven(pod)).map(|pod| &pod.reply);
    let lists: Vec<&[ListedMember]> = of_pods.chain(external).filter_map(list).collect();
    let is_rejected = |pod: &MemberPod| {
        let Some(status) = pod.reply.status() else { return false };
        lists.iter().any(|list| lacks_scheme(list, status.member_id, pod.scheme))
    };
    let rejected: Vec<bool> = snapshot.pods.iter().map(is_rejected).collect();
    for (pod, _) in snapshot.pods.iter_mut().zip(rejected).filter(|(_, is_rejected)| *is_rejected) {
        pod.reply = ProbeResult::NoStatus { cause: MemberError::UnadvertisedScheme(pod.scheme.as_str()) };
    }
}

fn list(reply: &ProbeResult) -> Option<&[ListedMember]> {
    match reply {
        ProbeResult::Healthy { members, .. } => Some(members),
        ProbeResult::StatusOnly { .. } | ProbeResult::NoStatus { .. } => None,
    }
}

/// Whether the list has client URLs of this member, and none with the scheme. A member advertises no URL for a moment
/// after its first start.
fn lacks_scheme(list: &[ListedMember], id: MemberId, scheme: Scheme) -> bool {
    let member = list.iter().find(|member| member.id == id);
    member.is_some_and(|member| !member.client_urls.is_empty() && !member.advertises(scheme))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        assess::assess,
        policy::Policy,
        reason::Reason,
        snapshot::fixture::{cluster, listed},
    };

    /// Changes the scheme of a member's client URLs in each list.
    fn advertise(snapshot: Snapshot, n: usize, scheme: &str) -> Snapshot {
        snapshot.relist(|list| {
            for url in &mut list[n].client_urls {
                *url = format!("{scheme}{}", url.strip_prefix("http").unwrap());
            }
        })
    }

    fn tls_cluster() -> Snapshot {
        let snapshot = (0..3).fold(cluster(3), |snapshot, n| advertise(snapshot, n, "https"));
        (0..3).fold(snapshot, |snapshot, n| snapshot.change(n, |pod| pod.scheme = Scheme::Https))
    }

    fn reason(mut snapshot: Snapshot, n: usize) -> Reason {
        reject_unadvertised_schemes(&mut snapshot);
        assess(&snapshot, &snapshot.pods[n], &Policy::default()).reason
    }

    #[test]
    fn plain_reply_does_not_count_for_member_with_tls() {
        assert_eq!(reason(tls_cluster(), 1), Reason::SafeToDelete);
        let impostor = tls_cluster().change(2, |pod| pod.scheme = Scheme::Http);
        assert_eq!(reason(impostor.clone(), 1), Reason::QuorumAtRisk);
        assert_eq!(reason(impostor.clone(), 2), Reason::SafeToDelete, "the impostor may be deleted");
        // The assessment applies the rule also to a snapshot that was not changed before.
        assert_eq!(assess(&impostor, &impostor.pods[1], &Policy::default()).reason, Reason::QuorumAtRisk);
    }

    /// The impostor is the first pod, and its list names plain HTTP for all members.
    #[test]
    fn list_of_impostor_does_not_prove_its_scheme() {
        let mut impostor = tls_cluster().change(0, |pod| pod.scheme = Scheme::Http);
        let ProbeResult::Healthy { members, status } = &mut impostor.pods[0].reply else { panic!() };
        *members = (0..3).map(listed).collect();
        status.term = 1_000_000;
        status.leader = Some(members[2].id);
        assert_eq!(reason(impostor.clone(), 1), Reason::QuorumAtRisk);
        assert_eq!(reason(impostor.clone().silence(2), 1), Reason::QuorumAtRisk);
        reject_unadvertised_schemes(&mut impostor);
        let tally = assess(&impostor, &impostor.pods[1], &Policy::default()).tally.unwrap();
        assert_eq!((tally.healthy, tally.term), (2, 7), "neither its vote nor its term counts");
    }

    /// While no member with TLS is healthy, the list of the impostor is the only one. It names itself as the only voter.
    #[test]
    fn impostor_of_another_owner_does_not_decide_alone() {
        let mut silent = tls_cluster().silence(0).silence(1).silence(2);
        let mut impostor = cluster(3).pods[2].clone().with_foreign_owner();
        impostor.name = String::from("impostor");
        impostor.ip = String::from("10.0.0.9");
        let ProbeResult::Healthy { members, status } = &mut impostor.reply else { panic!() };
        *members = vec![listed(2)];
        status.leader = Some(members[0].id);
        silent.pods.push(impostor.clone());
        for n in 0..3 {
            let found = reason(silent.clone(), n);
            assert!(!found.allows(), "{found:?} for pod {n}");
        }
        let mut mixed = advertise(cluster(3), 0, "https").change(0, |pod| pod.scheme = Scheme::Https);
        mixed.pods[2] = mixed.pods[2].clone().with_foreign_owner();
        assert_eq!(reason(mixed, 1), Reason::SafeToDelete, "a proven list names plain HTTP");
    }

    /// Members 1 and 2 do not use TLS yet.
    #[test]
    fn mixed_schemes_count_while_tls_is_being_enabled() {
        let mixed = advertise(cluster(3), 0, "https").change(0, |pod| pod.scheme = Scheme::Https);
        assert_eq!(reason(mixed.clone(), 1), Reason::SafeToDelete);
        assert_eq!(reason(mixed.clone(), 2), Reason::SafeToDelete);
        assert_eq!(reason(mixed.crash(0), 0), Reason::MemberNotServing);
    }

    #[test]
    fn member_with_both_schemes_counts_over_each() {
        let both = cluster(3).relist(|list| list[2].client_urls.push(String::from("HTTPS://10.0.0.2:2379")));
        assert_eq!(reason(both.clone(), 1), Reason::SafeToDelete);
        assert_eq!(reason(both.change(2, |pod| pod.scheme = Scheme::Https), 1), Reason::SafeToDelete);
    }

    #[test]
    fn voter_without_client_url_is_not_healthy() {
        let unpublished = cluster(3).relist(|list| list[2].client_urls.clear());
        assert_eq!(reason(unpublished, 1), Reason::QuorumAtRisk);
    }
}
