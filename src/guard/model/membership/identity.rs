//! Identity of a pod's member.
//!
//! The sources, best first: the member id in the reply from the pod's address, the host of a peer URL, the member's name.
//! Two candidates from one source are an error; the guard does not choose between them. Client URLs are not used: some
//! charts advertise one Service for all members.

use std::collections::HashMap;

use crate::etcd::{ListedMember, MemberId};
use crate::guard::model::snapshot::{MemberPod, Snapshot};

/// Two members for one pod, or two pods for one member.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::guard) struct AmbiguousIdentity {
    /// The pod.
    pub(in crate::guard) pod: String,
    /// The candidates.
    pub(in crate::guard) cause: String,
}

/// Returns the members that these pods run, by pod name.
pub(in crate::guard) fn identify<'a>(
    snapshot: &'a Snapshot,
    list: &[ListedMember],
) -> Result<HashMap<&'a str, MemberId>, AmbiguousIdentity> {
    let mut by_pod = HashMap::new();
    let mut pod_by_id: HashMap<MemberId, &str> = HashMap::new();
    for pod in &snapshot.pods {
        let Some(id) = member_of_pod(pod, &snapshot.namespace, list)? else { continue };
        if let Some(other) = pod_by_id.insert(id, &pod.name) {
            let cause = format!("this pod and pod {other} both match member {id}");
            return Err(AmbiguousIdentity { pod: pod.name.clone(), cause });
        }
        by_pod.insert(pod.name.as_str(), id);
    }
    Ok(by_pod)
}

fn member_of_pod(
    pod: &MemberPod,
    namespace: &str,
    list: &[ListedMember],
) -> Result<Option<MemberId>, AmbiguousIdentity> {
    if let Some(status) = pod.reply.status() {
        // The reply carries the member's own id. A member whose id is not listed was removed, also if a name matches.
        let is_listed = list.iter().any(|member| member.id == status.member_id);
        return Ok(is_listed.then_some(status.member_id));
    }
    let at_peer: Vec<&ListedMember> =
        list.iter().filter(|member| has_peer_at(member, &pod.name, &pod.ip)).collect();
    let by_peer_host = single(pod, "peer URLs", at_peer.iter().copied());
    if let Ok(Some(id)) = by_peer_host {
        return Ok(Some(id));
    }
    // Pods in several namespaces may have the same name.
    let mut in_namespace = at_peer.iter().filter(|member| has_peer_in(member, &pod.name, namespace));
    if let (Some(member), None) = (in_namespace.next(), in_namespace.next()) {
        return Ok(Some(member.id));
    }
    by_peer_host?;
    let has_name = |member: &&ListedMember| {
        member.has_started() && (member.name == pod.name || Some(&member.name) == pod.member_name.as_ref())
    };
    single(pod, "names", list.iter().filter(has_name))
}

fn single<'a>(
    pod: &MemberPod,
    source: &str,
    mut matches: impl Iterator<Item = &'a ListedMember>,
) -> Result<Option<MemberId>, AmbiguousIdentity> {
    match (matches.next(), matches.next()) {
        (None, _) => Ok(None),
        (Some(member), None) => Ok(Some(member.id)),
        (Some(first), Some(second)) => Err(AmbiguousIdentity {
            pod: pod.name.clone(),
            cause: format!("the {source} of members {} and {} both match", first.id, second.id),
        }),
    }
}

/// Whether the host of one of the member's peer URLs is a pod with this name or address.
pub(in crate::guard) fn has_peer_at(member: &ListedMember, pod: &str, ip: &str) -> bool {
    has_peer(member, |host| is_own_host(pod, ip, host))
}

/// Whether this host is the pod's own: its name, a DNS name that begins with its name, or its address.
pub(in crate::guard) fn is_own_host(pod: &str, ip: &str, host: &str) -> bool {
    host == pod
        || host.strip_prefix(pod).is_some_and(|rest| rest.starts_with('.'))
        || (!ip.is_empty() && host == ip)
}

/// Whether the host of one of the member's peer URLs is `POD.SERVICE.NAMESPACE` with this pod and namespace.
fn has_peer_in(member: &ListedMember, pod: &str, namespace: &str) -> bool {
    has_peer(member, |host| {
        let mut labels = host.split('.');
        labels.next() == Some(pod) && labels.nth(1) == Some(namespace)
    })
}

fn has_peer(member: &ListedMember, matches: impl Fn(&str) -> bool) -> bool {
    member.peer_urls.iter().any(|url| {
        let Ok(uri) = url.parse::<http::Uri>() else { return false };
        uri.host().is_some_and(|host| matches(host.trim_start_matches('[').trim_end_matches(']')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::model::snapshot::fixture::{cluster, listed};

    /// `etcd-0` of namespace `prod` and `etcd-0` of namespace `test`, both members of one cluster.
    #[test]
    fn distinguishes_same_named_pods_by_peer_urls() {
        let mut snapshot = cluster(3).crash(0);
        let mut list: Vec<ListedMember> = (0..3).map(listed).collect();
        list[2].name = String::from("etcd-0");
        list[2].peer_urls = vec![String::from("http://etcd-0.etcd.test.svc:2380")];
        snapshot.pods.pop();
        let first =
            |snapshot: &Snapshot| identify(snapshot, &list).map(|members| members.get("etcd-0").copied());
        assert_eq!(first(&snapshot), Ok(Some(list[0].id)));
        snapshot.namespace = String::from("test");
        assert_eq!(first(&snapshot), Ok(Some(list[2].id)));
        snapshot.namespace = String::from("other");
        assert!(first(&snapshot).is_err());
    }
}
