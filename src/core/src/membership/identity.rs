//! Identity of a pod's member.
//!
//! The sources, best first: the member id in the reply from the pod's address, the host of a peer URL, a peer URL that the
//! pod's own command advertises (it may name a Service), the member's name, and the address in a client URL. A reply, or
//! its absence, outranks every URL: a pod without a reply matches only members that reply from no other pod. Two candidates
//! from one source are an error; the guard does not choose between them. Names in client URLs are not used: some charts
//! advertise one Service for all members.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    etcd::member::{ListedMember, MemberId},
    snapshot::{MemberPod, Snapshot},
};

/// Two members for one pod, or two pods for one member.
#[derive(Debug, PartialEq, Eq)]
pub struct AmbiguousIdentity {
    /// The pod.
    pub pod: String,
    /// The candidates.
    pub cause: String,
}

/// A source that relates a pod without a reply to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The host of a peer URL is the pod.
    PeerHost,
    /// The pod's command advertises one of the member's peer URLs.
    AdvertisedUrl,
    /// The member has the name of the pod, or the name in the pod's command.
    Name,
    /// The host of a client URL is the pod's address.
    ClientAddress,
}

/// Returns the members that these pods run, by pod name. Several pods can be related to a member that does not reply: a
/// terminating pod and its successor, or pods of a Deployment.
pub fn identify<'a>(
    snapshot: &'a Snapshot,
    list: &[ListedMember],
) -> Result<BTreeMap<&'a str, MemberId>, AmbiguousIdentity> {
    let mut by_pod: BTreeMap<&str, MemberId> = BTreeMap::new();
    let mut pod_by_id: BTreeMap<MemberId, &str> = BTreeMap::new();
    for pod in &snapshot.pods {
        // The reply carries the member's own id. A member whose id is not listed was removed, also if a name matches.
        let Some(id) = pod.reply.status().map(|status| status.member_id) else { continue };
        if !list.iter().any(|member| member.id == id) {
            continue;
        }
        if let Some(other) = pod_by_id.insert(id, &pod.name) {
            return Err(two_pods(pod, other, id));
        }
        by_pod.insert(&pod.name, id);
    }
    let mut free: Vec<&ListedMember> =
        list.iter().filter(|member| !pod_by_id.contains_key(&member.id)).collect();
    for evidence in Evidence::ALL {
        // The pods of the target's owner are matched first.
        for has_target in [true, false] {
            let silent = snapshot.pods.iter().filter(|pod| pod.owner.has_target == has_target);
            let silent =
                silent.filter(|pod| pod.reply.status().is_none() && !by_pod.contains_key(pod.name.as_str()));
            let mut found: Vec<(&MemberPod, MemberId)> = Vec::new();
            for pod in silent {
                let Some(id) = evidence.member_of(pod, &snapshot.namespace, &free)? else { continue };
                let other = found.iter().find(|(other, known)| *known == id && !other.terminating);
                if let Some((other, _)) = other
                    && !pod.terminating
                    && evidence != Evidence::AdvertisedUrl
                {
                    return Err(two_pods(pod, &other.name, id));
                }
                found.push((pod, id));
            }
            by_pod.extend(found.iter().map(|(pod, id)| (pod.name.as_str(), *id)));
            let bound: BTreeSet<MemberId> = found.into_iter().map(|(_, id)| id).collect();
            free.retain(|member| !bound.contains(&member.id));
        }
    }
    Ok(by_pod)
}

/// Whether the pod may run the member, judged by names, addresses and URLs.
pub fn may_run(pod: &MemberPod, namespace: &str, member: &ListedMember) -> bool {
    has_name(pod, member) || Evidence::ALL.iter().any(|evidence| evidence.relates(pod, namespace, member))
}

fn two_pods(pod: &MemberPod, other: &str, id: MemberId) -> AmbiguousIdentity {
    let cause = format!("this pod and pod {other} both match member {id}");
    AmbiguousIdentity { pod: pod.name.clone(), cause }
}

// === impl Evidence ===

impl Evidence {
    /// All sources, best first.
    pub const ALL: [Self; 4] = [Self::PeerHost, Self::AdvertisedUrl, Self::Name, Self::ClientAddress];

    /// Whether this source relates the pod to the member. A name or a client URL relates a pod of another owner only if
    /// the pod's command advertises no peer URL: clusters in one namespace can use the same names, and addresses of
    /// deleted pods are assigned again.
    pub fn relates(self, pod: &MemberPod, namespace: &str, member: &ListedMember) -> bool {
        let is_unstated = || pod.owner.has_target || pod.peer_urls.is_empty();
        match self {
            Self::PeerHost => has_peer(member, |host| is_host_of(pod, namespace, host)),
            Self::AdvertisedUrl => pod.peer_urls.iter().any(|url| member.peer_urls.contains(url)),
            Self::Name => is_unstated() && has_name(pod, member),
            Self::ClientAddress => {
                is_unstated() && has_host(&member.client_urls, |host| !pod.ip.is_empty() && host == pod.ip)
            }
        }
    }

    /// Returns the member to which this source relates the pod.
    fn member_of(
        self,
        pod: &MemberPod,
        namespace: &str,
        members: &[&ListedMember],
    ) -> Result<Option<MemberId>, AmbiguousIdentity> {
        let related: Vec<&ListedMember> =
            members.iter().copied().filter(|member| self.relates(pod, namespace, member)).collect();
        match related[..] {
            [] => return Ok(None),
            [member] => return Ok(Some(member.id)),
            _ => {}
        }
        // Pods in several namespaces may have the same name.
        let mut in_namespace = related.iter().filter(|member| has_peer_in(member, &pod.name, namespace));
        if let (Some(member), None) = (in_namespace.next(), in_namespace.next()) {
            return Ok(Some(member.id));
        }
        let source = match self {
            Self::PeerHost | Self::AdvertisedUrl => "peer URLs",
            Self::Name => "names",
            Self::ClientAddress => "client URLs",
        };
        let ids: Vec<String> = related.iter().map(|member| member.id.to_string()).collect();
        let cause = format!("the {source} of members {} both match", ids.join(" and "));
        Err(AmbiguousIdentity { pod: pod.name.clone(), cause })
    }
}

fn has_name(pod: &MemberPod, member: &ListedMember) -> bool {
    member.has_started() && (member.name == pod.name || Some(&member.name) == pod.member_name.as_ref())
}

/// Whether this host is the pod's own. A host of the form `POD.SERVICE.NAMESPACE.svc` with another namespace is not.
fn is_host_of(pod: &MemberPod, namespace: &str, host: &str) -> bool {
    !is_elsewhere(namespace, host)
        && (is_own_host(&pod.name, &pod.ip, host)
            || (!pod.hostname.is_empty() && is_own_host(&pod.hostname, "", host)))
}

/// Whether the host has the form `POD.SERVICE.NAMESPACE.svc` with another namespace.
fn is_elsewhere(namespace: &str, host: &str) -> bool {
    let mut labels = host.split('.').skip(2);
    labels.next().is_some_and(|label| label != namespace) && labels.next() == Some("svc")
}

/// Whether the member is that of a pod with this name that does not exist, judged by its peer URLs or, if they name no pod, by its
/// name.
pub fn is_of_absent_pod(member: &ListedMember, pod: &str, namespace: &str) -> bool {
    if has_peer_at(member, pod, "") {
        has_peer(member, |host| !is_elsewhere(namespace, host) && is_own_host(pod, "", host))
    } else {
        member.name == pod
    }
}

/// Whether the host of one of the member's peer URLs is a pod with this name or address.
pub fn has_peer_at(member: &ListedMember, pod: &str, ip: &str) -> bool {
    has_peer(member, |host| is_own_host(pod, ip, host))
}

/// Whether this host is the pod's own: its name, a DNS name that begins with its name, or its address.
pub fn is_own_host(pod: &str, ip: &str, host: &str) -> bool {
    host == pod
        || host.strip_prefix(pod).is_some_and(|rest| rest.starts_with('.'))
        || (!ip.is_empty() && host == ip)
}

/// Returns the names of the pods of this namespace that the member's peer URLs name: `POD`, `POD.SERVICE` or
/// `POD.SERVICE.NAMESPACE`.
pub fn peer_pods(member: &ListedMember, namespace: &str) -> Vec<String> {
    let uris = member.peer_urls.iter().filter_map(|url| url.parse::<http::Uri>().ok());
    let pod = |uri: http::Uri| {
        let mut labels = uri.host()?.split('.');
        let pod = labels.next()?.to_owned();
        labels.nth(1).is_none_or(|label| label == namespace).then_some(pod)
    };
    uris.filter_map(pod).collect()
}

/// Whether the host of one of the member's peer URLs is `POD.SERVICE.NAMESPACE` with this pod and namespace.
fn has_peer_in(member: &ListedMember, pod: &str, namespace: &str) -> bool {
    has_peer(member, |host| {
        let mut labels = host.split('.');
        labels.next() == Some(pod) && labels.nth(1) == Some(namespace)
    })
}

fn has_peer(member: &ListedMember, matches: impl Fn(&str) -> bool) -> bool {
    has_host(&member.peer_urls, matches)
}

fn has_host(urls: &[String], matches: impl Fn(&str) -> bool) -> bool {
    urls.iter().any(|url| {
        let Ok(uri) = url.parse::<http::Uri>() else { return false };
        uri.host().is_some_and(|host| matches(host.trim_start_matches('[').trim_end_matches(']')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::fixture::{cluster, listed};

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

    /// Returns the members of the pods of three members. The peer URLs name Services.
    fn identify_behind_services(snapshot: &Snapshot) -> Result<Vec<(usize, usize)>, AmbiguousIdentity> {
        let list: Vec<ListedMember> = (0..3).map(behind_service).collect();
        let by_pod = identify(snapshot, &list)?;
        let number = |name: &str| snapshot.pods.iter().position(|pod| pod.name == name).unwrap();
        let mut found: Vec<(usize, usize)> = by_pod
            .iter()
            .map(|(pod, id)| (number(pod), list.iter().position(|member| member.id == *id).unwrap()))
            .collect();
        found.sort_unstable();
        Ok(found)
    }

    fn behind_service(n: usize) -> ListedMember {
        ListedMember {
            name: format!("member-{n}"),
            peer_urls: vec![format!("http://service-{n}:2380")],
            client_urls: vec![format!("http://10.0.0.{n}:2379")],
            ..listed(n)
        }
    }

    #[test]
    fn matches_silent_pods_by_each_source() {
        let stated = |pod: &mut MemberPod| pod.peer_urls = vec![String::from("http://service-1:2380")];
        let named = |pod: &mut MemberPod| pod.member_name = Some(String::from("member-1"));
        let hosted = |pod: &mut MemberPod| pod.hostname = String::from("service-1");
        let sources: [&dyn Fn(&mut MemberPod); 3] = [&stated, &named, &hosted];
        for change in sources {
            let snapshot = cluster(3).silence(1).change(1, |pod| pod.ip = String::new()).change(1, change);
            assert_eq!(identify_behind_services(&snapshot), Ok(vec![(0, 0), (1, 1), (2, 2)]));
        }
        let by_client_address = cluster(3).silence(1);
        assert_eq!(identify_behind_services(&by_client_address), Ok(vec![(0, 0), (1, 1), (2, 2)]));
        let unknown = cluster(3).silence(1).change(1, |pod| pod.ip = String::new());
        assert_eq!(identify_behind_services(&unknown), Ok(vec![(0, 0), (2, 2)]));
    }

    #[test]
    fn name_of_other_owner_needs_no_conflicting_url() {
        let named = |url: &'static str| {
            move |pod: &mut MemberPod| {
                (pod.owner.has_target, pod.ip) = (false, String::new());
                pod.member_name = Some(String::from("member-1"));
                pod.peer_urls =
                    Some(url).filter(|url| !url.is_empty()).map(str::to_owned).into_iter().collect();
            }
        };
        let stranger = cluster(3).silence(1).change(1, named("http://service-1.other:2380"));
        assert_eq!(identify_behind_services(&stranger), Ok(vec![(0, 0), (2, 2)]));
        let member = cluster(3).silence(1).change(1, named(""));
        assert_eq!(identify_behind_services(&member), Ok(vec![(0, 0), (1, 1), (2, 2)]));
    }

    /// The terminating pod of a Deployment replies, and its successor waits for the data.
    #[test]
    fn reply_outranks_url_of_another_pod() {
        let same_url = |pod: &mut MemberPod| pod.peer_urls = vec![String::from("http://service-0:2380")];
        let snapshot = cluster(3).silence(1).change(0, same_url).change(1, same_url);
        let snapshot = snapshot.change(1, |pod| pod.ip = String::new());
        assert_eq!(identify_behind_services(&snapshot), Ok(vec![(0, 0), (2, 2)]));
        let silent = snapshot.silence(0);
        assert_eq!(identify_behind_services(&silent), Ok(vec![(0, 0), (1, 0), (2, 2)]));
    }

    #[test]
    fn host_in_another_namespace_is_another_pod() {
        let pod = &cluster(1).pods[0];
        assert!(is_host_of(pod, "prod", "etcd-0.etcd.prod.svc"));
        assert!(is_host_of(pod, "prod", "etcd-0.etcd"));
        assert!(is_host_of(pod, "prod", "etcd-0.example.com"));
        assert!(!is_host_of(pod, "prod", "etcd-0.etcd.test.svc"));
    }
}
