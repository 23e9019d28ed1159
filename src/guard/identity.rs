//! Which member a pod runs: who answers at its address, then the host of a peer URL, then a name. One, or none, never
//! a guess between two.
//!
//! Client URLs decide nothing: some charts advertise one Service for all members.

use std::collections::HashMap;

use super::{
    etcd_pod::is_own_host,
    snapshot::{MemberPod, Snapshot},
};
use crate::etcd::{ListedMember, MemberId};

/// The member of each pod that has one.
#[derive(Debug)]
pub(super) struct Identity {
    by_pod: HashMap<String, MemberId>,
}

/// Two answers where there should be one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ambiguity {
    /// The pod in question.
    pub pod: String,
    /// What it could be.
    pub why: String,
}

/// Matches all pods of a snapshot with the listed members.
pub(super) fn resolve(snapshot: &Snapshot, list: &[ListedMember]) -> Result<Identity, Ambiguity> {
    let mut by_pod = HashMap::new();
    let mut pod_of: HashMap<MemberId, &str> = HashMap::new();
    for pod in &snapshot.pods {
        let Some(id) = member_of(pod, &snapshot.namespace, list)? else { continue };
        if let Some(other) = pod_of.insert(id, &pod.name) {
            let why = format!("both it and {other} look like member {id}");
            return Err(Ambiguity { pod: pod.name.clone(), why });
        }
        by_pod.insert(pod.name.clone(), id);
    }
    Ok(Identity { by_pod })
}

fn member_of(pod: &MemberPod, namespace: &str, list: &[ListedMember]) -> Result<Option<MemberId>, Ambiguity> {
    if let Some(status) = pod.reply.status() {
        // Whoever answers knows who it is: if its id is not listed, it was removed, and no name brings it back.
        let listed = list.iter().any(|member| member.id == status.member_id);
        return Ok(listed.then_some(status.member_id));
    }
    let at_peer: Vec<&ListedMember> =
        list.iter().filter(|member| has_peer_at(member, &pod.name, &pod.ip)).collect();
    let by_peer_host = single(pod, "peer URLs", at_peer.iter().copied());
    if let Ok(Some(id)) = by_peer_host {
        return Ok(Some(id));
    }
    // Pods of one name in several namespaces.
    let mut here = at_peer.iter().filter(|member| has_peer_in(member, &pod.name, namespace));
    if let (Some(member), None) = (here.next(), here.next()) {
        return Ok(Some(member.id));
    }
    by_peer_host?;
    let is_named = |member: &&ListedMember| {
        member.has_started() && (member.name == pod.name || Some(&member.name) == pod.member_name.as_ref())
    };
    single(pod, "names", list.iter().filter(is_named))
}

fn single<'a>(
    pod: &MemberPod,
    what: &str,
    mut matches: impl Iterator<Item = &'a ListedMember>,
) -> Result<Option<MemberId>, Ambiguity> {
    match (matches.next(), matches.next()) {
        (None, _) => Ok(None),
        (Some(member), None) => Ok(Some(member.id)),
        (Some(one), Some(other)) => Err(Ambiguity {
            pod: pod.name.clone(),
            why: format!("the {what} of members {} and {} both fit it", one.id, other.id),
        }),
    }
}

/// Whether a peer URL of the member leads to a pod of this name or address.
pub(super) fn has_peer_at(member: &ListedMember, pod: &str, ip: &str) -> bool {
    has_peer(member, |host| is_own_host(pod, ip, host))
}

/// Whether a peer URL of the member names a pod of this name, by `POD.SERVICE.NAMESPACE`, in this namespace.
fn has_peer_in(member: &ListedMember, pod: &str, namespace: &str) -> bool {
    has_peer(member, |host| {
        let mut labels = host.split('.');
        labels.next() == Some(pod) && labels.nth(1) == Some(namespace)
    })
}

fn has_peer(member: &ListedMember, is_it: impl Fn(&str) -> bool) -> bool {
    member.peer_urls.iter().any(|url| {
        let Ok(uri) = url.parse::<http::Uri>() else { return false };
        uri.host().is_some_and(|host| is_it(host.trim_start_matches('[').trim_end_matches(']')))
    })
}

// === impl Identity ===

impl Identity {
    /// The member that this pod runs.
    #[must_use]
    pub(super) fn of(&self, pod: &str) -> Option<MemberId> {
        self.by_pod.get(pod).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::assess::tests::cluster;

    /// `etcd-0` of namespace `prod` and `etcd-0` of namespace `test`, both members of one cluster.
    #[test]
    fn pods_of_one_name_in_two_namespaces_are_told_apart_by_their_peer_urls() {
        let mut snapshot = cluster(3).crash(0);
        let list = crate::guard::assess::union_of_lists(&snapshot);
        let mut list: Vec<ListedMember> = list;
        list[2].name = String::from("etcd-0");
        list[2].peer_urls = vec![String::from("http://etcd-0.etcd.test.svc:2380")];
        snapshot.pods.pop();
        let of_first = |snapshot: &Snapshot| resolve(snapshot, &list).map(|it| it.of("etcd-0"));
        assert_eq!(of_first(&snapshot), Ok(Some(list[0].id)));
        snapshot.namespace = String::from("test");
        assert_eq!(of_first(&snapshot), Ok(Some(list[2].id)));
        snapshot.namespace = String::from("elsewhere");
        assert!(of_first(&snapshot).is_err());
    }
}
