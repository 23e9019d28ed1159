//! The `guard.probe` section: the addresses at which members are probed.

use std::net::IpAddr;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::Deserialize;

/// Networks that a URL of a member list cannot reach by default: loopback and link-local addresses, which belong to the
/// guard's own pod and node, and the services that describe a machine and return its credentials.
///
/// Link-local are the metadata services of AWS, Google Cloud, Azure, Oracle Cloud and others at
/// 169.254.169.254, and those of AWS for containers and pods at 169.254.170.2 and 169.254.170.23.
const DEFAULT_DENIED: [&str; 9] = [
    "127.0.0.0/8",
    "::1/128",
    "169.254.0.0/16",
    "fe80::/10",
    // AWS: the network of the services for an instance; fd00:ec2::254 returns metadata, fd00:ec2::23 credentials of pods.
    "fd00:ec2::/32",
    // Google Cloud: metadata over IPv6.
    "fd20:ce::254/128",
    // Alibaba Cloud: metadata.
    "100.100.100.200/32",
    // Azure: the host of the machine, with the configuration of the guest.
    "168.63.129.16/32",
    // Oracle Cloud: metadata of older instances.
    "192.0.0.192/32",
];

/// Where the guard asks members.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Probe {
    /// Networks where the guard never follows a client URL of a member list. Your list replaces the default. Members in
    /// pods are always asked.
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
    fn denies_local_and_metadata_addresses_by_default() {
        let denies = |probe: &Probe, address: &str| probe.denies(address.parse().unwrap());
        let default = Probe::default();
        assert_eq!(default.denied_networks.len(), DEFAULT_DENIED.len());
        let local_or_metadata = [
            ("loopback", "127.0.0.1"),
            ("loopback", "127.9.8.7"),
            ("loopback", "::1"),
            ("loopback, mapped", "::ffff:127.0.0.1"),
            ("link-local", "fe80::1"),
            ("unspecified", "0.0.0.0"),
            ("unspecified", "::"),
            ("multicast", "224.0.0.1"),
            ("metadata of AWS, Google Cloud, Azure, Oracle Cloud", "169.254.169.254"),
            ("metadata, mapped", "::ffff:169.254.169.254"),
            ("metadata of AWS over IPv6", "fd00:ec2::254"),
            ("credentials of containers on AWS", "169.254.170.2"),
            ("credentials of pods on AWS", "169.254.170.23"),
            ("credentials of pods on AWS over IPv6", "fd00:ec2::23"),
            ("metadata of Google Cloud over IPv6", "fd20:ce::254"),
            ("metadata of Alibaba Cloud", "100.100.100.200"),
            ("metadata of Alibaba Cloud, mapped", "::ffff:100.100.100.200"),
            ("the host of a machine on Azure", "168.63.129.16"),
            ("metadata of older instances on Oracle Cloud", "192.0.0.192"),
        ];
        for (class, address) in local_or_metadata {
            assert!(denies(&default, address), "{class}: {address}");
        }
        for address in
            ["10.244.0.7", "fd00::7", "fd20:ce::1", "203.0.113.5", "100.100.100.201", "168.63.129.17"]
        {
            assert!(!denies(&default, address), "{address}");
        }
        let none = Probe { denied_networks: Vec::new() };
        assert!(!denies(&none, "127.0.0.1") && denies(&none, "0.0.0.0"));
    }
}
