//! The client endpoint of a member.

mod client_url;

use std::{collections::BTreeMap, net::IpAddr};

pub(super) use self::client_url::split_authority;
use self::client_url::{ClientUrl, client_urls, is_host};
use crate::{
    annotations::ENDPOINTS,
    discovery::{member_settings::MemberSettings, recognition::DEFAULT_CLIENT_PORT},
    etcd::{
        endpoint::{Endpoint, Tls},
        member::Scheme,
    },
    membership::identity::is_own_host,
    objects::pod::{Container, Pod},
};

/// The possible reason why a member cannot be reached: only containers of its pod reach the loopback address. A proxy in the
/// pod can still forward connections to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loopback {
    /// All URLs at which the member listens have a loopback address.
    Configured,
    /// The settings contain no client URL, so that etcd's default applies.
    Default,
}

/// The endpoint of a member, as far as the specification shows it.
#[derive(Debug, Default)]
pub struct Reach {
    /// The client endpoint, at the pod's addresses.
    pub endpoint: Option<Endpoint>,
    /// The TLS settings that apply if the member listens with TLS, for an endpoint of unknown scheme.
    pub possible_tls: Option<Tls>,
    /// Present if the member listens on the loopback address only.
    pub loopback: Option<Loopback>,
    /// Whether a setting shows the address at which the member listens.
    pub is_listener_stated: bool,
}

/// The scheme and the port of a client URL, and the host that the member's certificate must name.
struct Listener {
    /// `None` if the specification does not show it.
    scheme: Option<Scheme>,
    host: Option<String>,
    port: u16,
    loopback: Option<Loopback>,
    is_stated: bool,
}

/// Returns the endpoint at the pod's addresses. The DNS name is not dialled, because it can still resolve to the
/// terminating process after a forced deletion. The certificate is verified against the advertised name. The error
/// states the missing or invalid part.
pub fn read(
    pod: &Pod,
    container: &Container,
    settings: &MemberSettings,
    annotations: &BTreeMap<String, String>,
) -> Result<Reach, String> {
    let listener = match annotations.get(ENDPOINTS) {
        Some(template) => Listener::from_template(pod, template)?,
        None => Listener::from_pod(pod, container, settings),
    };
    let mut addresses = pod.addresses();
    let ip = addresses.next().ok_or("the pod has no IP address")?;
    let Listener { scheme, host, port, loopback, is_stated } = listener;
    let url = |ip: &str| {
        let address = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
        format!("{}://{address}:{port}", scheme.unwrap_or(Scheme::Http).as_str())
    };
    let server_name = host.unwrap_or_else(|| dns_name(pod, ip));
    let tls = Tls { server_name, ca: None, accepts_any_certificate: false, identity: None };
    let (tls, possible_tls) = match scheme {
        Some(Scheme::Https) => (Some(tls), None),
        Some(Scheme::Http) => (None, None),
        None => (None, Some(tls)),
    };
    let endpoint = Endpoint { url: url(ip), other_urls: addresses.map(url).collect(), tls, user: None };
    Ok(Reach { endpoint: Some(endpoint), possible_tls, loopback, is_listener_stated: is_stated })
}

/// Returns the DNS name that a headless Service gives the pod. Certificates of members usually carry this name.
fn dns_name(pod: &Pod, ip: &str) -> String {
    let spec = &pod.spec;
    let name = if spec.hostname.is_empty() { &pod.metadata.name } else { &spec.hostname };
    match spec.subdomain.as_str() {
        "" => ip.to_owned(),
        service => format!("{name}.{service}.{}.svc", pod.metadata.namespace),
    }
}

/// Whether this host is the pod's own: its name, its hostname, a DNS name that begins with one of them, or its address.
fn is_host_of(pod: &Pod, host: &str) -> bool {
    let hostname = &pod.spec.hostname;
    is_own_host(&pod.metadata.name, "", host)
        || (!hostname.is_empty() && is_own_host(hostname, "", host))
        || pod.addresses().any(|ip| is_address(host, ip))
}

/// Whether two texts are the same address. An IPv6 address has several forms.
fn is_address(host: &str, ip: &str) -> bool {
    host == ip || host.parse::<IpAddr>().is_ok_and(|host| ip.parse() == Ok(host))
}

// === impl Loopback ===

impl Loopback {
    /// The reason why the member cannot be reached, and the remedy.
    pub fn explanation(self) -> &'static str {
        match self {
            Self::Configured => {
                "etcd listens on the loopback address only: add an address of the pod to --listen-client-urls, for example \
                 https://0.0.0.0:2379"
            }
            Self::Default => {
                "no setting of the pod contains a client URL, and by default etcd listens on the loopback address only: set \
                 --listen-client-urls and --advertise-client-urls"
            }
        }
    }
}

// === impl Listener ===

impl Listener {
    fn from_pod(pod: &Pod, container: &Container, settings: &MemberSettings) -> Self {
        let urls = |flag: &str| client_urls(settings.get(flag).unwrap_or_default());
        let (advertised, listened) = (urls("advertise-client-urls"), urls("listen-client-urls"));
        let host = |url: &ClientUrl| url.host.clone();
        let own_url = advertised.iter().find(|url| host(url).is_some_and(|host| is_host_of(pod, &host)));
        // If every advertised URL names another host, the listen URLs still provide the port and the scheme.
        let reachable = listened.iter().find(|url| !url.is_loopback()).or_else(|| listened.first());
        let named = own_url.and_then(host).or_else(|| advertised.iter().find_map(host));
        // etcd-wrapper reads its settings from a file; its own flags name the certificate and the server name.
        let certificate = settings.get("cert-file").or_else(|| settings.get("etcd-client-cert-path"));
        let has_certificate = certificate.is_some() || settings.issues_own_certificate();
        let is_loopback = !listened.is_empty() && listened.iter().all(ClientUrl::is_loopback);
        // A URL with a variable of unknown value counts as a URL.
        let is_default =
            ["advertise-client-urls", "listen-client-urls"].iter().all(|flag| settings.get(flag).is_none());
        let url = own_url.or(reachable).or_else(|| advertised.first());
        Self {
            scheme: url.map(|url| url.scheme).or(has_certificate.then_some(Scheme::Https)),
            host: named.or_else(|| settings.get("etcd-server-name").map(str::to_owned)),
            port: match url {
                Some(url) => url.port.unwrap_or(DEFAULT_CLIENT_PORT),
                None => client_port(container),
            },
            loopback: if is_loopback {
                Some(Loopback::Configured)
            } else {
                is_default.then_some(Loopback::Default)
            },
            // An advertised URL alone does not change the address at which etcd listens.
            is_stated: listened.iter().any(|url| !url.is_loopback()),
        }
    }

    fn from_template(pod: &Pod, template: &str) -> Result<Self, String> {
        let text = template
            .trim()
            .replace("$(POD_NAME)", &pod.metadata.name)
            .replace("$(POD_NAMESPACE)", &pod.metadata.namespace);
        let invalid = || {
            format!(
                "annotation {ENDPOINTS}={template:?} is not a URL such as https://:2379 or https://$(POD_NAME).etcd:2379"
            )
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(invalid)?;
        let scheme = match scheme {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return Err(invalid()),
        };
        let (host, port) = split_authority(rest.trim_end_matches('/'));
        let port = match port {
            Some(port) => port.parse().map_err(|_| invalid())?,
            None => DEFAULT_CLIENT_PORT,
        };
        if !is_host(host) {
            return Err(invalid());
        }
        let host = Some(host.to_owned()).filter(|host| !host.is_empty());
        Ok(Self { scheme: Some(scheme), host, port, loopback: None, is_stated: true })
    }
}

/// Returns the container port that is named as the client port, or etcd's default.
fn client_port(container: &Container) -> u16 {
    let named = container.ports.iter().find(|port| matches!(port.name.as_str(), "client" | "etcd-client"));
    named.map_or(DEFAULT_CLIENT_PORT, |port| port.container_port)
}
