//! The gate for addresses that member lists name. It decides which of them are probed.
//!
//! Every pod can answer like a member and return any list. Without a gate, such a list would make the guard connect to
//! addresses of the pod's choice, in any number, and with the permissions that network policies grant to the guard:
//! docs/security.md. Addresses of pods do not pass through the gate, because the API server names them.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use futures::future::join_all;
use tokio::{
    net::lookup_host,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

use super::{access::ClusterAccess, api_servers::ApiServers};
use crate::LiveConfig;
use etcd_guard_core::etcd::{
    endpoint::{Endpoint, url_host},
    member::{ListedMember, MemberId, Scheme},
};

/// Maximum number of client URLs of one member that are resolved.
const MAX_URLS_PER_MEMBER: usize = 4;

/// Maximum number of addresses that one round probes. A cluster has few voters without a visible pod.
const MAX_ADDRESSES: usize = 16;

/// Maximum time for the resolution of all names of one round.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum number of resolutions at a time, of all evaluations. A resolution occupies a thread until its end, which the
/// name server of a hostile domain can delay, and the client of the API server needs these threads as well. tokio has 512.
const MAX_RESOLUTIONS: usize = 128;

/// Maximum number of resolutions at a time for the clusters of one namespace. Hostile names in a member list delay only
/// the evaluations of their own namespace.
const MAX_RESOLUTIONS_OF_NAMESPACE: usize = 4;

/// The gate for addresses that member lists name.
#[derive(Clone)]
pub struct ProbeGate {
    config: LiveConfig,
    api_servers: ApiServers,
    resolutions: Resolutions,
}

/// The resolutions that are running.
#[derive(Clone)]
struct Resolutions {
    all: Arc<Semaphore>,
    /// The permits of each namespace that has a resolution.
    by_namespace: Arc<Mutex<BTreeMap<String, Weak<Semaphore>>>>,
}

/// The addresses that may be probed.
#[derive(Debug, Default)]
pub(super) struct Selection {
    /// The addresses, each with the member that should answer there.
    pub(super) endpoints: Vec<(MemberId, Endpoint)>,
    /// Members with denied addresses and without any other address.
    pub(super) denied: Vec<MemberId>,
}

/// A client URL of a member, before its resolution.
struct Candidate {
    member: MemberId,
    endpoint: Endpoint,
    scheme: Scheme,
    host: String,
    port: u16,
}

// === impl ProbeGate ===

impl ProbeGate {
    /// Creates a gate that follows `guard.probe` of this configuration.
    pub fn new(config: LiveConfig, api_servers: ApiServers) -> Self {
        Self { config, api_servers, resolutions: Resolutions::new() }
    }

    /// Selects the addresses at which these members of a cluster in `namespace` are probed: for each member one before any
    /// second one.
    pub(super) async fn select(
        &self,
        namespace: &str,
        members: &[ListedMember],
        access: &ClusterAccess,
        deadline: Instant,
    ) -> Selection {
        let by_member = members.iter().map(|member| candidates(member, access));
        let candidates = one_by_one(by_member.collect());
        if candidates.is_empty() {
            return Selection::default();
        }
        let deadline = deadline.min(Instant::now() + RESOLVE_TIMEOUT);
        // An unknown address of an API server could be one of the candidates.
        let Some(api_servers) = self.api_servers.addresses(deadline).await else {
            return Selection::default();
        };
        let names =
            candidates.iter().map(|candidate| format!("{}:{}", candidate.bracketed(), candidate.port));
        let resolve = |name: String| self.resolve(namespace, name, deadline);
        // The configuration names the API servers. Their names do not wait for those of a tenant.
        let resolve_server = |name: String| resolve_within(name, (), deadline);
        let (addresses, api_servers) =
            tokio::join!(join_all(names.map(resolve)), join_all(api_servers.into_iter().map(resolve_server)));
        if api_servers.iter().any(Vec::is_empty) {
            return Selection::default();
        }
        let api_servers: Vec<SocketAddr> = api_servers.into_iter().flatten().collect();
        let mut selection = Selection::default();
        let mut allowed: Vec<Vec<(MemberId, Endpoint)>> = Vec::new();
        for (candidate, addresses) in candidates.iter().zip(addresses) {
            let (rejected, addresses): (Vec<_>, Vec<_>) =
                addresses.into_iter().partition(|address| self.denies(*address, &api_servers));
            if !rejected.is_empty() {
                selection.denied.push(candidate.member);
            }
            allowed.push(addresses.into_iter().map(|address| candidate.at(address)).collect());
        }
        selection.endpoints = one_by_one(allowed);
        selection.denied.sort_unstable();
        selection.denied.dedup();
        selection.denied.retain(|id| !selection.endpoints.iter().any(|(member, _)| member == id));
        selection
    }

    fn denies(&self, address: SocketAddr, api_servers: &[SocketAddr]) -> bool {
        let same = |server: &SocketAddr| {
            server.port() == address.port() && server.ip().to_canonical() == address.ip().to_canonical()
        };
        self.config.borrow().probe.denies(address.ip()) || api_servers.iter().any(same)
    }

    /// Returns the addresses of `HOST:PORT` in a member list of this namespace, or none if they are not known in time.
    async fn resolve(&self, namespace: &str, name: String, deadline: Instant) -> Vec<SocketAddr> {
        if let Ok(address) = name.parse() {
            return vec![address];
        }
        match timeout_at(deadline, self.resolutions.acquire(namespace)).await {
            Ok(Some(permits)) => resolve_within(name, permits, deadline).await,
            _ => Vec::new(),
        }
    }
}

// === impl Resolutions ===

impl Resolutions {
    fn new() -> Self {
        Self { all: Arc::new(Semaphore::new(MAX_RESOLUTIONS)), by_namespace: Arc::default() }
    }

    /// Waits for the permits of one resolution, first for that of its namespace.
    async fn acquire(&self, namespace: &str) -> Option<[OwnedSemaphorePermit; 2]> {
        let of_namespace = self.of_namespace(namespace).acquire_owned().await.ok()?;
        let of_all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some([of_namespace, of_all])
    }

    /// Returns the permits of a namespace. They are dropped with its last resolution.
    fn of_namespace(&self, namespace: &str) -> Arc<Semaphore> {
        let mut by_namespace = self.by_namespace.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(permits) = by_namespace.get(namespace).and_then(Weak::upgrade) {
            return permits;
        }
        by_namespace.retain(|_, permits| permits.strong_count() > 0);
        let permits = Arc::new(Semaphore::new(MAX_RESOLUTIONS_OF_NAMESPACE));
        by_namespace.insert(namespace.to_owned(), Arc::downgrade(&permits));
        permits
    }
}

/// Returns the addresses of `HOST:PORT`, or none if they are not known in time. The permits belong to the resolution, which
/// continues after the deadline.
async fn resolve_within<P: Send + 'static>(name: String, permits: P, deadline: Instant) -> Vec<SocketAddr> {
    if let Ok(address) = name.parse() {
        return vec![address];
    }
    let resolution = tokio::spawn(async move {
        let _permits = permits;
        lookup_host(name).await.map(Vec::from_iter).unwrap_or_default()
    });
    match timeout_at(deadline, resolution).await {
        Ok(Ok(addresses)) => addresses,
        _ => Vec::new(),
    }
}

/// Returns the client URLs of a member over which the cluster may be probed.
fn candidates(member: &ListedMember, access: &ClusterAccess) -> Vec<Candidate> {
    let parse = |url: &String| {
        let uri: http::Uri = url.parse().ok()?;
        let host = url_host(&uri)?.to_owned();
        let (scheme, default_port) = match uri.scheme_str()? {
            "https" => (Scheme::Https, 443),
            "http" => (Scheme::Http, 80),
            _ => return None,
        };
        let endpoint = access.endpoint(scheme, &host)?;
        let port = uri.port_u16().unwrap_or(default_port);
        Some(Candidate { member: member.id, endpoint, scheme, host, port })
    };
    member.client_urls.iter().take(MAX_URLS_PER_MEMBER).filter_map(parse).collect()
}

/// Returns the first item of each group, then the second one of each, and so on, and at most [`MAX_ADDRESSES`].
fn one_by_one<T>(groups: Vec<Vec<T>>) -> Vec<T> {
    let mut groups: Vec<_> = groups.into_iter().map(Vec::into_iter).collect();
    let mut items = Vec::new();
    loop {
        let before = items.len();
        items.extend(groups.iter_mut().filter_map(Iterator::next).take(MAX_ADDRESSES - before));
        if items.len() == before {
            return items;
        }
    }
}

// === impl Candidate ===

impl Candidate {
    fn bracketed(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }

    /// Returns the endpoint at one address of the host. The name is not resolved again, so that the address that was
    /// checked is the one that is probed.
    fn at(&self, address: SocketAddr) -> (MemberId, Endpoint) {
        let address = match address.ip() {
            // A scope is not part of a URL.
            IpAddr::V6(ip) => format!("[{ip}]:{}", address.port()),
            IpAddr::V4(_) => address.to_string(),
        };
        let url = format!("{}://{address}", self.scheme.as_str());
        (self.member, Endpoint { url, ..self.endpoint.clone() })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use tokio::sync::watch;

    use super::*;
    use etcd_guard_core::{config::policies::Policies, snapshot::fixture::listed};
    use etcd_guard_kubernetes::{ApiReader, fake::api_server};

    fn plain() -> ClusterAccess {
        let endpoint = Endpoint {
            url: String::from("http://10.0.0.1:2379"),
            other_urls: Vec::new(),
            tls: None,
            user: None,
        };
        ClusterAccess::new([&endpoint])
    }

    fn member(n: usize, urls: &[&str]) -> ListedMember {
        ListedMember { client_urls: urls.iter().map(|url| (*url).to_owned()).collect(), ..listed(n) }
    }

    async fn select(members: &[ListedMember]) -> (Vec<(MemberId, String)>, Vec<MemberId>) {
        let gate = gate();
        let deadline = Instant::now() + Duration::from_secs(60);
        let Selection { endpoints, denied } = gate.select("prod", members, &plain(), deadline).await;
        (endpoints.into_iter().map(|(id, endpoint)| (id, endpoint.url)).collect(), denied)
    }

    fn gate() -> ProbeGate {
        let (_sender, config) = watch::channel(Arc::new(Policies::default()));
        // The endpoints of the Service `kubernetes` on a control plane of kubeadm, where etcd has the same addresses.
        let slice = json!({"endpoints": [{"addresses": ["192.0.2.1"]}], "ports": [{"port": 6443}]});
        let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
        let reader = ApiReader::new(api_server([(path, 200, slice)]));
        let configured = vec![String::from("10.96.0.1:443"), String::from("[fd00::1]:6443")];
        ProbeGate::new(config, ApiServers::new(&reader, configured))
    }

    /// The resolutions of hostile names last as long as their name server wants.
    #[tokio::test]
    async fn slow_names_of_one_namespace_delay_no_other() {
        let gate = gate();
        let mut stuck = Vec::new();
        while let Ok(permits) =
            tokio::time::timeout(Duration::from_millis(50), gate.resolutions.acquire("hostile")).await
        {
            stuck.push(permits);
        }
        assert_eq!(stuck.len(), MAX_RESOLUTIONS_OF_NAMESPACE);
        let local = [member(0, &["http://localhost:2379"])];
        let denied = async |namespace: &str| {
            let deadline = Instant::now() + Duration::from_secs(60);
            gate.select(namespace, &local, &plain(), deadline).await.denied
        };
        assert_eq!(denied("prod").await, [local[0].id], "the name was resolved");
        assert_eq!(denied("hostile").await, [], "the name was not resolved in time");
        stuck.clear();
        assert_eq!(denied("hostile").await, [local[0].id]);
        drop(gate.resolutions.of_namespace("other"));
        assert_eq!(
            gate.resolutions.by_namespace.lock().unwrap().len(),
            1,
            "namespaces without resolutions are forgotten"
        );
    }

    #[tokio::test]
    async fn selects_first_address_of_each_member_first() {
        let members = [
            member(0, &["http://10.0.0.1:2379", "http://10.0.0.2:2379"]),
            member(1, &["http://[fd00::7]:2379"]),
        ];
        let (endpoints, denied) = select(&members).await;
        let urls: Vec<&str> = endpoints.iter().map(|(_, url)| url.as_str()).collect();
        assert_eq!(urls, ["http://10.0.0.1:2379", "http://[fd00::7]:2379", "http://10.0.0.2:2379"]);
        assert!(denied.is_empty());
    }

    #[tokio::test]
    async fn selects_at_most_16_addresses() {
        let members: Vec<ListedMember> =
            (0..20).map(|n| member(n, &["http://10.0.0.1:1", "http://10.0.0.1:2"])).collect();
        let (endpoints, _) = select(&members).await;
        let expected: Vec<MemberId> = members.iter().take(MAX_ADDRESSES).map(|member| member.id).collect();
        assert_eq!(endpoints.iter().map(|(id, _)| *id).collect::<Vec<_>>(), expected);
    }

    #[tokio::test]
    async fn denies_networks_and_the_api_server() {
        let urls = [
            "http://127.0.0.1:2379",
            "http://[::1]:2379",
            "http://[::ffff:127.0.0.1]:2379",
            "http://localhost:2379",
            "http://0.0.0.0:2379",
            "http://169.254.169.254:80",
            "http://10.96.0.1:443",
            "http://[fd00:0::1]:6443",
            "http://192.0.2.1:6443",
            "http://[::ffff:192.0.2.1]:6443",
        ];
        for url in urls {
            let members = [member(0, &[url])];
            assert_eq!(select(&members).await, (Vec::new(), vec![members[0].id]), "{url}");
        }
        for url in ["http://10.96.0.1:2379", "http://192.0.2.1:2379"] {
            let beside = [member(0, &["http://127.0.0.1:2379", url])];
            let (endpoints, denied) = select(&beside).await;
            assert_eq!(endpoints, [(beside[0].id, String::from(url))], "another port is probed");
            assert!(denied.is_empty(), "another address is probed");
        }
    }

    #[tokio::test]
    async fn ignores_other_schemes_and_invalid_urls() {
        let members = [member(0, &["unix://a", "https://10.0.0.1:2379", "10.0.0.1", "http://:2379"])];
        assert_eq!(select(&members).await, (Vec::new(), Vec::new()));
    }
}
