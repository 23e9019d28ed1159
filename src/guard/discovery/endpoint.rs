//! The client endpoint of a member.

use std::{collections::BTreeMap, net::IpAddr};

use http::Uri;

use crate::{
    etcd::{Endpoint, Tls, url_host},
    guard::{
        discovery::{member_settings::MemberSettings, recognition::DEFAULT_CLIENT_PORT},
        model::{annotations::ENDPOINTS, membership::identity::is_own_host},
    },
    k8s::pod::{Container, Pod},
};

/// The scheme and the port of a client URL, and the host that the member's certificate must name.
struct Listener {
    scheme: String,
    host: Option<String>,
    port: u16,
}

/// Returns the endpoint at the pod's addresses. The DNS name is not dialled, because it can still resolve to the
/// terminating process after a forced deletion. The certificate is verified against the advertised name. The error
/// states the missing or invalid part.
pub(in crate::guard) fn read(
    pod: &Pod,
    container: &Container,
    settings: &MemberSettings,
    annotations: &BTreeMap<String, String>,
) -> Result<Endpoint, String> {
    let listener = match annotations.get(ENDPOINTS) {
        Some(template) => Listener::from_template(pod, template)?,
        None => Listener::from_pod(pod, container, settings),
    };
    let mut addresses = pod.addresses();
    let ip = addresses.next().ok_or("the pod has no IP address")?;
    let Listener { scheme, host, port } = listener;
    let url = |ip: &str| {
        let address = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
        format!("{scheme}://{address}:{port}")
    };
    let tls = (scheme == "https").then(|| Tls {
        server_name: host.unwrap_or_else(|| dns_name(pod, ip)),
        ca: None,
        identity: None,
    });
    Ok(Endpoint { url: url(ip), other_urls: addresses.map(url).collect(), tls, user: None })
}

/// Returns the DNS name that a headless Service gives the pod. Certificates of members usually carry this name.
fn dns_name(pod: &Pod, ip: &str) -> String {
    let (name, namespace) = (&pod.metadata.name, &pod.metadata.namespace);
    match pod.spec.subdomain.as_str() {
        "" => ip.to_owned(),
        service => format!("{name}.{service}.{namespace}.svc"),
    }
}

fn urls(settings: &MemberSettings, flag: &str) -> Vec<Uri> {
    let list = settings.get(flag).unwrap_or_default();
    let is_http = |url: &Uri| matches!(url.scheme_str(), Some("http" | "https"));
    list.split(',').filter_map(|url| url.trim().parse().ok()).filter(is_http).collect()
}

/// Whether two texts are the same address. An IPv6 address has several forms.
fn is_address(host: &str, ip: &str) -> bool {
    host == ip || host.parse::<IpAddr>().is_ok_and(|host| ip.parse() == Ok(host))
}

fn is_loopback(url: &Uri) -> bool {
    url.host().is_some_and(|host| host == "localhost" || host == "[::1]" || host.starts_with("127."))
}

// === impl Listener ===

impl Listener {
    fn from_pod(pod: &Pod, container: &Container, settings: &MemberSettings) -> Self {
        let advertised = urls(settings, "advertise-client-urls");
        let names_pod = |url: &&Uri| {
            let is_own = |host: &str| {
                is_own_host(&pod.metadata.name, "", host) || pod.addresses().any(|ip| is_address(host, ip))
            };
            url_host(url).is_some_and(is_own)
        };
        let own_url = advertised.iter().find(names_pod);
        let listened = urls(settings, "listen-client-urls");
        // If every advertised URL names another host, the listen URLs still provide the port and the scheme.
        let reachable = listened.iter().find(|url| !is_loopback(url)).or_else(|| listened.first());
        let named = own_url.or_else(|| advertised.first());
        // etcd-wrapper reads its settings from a file; its own flags name the certificate and the server name.
        let has_certificate =
            settings.get("cert-file").or_else(|| settings.get("etcd-client-cert-path")).is_some();
        let default = if has_certificate { "https" } else { "http" };
        let host = named.and_then(url_host).or_else(|| settings.get("etcd-server-name"));
        match own_url.or(reachable).or_else(|| advertised.first()) {
            Some(url) => Self {
                scheme: url.scheme_str().unwrap_or(default).to_owned(),
                host: host.map(str::to_owned),
                port: url.port_u16().unwrap_or(DEFAULT_CLIENT_PORT),
            },
            None => Self {
                scheme: default.to_owned(),
                host: host.map(str::to_owned),
                port: client_port(container),
            },
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
        let (host, port) = match rest.trim_end_matches('/').rsplit_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| invalid())?),
            None => (rest.trim_end_matches('/'), DEFAULT_CLIENT_PORT),
        };
        let is_host = host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'));
        if !matches!(scheme, "http" | "https") || !is_host {
            return Err(invalid());
        }
        let host = Some(host.to_owned()).filter(|host| !host.is_empty());
        Ok(Self { scheme: scheme.to_owned(), host, port })
    }
}

/// Returns the container port that is named as the client port, or etcd's default.
fn client_port(container: &Container) -> u16 {
    let named = container.ports.iter().find(|port| matches!(port.name.as_str(), "client" | "etcd-client"));
    named.map_or(DEFAULT_CLIENT_PORT, |port| port.container_port)
}
