//! External members: listed voters that do not run in the cluster's pods, for example in a second StatefulSet, another
//! namespace or on another machine. They count like all other voters if the member itself replies.
//!
//! They are probed at the client URLs that they advertise, which may connect to another member: some charts advertise
//! one Service for all members. A reply counts only if it contains the expected member id. The observer finds the pods of
//! external members in other namespaces, and marks members whose deletion the guard has approved, or whose pod was deleted
//! by force while the process still runs.
//!
//! `gate` selects the addresses, `api_servers` are the ones that it always denies, and `access` selects the credentials.
//! Members are described by the class of their failure only: the error of a connection would describe an address that a
//! member list names.

mod access;
mod api_servers;
mod gate;

use std::net::IpAddr;

use tokio::time::Instant;

use self::gate::Selection;
pub use self::{access::ClusterAccess, api_servers::ApiServers, gate::ProbeGate};
use etcd_guard_core::{
    etcd::{
        endpoint::url_host,
        error::MemberError,
        member::{ClusterId, ListedMember, MemberId},
        probe_result::ProbeResult,
    },
    membership::{Membership, identity::peer_pods},
    reservation::Reservation,
    snapshot::{ExternalMember, Snapshot},
};
use etcd_guard_etcd as etcd;
use etcd_guard_etcd::Connections;

/// The result of probing external members.
#[derive(Debug, Default)]
pub struct ExternalProbe {
    /// The members that replied.
    pub members: Vec<ExternalMember>,
    /// The addresses at which they replied.
    pub addresses: Vec<(MemberId, IpAddr)>,
    /// Members for which the gate denied all addresses.
    pub denied: Vec<MemberId>,
}

/// Returns the voters that have started and run in no pod of the snapshot.
pub fn voters_without_pod(snapshot: &Snapshot) -> Vec<ListedMember> {
    // If the membership is ambiguous, the assessment is a denial, and external members cannot change it.
    let Ok(membership) = Membership::new(snapshot) else { return Vec::new() };
    let voters = membership.voters().filter(|voter| voter.listed.has_started() && voter.pod.is_none());
    voters.map(|voter| voter.listed.clone()).collect()
}

/// Whether the process of an external member ends soon. `has_set` returns whether a StatefulSet of the namespace creates the pod
/// of this name: such a voter without a pod is the process of a pod that was deleted by force, which the kubelet ends.
pub(super) fn is_leaving(
    member: &ListedMember,
    namespace: &str,
    cluster: Option<ClusterId>,
    reserved: &[Reservation],
    has_set: impl Fn(&str) -> bool,
) -> bool {
    let (id, pods) = (member.id.to_string(), peer_pods(member, namespace));
    let cluster = cluster.map(|cluster| cluster.to_string());
    // A ledger contains other clusters as well, whose members can have any id. An unknown cluster may be this one.
    let is_of_cluster =
        |reservation: &Reservation| reservation.cluster.is_none() || reservation.cluster == cluster;
    // A member that did not reply was reserved without its id.
    let is_named = |reservation: &Reservation| {
        let is_pod = pods.contains(&reservation.pod) || reservation.pod == member.name;
        reservation.member.is_empty() && reservation.namespace == namespace && is_pod
    };
    let has_id = |reservation: &Reservation| reservation.member == id && is_of_cluster(reservation);
    reserved.iter().any(|reservation| has_id(reservation) || is_named(reservation))
        || pods.iter().any(|pod| has_set(pod))
}

/// Probes these members at the URLs that they advertise, with the access of their cluster.
pub async fn probe_external_members(
    connections: &Connections,
    gate: &ProbeGate,
    access: &ClusterAccess,
    snapshot: &Snapshot,
    members: &[ListedMember],
    deadline: Instant,
) -> ExternalProbe {
    let Selection { endpoints, denied } = gate.select(&snapshot.namespace, members, access, deadline).await;
    let (ids, endpoints): (Vec<_>, Vec<_>) = endpoints.into_iter().unzip();
    if endpoints.is_empty() {
        return ExternalProbe { denied, ..ExternalProbe::default() };
    }
    let ips: Vec<Option<IpAddr>> = endpoints.iter().map(|endpoint| ip(&endpoint.url)).collect();
    let replies = etcd::probe(connections, &endpoints, deadline).await;
    let mut found: Vec<ExternalMember> = Vec::new();
    let mut addresses: Vec<(MemberId, IpAddr)> = Vec::new();
    for ((id, ip), reply) in ids.into_iter().zip(ips).zip(replies) {
        let is_expected = reply
            .status()
            .is_some_and(|status| status.member_id == id && snapshot.cluster_id() == Some(status.cluster_id));
        if !is_expected {
            continue;
        }
        addresses.extend(ip.map(|ip| (id, ip)));
        let reply = without_details(reply);
        match found.iter_mut().find(|known| known.id == id) {
            Some(known) if known.reply.is_healthy() => {}
            Some(known) => known.reply = reply,
            None => found.push(ExternalMember { id, reply, reserved: false }),
        }
    }
    ExternalProbe { members: found, addresses, denied }
}

/// Returns the address in a URL that the gate has resolved.
fn ip(url: &str) -> Option<IpAddr> {
    let uri: http::Uri = url.parse().ok()?;
    url_host(&uri)?.parse().ok()
}

/// Replaces the text of a failure by its class.
fn without_details(reply: ProbeResult) -> ProbeResult {
    let ProbeResult::StatusOnly { status, cause } = reply else { return reply };
    let cause = match cause {
        cause @ (MemberError::TimedOut(_)
        | MemberError::LoginTimedOut(_)
        | MemberError::NoLeader
        | MemberError::Learner) => cause,
        _ => MemberError::Other(String::from("the member does not serve linearizable reads to the guard")),
    };
    ProbeResult::StatusOnly { status, cause }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etcd_guard_core::snapshot::fixture::listed;

    fn member(url: &str) -> ListedMember {
        ListedMember { name: String::from("one"), peer_urls: vec![url.to_owned()], ..listed(1) }
    }

    fn reservation(pod: &str, member: &str) -> Reservation {
        Reservation {
            uid: String::from("uid"),
            namespace: String::from("prod"),
            pod: pod.to_owned(),
            member: member.to_owned(),
            at: String::new(),
            by: String::new(),
            of_node: false,
            cluster: None,
            by_name: false,
            image_id: None,
        }
    }

    #[test]
    fn process_of_missing_pod_of_a_set_is_leaving() {
        let has_set = |pod: &str| pod == "etcd-1";
        let leaves = |url: &str| is_leaving(&member(url), "prod", None, &[], has_set);
        for host in ["etcd-1", "etcd-1.etcd", "etcd-1.etcd.prod.svc", "etcd-1.etcd.prod.svc.cluster.local"] {
            assert!(leaves(&format!("http://{host}:2380")), "{host}");
        }
        for host in ["etcd-2.etcd.prod.svc", "etcd-1.etcd.other.svc", "etcd-1.example.com", "10.0.0.1"] {
            assert!(!leaves(&format!("http://{host}:2380")), "{host}");
        }
    }

    #[test]
    fn reservation_without_member_id_is_matched_by_name() {
        let external = member("http://a.peers:2380");
        let leaves =
            |pod: &str, id: &str| is_leaving(&external, "prod", None, &[reservation(pod, id)], |_| false);
        assert!(leaves("a", "") && leaves("one", "") && leaves("other", &external.id.to_string()));
        assert!(!leaves("b", "") && !leaves("a", "1234"));
    }

    #[test]
    fn reservation_of_another_cluster_does_not_match_by_member_id() {
        let external = member("http://a.peers:2380");
        let leaves = |cluster: Option<ClusterId>| {
            let cluster = cluster.map(|id| id.to_string());
            let reserved = Reservation { cluster, ..reservation("other", &external.id.to_string()) };
            is_leaving(&external, "prod", Some(ClusterId(0xc1)), &[reserved], |_| false)
        };
        assert!(leaves(Some(ClusterId(0xc1))) && leaves(None));
        assert!(!leaves(Some(ClusterId(0xc2))));
    }
}
