//! The schemes and the credentials with which a cluster is probed, and the limits of their use for other processes.
//!
//! Credentials travel only over the scheme and the CA of the cluster: a pod of another owner, or a URL of the member list,
//! must not choose weaker ones.

use etcd_guard_core::{
    discovery::etcd_pod::EtcdPod,
    etcd::{
        endpoint::{Endpoint, Tls, User},
        member::{ListedMember, Scheme},
    },
};

/// The access of the request's cluster, from the endpoints of its own pods.
#[derive(Clone, Debug, Default)]
pub struct ClusterAccess {
    /// The settings of TLS connections, if pods of the cluster use TLS.
    tls: Option<(Tls, Option<User>)>,
    /// Whether pods of the cluster use plain HTTP.
    is_plain: bool,
    /// The user of the first of these pods.
    plain_user: Option<User>,
}

// === impl ClusterAccess ===

impl ClusterAccess {
    /// Returns the access of the cluster that has these endpoints.
    pub fn new<'a>(endpoints: impl IntoIterator<Item = &'a Endpoint>) -> Self {
        let mut access = Self::default();
        for Endpoint { tls, user, .. } in endpoints {
            match tls {
                Some(tls)
                    if access.tls.as_ref().is_none_or(|(known, _)| strictness(tls) > strictness(known)) =>
                {
                    access.tls = Some((tls.clone(), user.clone()));
                }
                None if !access.is_plain => (access.is_plain, access.plain_user) = (true, user.clone()),
                _ => {}
            }
        }
        access
    }

    /// Returns the endpoint without a URL for a member of the cluster with this scheme and host, or `None` if the
    /// cluster does not use the scheme.
    pub(super) fn endpoint(&self, scheme: Scheme, host: &str) -> Option<Endpoint> {
        let (tls, user) = match scheme {
            Scheme::Https => {
                let (tls, user) = self.tls.clone()?;
                (Some(Tls { server_name: host.to_owned(), ..tls }), user)
            }
            // A password that is sent to members over TLS must not be sent without TLS.
            Scheme::Http if self.is_plain => (None, self.plain_user.clone().filter(|_| self.tls.is_none())),
            Scheme::Http => return None,
        };
        Some(Endpoint { url: String::new(), other_urls: Vec::new(), tls, user })
    }

    /// Limits the credentials for pods of other owners. Their certificates must be signed by the CA of the cluster. Over
    /// plain HTTP they receive a password only if the cluster uses no TLS, or if a voter advertises plain HTTP: `voters`
    /// are the voters that these pods may run.
    pub(crate) fn limit<P>(&self, pods: &mut [(P, EtcdPod)], voters: &[ListedMember]) {
        let Some((cluster_tls, _)) = &self.tls else {
            // The annotation of another owner's pod must not replace the proof of a certificate.
            for tls in pods.iter_mut().filter_map(|(_, pod)| pod.endpoint.as_mut()?.tls.as_mut()) {
                tls.accepts_any_certificate = false;
            }
            return;
        };
        let is_mixed = self.is_plain || voters.iter().any(|voter| voter.advertises(Scheme::Http));
        for endpoint in pods.iter_mut().filter_map(|(_, pod)| pod.endpoint.as_mut()) {
            match &mut endpoint.tls {
                Some(tls) => {
                    tls.ca.clone_from(&cluster_tls.ca);
                    tls.accepts_any_certificate = cluster_tls.accepts_any_certificate;
                    if tls.identity.is_none() {
                        tls.identity.clone_from(&cluster_tls.identity);
                    }
                }
                None if is_mixed => {}
                None => endpoint.user = None,
            }
        }
    }
}

/// The strictness of a verification. The endpoint of a pod with missing Secrets has no CA.
fn strictness(tls: &Tls) -> u8 {
    match (tls.accepts_any_certificate, &tls.ca) {
        (true, _) => 0,
        (false, None) => 1,
        (false, Some(_)) => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etcd_guard_core::{discovery::etcd_pod, objects::pod::Pod};

    fn endpoint(url: &str, ca: Option<&[u8]>) -> Endpoint {
        let tls = url.starts_with("https").then(|| Tls {
            server_name: String::from("etcd-0.etcd"),
            ca: ca.map(Into::into),
            accepts_any_certificate: false,
            identity: None,
        });
        let user = Some(User { name: String::from("root"), password: "secret".into() });
        Endpoint { url: url.to_owned(), other_urls: Vec::new(), tls, user }
    }

    #[test]
    fn sends_no_password_over_http_if_members_use_tls() {
        let (tls, plain) =
            (endpoint("https://10.0.0.1:2379", Some(b"ca")), endpoint("http://10.0.0.2:2379", None));
        let only_tls = ClusterAccess::new([&tls]);
        assert!(only_tls.endpoint(Scheme::Http, "etcd").is_none());
        let over_tls = only_tls.endpoint(Scheme::Https, "other").unwrap();
        assert_eq!(over_tls.user, tls.user);
        let over_tls = over_tls.tls.unwrap();
        assert_eq!((over_tls.server_name.as_str(), over_tls.ca), ("other", tls.tls.clone().unwrap().ca));
        let mixed = ClusterAccess::new([&tls, &plain]);
        assert_eq!(mixed.endpoint(Scheme::Http, "etcd").unwrap().user, None);
        let only_plain = ClusterAccess::new([&plain]);
        assert_eq!(only_plain.endpoint(Scheme::Http, "etcd").unwrap().user, plain.user);
        assert!(only_plain.endpoint(Scheme::Https, "etcd").is_none());
    }

    /// Returns a pod of another owner with this endpoint.
    fn other_pod(endpoint: Endpoint) -> EtcdPod {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "etcd-1", "namespace": "prod"},
            "spec": {"containers": [{"name": "etcd", "image": "etcd"}]},
        }))
        .unwrap();
        let member = etcd_pod::read(&pod, &pod.metadata.annotations).unwrap();
        EtcdPod { endpoint: Some(endpoint), ..member }
    }

    /// An annotation of the other pod can name a Secret with another CA.
    #[test]
    fn pods_of_other_owners_need_the_ca_of_the_cluster() {
        let access = ClusterAccess::new([&endpoint("https://10.0.0.1:2379", Some(b"ca"))]);
        let mut others = [
            ((), other_pod(endpoint("https://10.0.0.2:2379", Some(b"other ca")))),
            ((), other_pod(endpoint("http://10.0.0.3:2379", None))),
        ];
        let plain_voter = ListedMember {
            client_urls: vec![String::from("http://etcd-1:2379")],
            ..etcd_guard_core::snapshot::fixture::listed(1)
        };
        access.limit(&mut others, &[plain_voter]);
        assert!(others[1].1.endpoint.as_ref().unwrap().user.is_some(), "a voter uses plain HTTP");
        access.limit(&mut others, &[]);
        let [tls, plain] = others.map(|((), pod)| pod.endpoint.unwrap());
        assert_eq!(tls.tls.unwrap().ca.as_deref(), Some(&b"ca"[..]));
        assert_eq!((tls.user.is_some(), plain.user), (true, None));
    }

    #[test]
    fn own_certificates_of_other_owners_are_not_accepted() {
        let mut accepting = endpoint("https://10.0.0.2:2379", None);
        accepting.tls.as_mut().unwrap().accepts_any_certificate = true;
        let (plain, strict) =
            (endpoint("http://10.0.0.1:2379", None), endpoint("https://10.0.0.3:2379", None));
        for cluster in [vec![&plain], vec![&strict], vec![&strict, &accepting], vec![&accepting, &strict]] {
            let mut others = [((), other_pod(accepting.clone()))];
            ClusterAccess::new(cluster).limit(&mut others, &[]);
            let [((), other)] = others;
            assert!(!other.endpoint.unwrap().tls.unwrap().accepts_any_certificate);
        }
        let mut others = [((), other_pod(endpoint("https://10.0.0.4:2379", None)))];
        ClusterAccess::new([&accepting]).limit(&mut others, &[]);
        let [((), other)] = others;
        assert!(other.endpoint.unwrap().tls.unwrap().accepts_any_certificate, "as the cluster's own pods");
    }

    #[test]
    fn prefers_endpoint_with_ca() {
        let (without, with) =
            (endpoint("https://10.0.0.1:2379", None), endpoint("https://10.0.0.2:2379", Some(b"ca")));
        let access = ClusterAccess::new([&without, &with]);
        assert!(access.endpoint(Scheme::Https, "etcd").unwrap().tls.unwrap().ca.is_some());
    }
}
