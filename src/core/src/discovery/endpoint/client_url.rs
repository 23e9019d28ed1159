//! URLs of clients in the settings of a member. A part that contains a variable of unknown value is unknown.

use std::net::{IpAddr, Ipv6Addr};

use crate::etcd::member::Scheme;

/// A URL of clients, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClientUrl {
    /// The scheme.
    pub scheme: Scheme,
    /// The host, an IPv6 address without brackets. `None` for an unspecified address and for a variable.
    pub host: Option<String>,
    /// The port.
    pub port: Option<u16>,
}

/// Returns the URLs of a list in a setting. URLs of other schemes, and texts that are no URL, are omitted.
pub(super) fn client_urls(list: &str) -> Vec<ClientUrl> {
    list.split(',').filter_map(|url| ClientUrl::read(url.trim())).collect()
}

/// Splits `HOST`, `HOST:PORT` and `[IPV6]:PORT` into the host without brackets and the text of the port.
pub(crate) fn split_authority(authority: &str) -> (&str, Option<&str>) {
    if let Some((host, rest)) = authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return (host, rest.strip_prefix(':'));
    }
    match authority.rsplit_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    }
}

/// Whether a text is a host of a URL without brackets: an IPv6 address, or letters, digits, dots and hyphens.
pub(super) fn is_host(host: &str) -> bool {
    host.parse::<Ipv6Addr>().is_ok()
        || host.chars().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-'))
}

// === impl ClientUrl ===

impl ClientUrl {
    fn read(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return None,
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if authority.is_empty() {
            return None;
        }
        let (host, port) = split_authority(authority);
        let is_unspecified = host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified());
        let host = Some(host).filter(|host| !host.is_empty() && is_host(host) && !is_unspecified);
        Some(Self { scheme, host: host.map(str::to_owned), port: port.and_then(|port| port.parse().ok()) })
    }

    /// Whether only processes of the same host reach this address.
    pub(super) fn is_loopback(&self) -> bool {
        self.host.as_deref().is_some_and(|host| {
            host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Option<(Scheme, Option<String>, Option<u16>)> {
        ClientUrl::read(text).map(|url| (url.scheme, url.host, url.port))
    }

    #[test]
    fn reads_addresses_variables_and_schemes() {
        let host = |host: &str| Some(host.to_owned());
        assert_eq!(url("https://[fd00::7]:4379/"), Some((Scheme::Https, host("fd00::7"), Some(4379))));
        assert_eq!(url("HTTP://etcd-0.etcd"), Some((Scheme::Http, host("etcd-0.etcd"), None)));
        assert_eq!(url("https://${POD_IP}:2379"), Some((Scheme::Https, None, Some(2379))));
        assert_eq!(url("https://$(hostname"), Some((Scheme::Https, None, None)));
        assert_eq!(url("https://0.0.0.0:2379"), Some((Scheme::Https, None, Some(2379))));
        assert_eq!(url("https://[::]:2379"), Some((Scheme::Https, None, Some(2379))));
        for text in ["unix://etcd.sock", "etcd-0:2379", "", "http://"] {
            assert_eq!(url(text), None, "{text}");
        }
    }

    #[test]
    fn recognizes_loopback_addresses() {
        let is_loopback = |text: &str| ClientUrl::read(text).unwrap().is_loopback();
        for text in ["http://localhost:2379", "http://127.0.0.2:2379", "http://[::1]:2379"] {
            assert!(is_loopback(text), "{text}");
        }
        for text in ["http://0.0.0.0:2379", "http://127.example.com:2379", "http://$(POD_IP):2379"] {
            assert!(!is_loopback(text), "{text}");
        }
    }
}
