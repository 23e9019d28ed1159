//! The pods of external members in other namespaces. A member whose pod terminates slowly continues to reply, and does not
//! count as serving.
//!
//! The pods are found by the addresses at which the members replied, and by the namespaces that their URLs name: a URL of
//! the form `NAME.NAMESPACE.svc` may name a Service. A member without such a pod runs outside of Kubernetes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use futures::future::try_join_all;
use tokio::time::{Instant, timeout_at};

use etcd_guard_core::{
    discovery::etcd_pod,
    etcd::{
        endpoint::url_host,
        member::{ListedMember, MemberId},
    },
    membership::identity,
    objects::pod::Pod,
    reservation::Reservation,
};
use etcd_guard_kubernetes::{ApiReader, LookupError};

/// Maximum number of addresses whose pods are read for one evaluation. It equals the maximum number of addresses that one
/// round probes.
const MAX_ADDRESSES: usize = 16;

/// Maximum number of namespaces in which one evaluation reads pods. Each voter can run in a namespace of its own.
const MAX_NAMESPACES: usize = 8;

/// Maximum length of the name of a namespace.
const MAX_NAMESPACE_CHARS: usize = 63;

/// The places where a member without a pod may run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Places {
    /// The namespace of the cluster.
    own: String,
    addresses: BTreeSet<IpAddr>,
    /// Other namespaces that the member's URLs name.
    namespaces: BTreeSet<String>,
}

/// The pods of these places, as the API server returned them.
#[derive(Debug, Default)]
pub(super) struct FoundPods {
    by_address: BTreeMap<IpAddr, Vec<Pod>>,
    by_namespace: BTreeMap<String, Vec<Pod>>,
}

/// Reads the pods of these places, one read per address and namespace, in parallel.
pub(super) async fn find_pods(
    pods: &ApiReader,
    places: &[(&ListedMember, Places)],
    until: Instant,
) -> Result<FoundPods, LookupError> {
    let addresses: BTreeSet<IpAddr> =
        places.iter().flat_map(|(_, places)| &places.addresses).copied().collect();
    let namespaces: BTreeSet<&String> = places.iter().flat_map(|(_, places)| &places.namespaces).collect();
    let by_address = addresses
        .into_iter()
        .take(MAX_ADDRESSES)
        .map(async |address| Ok::<_, LookupError>((address, pods.list_pods_at(address).await?)));
    let by_namespace = namespaces
        .into_iter()
        .take(MAX_NAMESPACES)
        .map(async |namespace| Ok::<_, LookupError>((namespace.clone(), pods.list_pods(namespace).await?)));
    let started = Instant::now();
    let reads = async { tokio::try_join!(try_join_all(by_address), try_join_all(by_namespace)) };
    let (by_address, by_namespace) = timeout_at(until, reads).await.unwrap_or_else(|_| {
        Err(LookupError::TimedOut {
            subject: String::from("the pods of voters in other namespaces"),
            limit: until.duration_since(started),
        })
    })?;
    Ok(FoundPods {
        by_address: by_address.into_iter().collect(),
        by_namespace: by_namespace.into_iter().collect(),
    })
}

/// Whether the pod of this member is leaving, or may be leaving. `has_set` returns whether a StatefulSet of the namespace may create
/// the pod of this name: such a member without a pod is the process of a pod that was deleted by force.
pub(super) fn is_leaving(
    member: &ListedMember,
    places: &Places,
    found: &FoundPods,
    reserved: &[Reservation],
    has_set: impl Fn(&str, &str) -> bool,
) -> bool {
    let are_read = places.addresses.iter().all(|address| found.by_address.contains_key(address))
        && places.namespaces.iter().all(|namespace| found.by_namespace.contains_key(namespace));
    if !are_read {
        return true;
    }
    let pod_is_leaving = |pod: &&Pod| {
        pod.is_terminating() || reserved.iter().any(|reservation| reservation.uid == pod.metadata.uid)
    };
    let all_are_leaving = |pods: &[&Pod]| pods.iter().all(pod_is_leaving);
    // With `hostNetwork`, several pods have the same address. Each etcd pod among them may run the member.
    let at_address = places.addresses.iter().filter_map(|address| found.by_address.get(address)).flatten();
    let at_address: Vec<&Pod> = at_address.filter(|pod| !pod.is_finished()).collect();
    let members: Vec<&Pod> = at_address.iter().copied().filter(|pod| may_run_etcd(pod)).collect();
    if !members.is_empty() {
        return members.iter().any(pod_is_leaving);
    }
    if !at_address.is_empty() {
        return all_are_leaving(&at_address);
    }
    // A URL names a Service, or the pod has no such address any more.
    let in_namespace = places.namespaces.iter().filter_map(|name| found.by_namespace.get(name)).flatten();
    let in_namespace: Vec<&Pod> = in_namespace.filter(|pod| !pod.is_finished()).collect();
    let named: Vec<&Pod> = in_namespace.iter().copied().filter(|pod| is_named(member, pod)).collect();
    if !named.is_empty() {
        return all_are_leaving(&named);
    }
    let is_missing_pod =
        |namespace: &String| identity::peer_pods(member, namespace).iter().any(|pod| has_set(namespace, pod));
    if places.namespaces.iter().any(is_missing_pod) {
        return true;
    }
    // The member can run in a pod that was reserved while it did not answer, if the address is that of a Service or a load balancer.
    let is_elsewhere =
        |reservation: &Reservation| reservation.member.is_empty() && reservation.namespace != places.own;
    let may_be_reserved = places.namespaces.is_empty() && reserved.iter().any(is_elsewhere);
    may_be_reserved || in_namespace.iter().any(|pod| may_run_etcd(pod) && pod_is_leaving(pod))
}

/// Whether a peer URL of the member names this pod, or its hostname.
fn is_named(member: &ListedMember, pod: &Pod) -> bool {
    let hostname = &pod.spec.hostname;
    identity::has_peer_at(member, &pod.metadata.name, &pod.status.pod_ip)
        || (!hostname.is_empty() && identity::has_peer_at(member, hostname, ""))
}

fn may_run_etcd(pod: &Pod) -> bool {
    etcd_pod::read(pod, &pod.metadata.annotations).is_some() || etcd_pod::is_excluded(pod)
}

/// Whether a pod inherits this value of the annotation [`MEMBER`] from its namespace. All pods inherit `"false"`, so that it would
/// not distinguish etcd pods from others.
pub(super) fn inherits_membership(pod: &Pod, name: &str, value: &str) -> bool {
    value != "false" && etcd_pod::inherits_from_namespace(pod, name, value)
}

// === impl FoundPods ===

impl FoundPods {
    /// Returns the namespaces of the etcd pods at the addresses at which members replied. What a URL names is no evidence: a tenant
    /// could name the namespace of another one, and fill its ledger.
    pub(super) fn namespaces(&self, replied: &[(MemberId, IpAddr)]) -> BTreeSet<String> {
        let at_address =
            replied.iter().filter_map(|(_, address)| self.by_address.get(&address.to_canonical()));
        let members = at_address.flatten().filter(|pod| !pod.is_finished() && may_run_etcd(pod));
        members.map(|pod| pod.metadata.namespace.clone()).collect()
    }

    /// Calls `change` for each pod that is not recognized, with its namespace. An inherited annotation must not hide a pod whose
    /// containers show etcd.
    pub(super) fn for_each_unrecognized(&mut self, change: impl Fn(&str, &mut Pod)) {
        let of_places = self.by_address.values_mut().chain(self.by_namespace.values_mut()).flatten();
        for pod in of_places.filter(|pod| !may_run_etcd(pod)) {
            let namespace = pod.metadata.namespace.clone();
            change(&namespace, pod);
        }
    }
}

// === impl Places ===

impl Places {
    /// Returns the places of a member of a cluster in this namespace. Its own pods are known.
    pub(super) fn new(member: &ListedMember, namespace: &str, addresses: &[(MemberId, IpAddr)]) -> Self {
        let replied =
            addresses.iter().filter(|(id, _)| *id == member.id).map(|(_, address)| address.to_canonical());
        let mut places =
            Self { own: namespace.to_owned(), addresses: replied.collect(), namespaces: BTreeSet::new() };
        let hosts = |urls: &[String]| -> Vec<String> {
            let uris = urls.iter().filter_map(|url| url.parse::<http::Uri>().ok());
            uris.filter_map(|uri| url_host(&uri).map(str::to_owned)).collect()
        };
        let peer_hosts = hosts(&member.peer_urls);
        places.addresses.extend(peer_hosts.iter().filter_map(|host| host.parse::<IpAddr>().ok()));
        let client_hosts = hosts(&member.client_urls);
        let named = peer_hosts.iter().chain(&client_hosts).filter_map(|host| namespace_of(host));
        places.namespaces = named.filter(|named| *named != namespace).map(str::to_owned).collect();
        places
    }
}

/// Returns the namespace in a host of the form `NAME.NAMESPACE.svc` or `POD.NAME.NAMESPACE.svc`, also with the domain of
/// the cluster.
fn namespace_of(host: &str) -> Option<&str> {
    let labels: Vec<&str> = host.split('.').collect();
    let svc = labels.iter().skip(2).take(2).position(|label| *label == "svc")?;
    let namespace = labels.get(svc + 1)?;
    let is_label = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_valid =
        !namespace.is_empty() && namespace.len() <= MAX_NAMESPACE_CHARS && namespace.bytes().all(is_label);
    is_valid.then_some(namespace)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use etcd_guard_core::{annotations::MEMBER, snapshot::fixture::listed};

    fn pod(name: &str, ip: &str, change: impl Fn(&mut Value)) -> Pod {
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "other", "uid": name},
            "spec": {"containers": [{"name": "etcd", "image": "quay.io/coreos/etcd:v3.6.16"}]},
            "status": {"phase": "Running", "podIP": ip},
        });
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    fn alive(_: &mut Value) {}

    fn terminating(pod: &mut Value) {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }

    fn unrelated(pod: &mut Value) {
        pod["spec"]["containers"][0] = json!({"name": "web", "image": "nginx"});
    }

    /// Returns a member with this host in its URLs, which replied at this address.
    fn places(host: &str, address: &str) -> (ListedMember, Places) {
        let urls = |port: u16| vec![format!("http://{host}:{port}")];
        let member = ListedMember { peer_urls: urls(2380), client_urls: urls(2379), ..listed(1) };
        let address: IpAddr = address.parse().unwrap();
        let places = Places::new(
            &member,
            "prod",
            &[(member.id, address), (listed(2).id, "10.0.9.9".parse().unwrap())],
        );
        (member, places)
    }

    fn leaves(host: &str, address: &str, at_address: Vec<Pod>, in_namespace: &[Pod]) -> bool {
        let (member, places) = places(host, address);
        let mut at_address = Some(at_address);
        let found = FoundPods {
            by_address: places
                .addresses
                .iter()
                .map(|at| (*at, at_address.take().unwrap_or_default()))
                .collect(),
            by_namespace: places
                .namespaces
                .iter()
                .map(|name| (name.clone(), in_namespace.to_vec()))
                .collect(),
        };
        is_leaving(&member, &places, &found, &[], |namespace, pod| (namespace, pod) == ("other", "set-1"))
    }

    #[test]
    fn finds_namespaces_in_hosts() {
        assert_eq!(namespace_of("etcd-0.etcd.other.svc"), Some("other"));
        assert_eq!(namespace_of("etcd-0.etcd.other.svc.cluster.local"), Some("other"));
        assert_eq!(namespace_of("etcd.other.svc"), Some("other"));
        for host in [
            "etcd.other",
            "etcd-0.etcd.other",
            "a.b.c.d.svc",
            "10.0.0.1",
            "a.OTHER.svc",
            "a..svc",
            "a.%2f.svc",
        ] {
            assert_eq!(namespace_of(host), None, "{host}");
        }
        let (_, own) = places("etcd-1.etcd.prod.svc", "10.0.0.1");
        assert!(own.namespaces.is_empty(), "the pods of this namespace are known");
        let (_, by_address) = places("10.0.0.7", "::ffff:10.0.0.1");
        assert_eq!(by_address.addresses, ["10.0.0.1", "10.0.0.7"].map(|ip| ip.parse().unwrap()).into());
    }

    #[test]
    fn pod_at_the_address_decides() {
        let host = "etcd-1.etcd.other.svc";
        let at = |pods: Vec<Pod>| leaves(host, "10.0.0.1", pods, &[pod("etcd-1", "10.0.0.2", terminating)]);
        assert!(at(vec![pod("etcd-1", "10.0.0.1", terminating)]));
        assert!(!at(vec![pod("etcd-1", "10.0.0.1", alive)]));
        // Pods with `hostNetwork`.
        assert!(at(vec![pod("etcd-2", "10.0.0.1", alive), pod("etcd-1", "10.0.0.1", terminating)]));
        assert!(!at(vec![pod("web", "10.0.0.1", unrelated), pod("etcd-1", "10.0.0.1", alive)]));
        assert!(at(vec![pod("web", "10.0.0.1", unrelated), pod("etcd-1", "10.0.0.1", terminating)]));
        assert!(at(vec![pod("wrapper", "10.0.0.1", |pod| {
            unrelated(pod);
            terminating(pod);
        })]));
    }

    #[test]
    fn only_etcd_pods_that_replied_add_their_namespaces() {
        let in_namespace = |name: &str, namespace: &str, change: fn(&mut Value)| {
            pod(name, "10.0.0.1", |pod| {
                pod["metadata"]["namespace"] = json!(namespace);
                change(pod);
            })
        };
        let ip = |ip: &str| ip.parse::<IpAddr>().unwrap();
        let mut found = FoundPods::default();
        found.by_namespace.insert(String::from("victim"), vec![in_namespace("etcd-0", "victim", alive)]);
        // A peer URL names this address, where no member replied.
        found.by_address.insert(ip("10.0.0.7"), vec![in_namespace("etcd-0", "victim", alive)]);
        let pods = vec![in_namespace("member", "other", alive), in_namespace("web", "team", unrelated)];
        found.by_address.insert(ip("10.0.0.1"), pods);
        let namespaces = found.namespaces(&[(listed(1).id, ip("::ffff:10.0.0.1"))]);
        assert_eq!(namespaces, BTreeSet::from([String::from("other")]));
    }

    #[test]
    fn exclusion_by_the_namespace_is_not_inherited() {
        let declared = pod("store", "10.0.0.1", |pod| {
            pod["spec"]["containers"][0] =
                json!({"name": "store", "image": "store", "ports": [{"containerPort": 2379}]});
        });
        assert!(inherits_membership(&declared, MEMBER, "true"));
        assert!(!inherits_membership(&declared, MEMBER, "false"));
    }

    #[test]
    fn unrecognized_pods_of_all_places_are_changed() {
        let pods = vec![pod("store", "10.0.0.1", unrelated), pod("etcd-1", "10.0.0.1", alive)];
        let mut found = FoundPods::default();
        found.by_address.insert("10.0.0.1".parse().unwrap(), pods.clone());
        found.by_namespace.insert(String::from("other"), pods);
        found.for_each_unrecognized(|namespace, pod| namespace.clone_into(&mut pod.metadata.name));
        let pods = found.by_address.values().chain(found.by_namespace.values()).flatten();
        let names: Vec<&str> = pods.map(|pod| pod.metadata.name.as_str()).collect();
        assert_eq!(names, ["other", "etcd-1", "other", "etcd-1"]);
    }

    #[test]
    fn pods_of_the_named_namespace_decide_behind_a_service() {
        let behind = |host: &str, pods: Vec<Pod>| leaves(host, "10.96.0.1", Vec::new(), &pods);
        assert!(behind("etcd-1.etcd.other.svc", vec![pod("etcd-1", "10.0.0.1", terminating)]));
        assert!(!behind(
            "etcd-1.etcd.other.svc",
            vec![pod("etcd-1", "10.0.0.1", alive), pod("etcd-2", "10.0.0.2", terminating)]
        ));
        // The Service does not name its pod.
        assert!(behind("ea.other.svc", vec![pod("member-0", "10.0.0.1", terminating)]));
        assert!(!behind("ea.other.svc", vec![pod("member-0", "10.0.0.1", alive)]));
    }

    #[test]
    fn process_of_missing_pod_of_a_set_is_leaving() {
        let behind = |host: &str, pods: &[Pod]| leaves(host, "10.96.0.1", Vec::new(), pods);
        let others = [pod("set-0", "10.0.0.1", alive)];
        assert!(behind("set-1.etcd.other.svc", &others));
        assert!(!behind("set-1.etcd.other.svc", &[pod("set-1", "10.0.0.2", alive)]), "the pod exists");
        assert!(!behind("etcd-1.etcd.other.svc", &others), "no StatefulSet creates the pod");
    }

    /// A replica that reached no member reserved its pod, and a load balancer forwards to the pod.
    #[test]
    fn pod_that_was_reserved_without_its_member_can_run_a_member_at_any_address() {
        let (member, places) = places("etcd.example.com", "192.168.0.1");
        let reserved = |namespace: &str, member: &str| Reservation {
            uid: String::from("a"),
            namespace: namespace.to_owned(),
            pod: String::from("a"),
            member: member.to_owned(),
            at: String::new(),
            by: String::new(),
            of_node: false,
            cluster: None,
            by_name: false,
            image_id: None,
        };
        let by_address = places.addresses.iter().map(|address| (*address, Vec::new())).collect();
        let found = FoundPods { by_address, ..FoundPods::default() };
        let leaves = |reserved: Reservation| is_leaving(&member, &places, &found, &[reserved], |_, _| false);
        assert!(leaves(reserved("team", "")));
        assert!(!leaves(reserved("team", "1234")), "it runs another member");
        assert!(!leaves(reserved("prod", "")), "the pods of the own namespace are known");
    }

    #[test]
    fn member_outside_of_kubernetes_is_not_leaving() {
        assert!(!leaves("vm.example.com", "192.168.0.1", Vec::new(), &[]));
        let (member, places) = places("vm.example.com", "192.168.0.1");
        assert!(
            is_leaving(&member, &places, &FoundPods::default(), &[], |_, _| false),
            "its pod was not searched"
        );
    }
}
