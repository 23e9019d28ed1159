//! The `guard.probe` section: the addresses at which members are probed.

use std::net::IpAddr;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::Deserialize;

/// Networks that a URL of a member list cannot reach by default: loopback and link-local addresses, which belong to the
/// guard's own pod and node.
const DEFAULT_DENIED: [&str; 4] = ["127.0.0.0/8", "::1/128", "169.254.0.0/16", "fe80::/10"];

/// The addresses at which members are probed.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Probe {
    /// Networks in which no client URL of a member list is probed. Addresses of pods are always probed.
    pub denied_networks: Vec<Network>,
}

/// A network in CIDR notation, such as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub struct Network(IpNet);

// === impl Probe ===

impl Default for Probe {
    fn default() -> Self {
        let networks = DEFAULT_DENIED.iter().filter_map(|network| network.parse().ok());
        Self { denied_networks: networks.map(Network).collect() }
    }
}

impl Probe {
    /// Whether no client URL at this address is probed. An unspecified address is a loopback address to Linux, and no
    /// member has a multicast address.
    #[must_use]
    pub fn denies(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_unspecified()
            || address.is_multicast()
            || self.denied_networks.iter().any(|Network(network)| network.contains(&address))
    }
}

// === impl Network ===

impl TryFrom<String> for Network {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let network = text.parse().map(Self);
        network.map_err(|_| format!("{text:?} is not a network in CIDR notation such as 10.0.0.0/8"))
    }
}

impl serde::Serialize for Network {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denies_loopback_and_link_local_by_default() {
        let denies = |probe: &Probe, address: &str| probe.denies(address.parse().unwrap());
        let default = Probe::default();
        assert_eq!(default.denied_networks.len(), DEFAULT_DENIED.len());
        for address in [
            "127.0.0.1",
            "127.9.8.7",
            "::1",
            "169.254.169.254",
            "fe80::1",
            "::ffff:127.0.0.1",
            "0.0.0.0",
            "::",
            "224.0.0.1",
        ] {
            assert!(denies(&default, address), "{address}");
        }
        for address in ["10.244.0.7", "fd00::7", "203.0.113.5"] {
            assert!(!denies(&default, address), "{address}");
        }
        let none = Probe { denied_networks: Vec::new() };
        assert!(!denies(&none, "127.0.0.1") && denies(&none, "0.0.0.0"));
    }
}
