//! Where a member listens to its clients.

use std::collections::BTreeMap;

use http::Uri;

use super::{DEFAULT_CLIENT_PORT, is_own_host, settings::Settings};
use crate::{
    etcd::{Endpoint, Tls},
    k8s::pod::{Container, Pod},
};

/// Where the members listen, if the guard would think otherwise: a URL whose host is the name in the certificate, with
/// `$(POD_NAME)` and `$(POD_NAMESPACE)` in it, or none as in `https://:2379`.
pub(super) const ANNOTATION: &str = "etcd-guard.io/endpoints";

/// Scheme, port, and the host that a certificate is checked against.
struct Listener {
    scheme: String,
    host: Option<String>,
    port: u16,
}

/// The address of the living pod, never its DNS name: after a forced deletion the name may still lead to the old,
/// dying process. A certificate is checked against the name that is advertised. An error says what is missing.
pub(super) fn read(
    pod: &Pod,
    container: &Container,
    settings: &Settings,
    annotations: &BTreeMap<String, String>,
) -> Result<Endpoint, String> {
    let listener = match annotations.get(ANNOTATION) {
        Some(template) => Listener::of_template(pod, template)?,
        None => Listener::of_pod(pod, container, settings),
    };
    let ip = Some(pod.status.pod_ip.as_str()).filter(|ip| !ip.is_empty()).ok_or("the pod has no address")?;
    let address = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
    let Listener { scheme, host, port } = listener;
    let tls = (scheme == "https").then(|| Tls {
        server_name: host.unwrap_or_else(|| dns_name(pod, ip)),
        ca: None,
        identity: None,
    });
    Ok(Endpoint { url: format!("{scheme}://{address}:{port}"), tls, user: None })
}

/// The name that a headless Service gives the pod, which is what certificates are made for.
fn dns_name(pod: &Pod, ip: &str) -> String {
    let (name, namespace) = (&pod.metadata.name, &pod.metadata.namespace);
    match pod.spec.subdomain.as_str() {
        "" => ip.to_owned(),
        service => format!("{name}.{service}.{namespace}.svc"),
    }
}

fn urls(settings: &Settings, flag: &str) -> Vec<Uri> {
    let list = settings.get(flag).unwrap_or_default();
    let is_served = |url: &Uri| matches!(url.scheme_str(), Some("http" | "https"));
    list.split(',').filter_map(|url| url.trim().parse().ok()).filter(is_served).collect()
}

fn is_loopback(url: &Uri) -> bool {
    url.host().is_some_and(|host| host == "localhost" || host == "[::1]" || host.starts_with("127."))
}

// === impl Listener ===

impl Listener {
    fn of_pod(pod: &Pod, container: &Container, settings: &Settings) -> Self {
        let advertised = urls(settings, "advertise-client-urls");
        let is_own = |url: &&Uri| {
            url.host().is_some_and(|host| is_own_host(&pod.metadata.name, &pod.status.pod_ip, host))
        };
        let own = advertised.iter().find(is_own);
        let listened = urls(settings, "listen-client-urls");
        // Without an advertised URL of its own, a member still tells by where it listens which port and scheme to take.
        let for_others = listened.iter().find(|url| !is_loopback(url)).or_else(|| listened.first());
        let named = own.or_else(|| advertised.first());
        // A member whose settings lie in a file says by its other flags whether it speaks TLS, and to which name.
        let has_certificate =
            settings.get("cert-file").or_else(|| settings.get("etcd-client-cert-path")).is_some();
        let default = if has_certificate { "https" } else { "http" };
        let host = named.and_then(Uri::host).or_else(|| settings.get("etcd-server-name"));
        match own.or(for_others).or_else(|| advertised.first()) {
            Some(url) => Self {
                scheme: url.scheme_str().unwrap_or(default).to_owned(),
                host: host.map(str::to_owned),
                port: url.port_u16().unwrap_or(DEFAULT_CLIENT_PORT),
            },
            None => {
                Self { scheme: default.to_owned(), host: host.map(str::to_owned), port: port_of(container) }
            }
        }
    }

    fn of_template(pod: &Pod, template: &str) -> Result<Self, String> {
        let text = template
            .trim()
            .replace("$(POD_NAME)", &pod.metadata.name)
            .replace("$(POD_NAMESPACE)", &pod.metadata.namespace);
        let wrong = || {
            format!(
                "annotation {ANNOTATION}={template:?} is no URL such as https://:2379 or https://$(POD_NAME).etcd:2379"
            )
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let (host, port) = match rest.trim_end_matches('/').rsplit_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| wrong())?),
            None => (rest.trim_end_matches('/'), DEFAULT_CLIENT_PORT),
        };
        let is_host = host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'));
        if !matches!(scheme, "http" | "https") || !is_host {
            return Err(wrong());
        }
        let host = Some(host.to_owned()).filter(|host| !host.is_empty());
        Ok(Self { scheme: scheme.to_owned(), host, port })
    }
}

/// The port that the container names its client port, or etcd's own.
fn port_of(container: &Container) -> u16 {
    let named = container.ports.iter().find(|port| matches!(port.name.as_str(), "client" | "etcd-client"));
    named.map_or(DEFAULT_CLIENT_PORT, |port| port.container_port)
}
