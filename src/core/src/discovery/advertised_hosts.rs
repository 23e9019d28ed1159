//! The hosts by which the members and clients of a cluster find each other, as far as a pod's specification shows them.

use crate::{
    discovery::{endpoint::split_authority, etcd_pod, member_settings::MemberSettings},
    objects::pod::Pod,
};

/// Settings that contain the addresses of members: URLs, and `NAME=URL` pairs.
const SETTINGS: [&str; 4] =
    ["initial-cluster", "initial-advertise-peer-urls", "advertise-client-urls", "discovery-srv"];

/// Returns the hosts in the settings of the pod's member.
pub fn advertised_hosts(pod: &Pod) -> Vec<String> {
    let Some(member) = etcd_pod::read(pod, &pod.metadata.annotations) else { return Vec::new() };
    let container = pod.lasting_containers().find(|container| container.name == member.container);
    let Some(container) = container else { return Vec::new() };
    let settings = MemberSettings::read(pod, container);
    let values = SETTINGS.iter().filter_map(|name| settings.get(name));
    values.flat_map(|value| value.split(',')).filter_map(host).map(str::to_owned).collect()
}

/// Returns the host of `URL`, `NAME=URL` or `HOST`, an IPv6 address without brackets.
fn host(address: &str) -> Option<&str> {
    let authority = address.split_once("://").map_or(address, |(_, rest)| rest);
    let authority = authority.split('/').next().unwrap_or_default();
    Some(split_authority(authority).0).filter(|host| !host.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_hosts_of_peers_and_clients() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "ea-0", "namespace": "prod"},
            "spec": {"containers": [{
                "name": "etcd",
                "image": "quay.io/coreos/etcd:v3.6.16",
                "command": ["etcd", "--initial-cluster=ea=http://ea:2380,eb=http://eb.prod.svc:2380/",
                    "--advertise-client-urls=https://etcd-client.prod.svc:2379,http://[fd00::7]:2379"],
                "env": [{"name": "ETCD_DISCOVERY_SRV", "value": "etcd.prod.svc.cluster.local"}]
            }]}
        }))
        .unwrap();
        assert_eq!(
            advertised_hosts(&pod),
            ["ea", "eb.prod.svc", "etcd-client.prod.svc", "fd00::7", "etcd.prod.svc.cluster.local"]
        );
        assert_eq!(advertised_hosts(&Pod::default()), [""; 0]);
    }
}
