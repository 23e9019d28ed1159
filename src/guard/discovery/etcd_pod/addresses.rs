//! Tests of the addresses of a pod.

use serde_json::json;

use super::tests::{pod, read_pod};
use crate::k8s::pod::PodIp;

/// Edge case 61.
#[test]
fn all_addresses_of_pod_are_endpoints() {
    let mut pod = pod(&json!({"name": "etcd", "image": "etcd"}));
    pod.status.pod_ips = ["10.244.0.7", "fd00::7"].map(|ip| PodIp { ip: ip.to_owned() }).into();
    let endpoint = read_pod(&pod).unwrap().endpoint.unwrap();
    assert_eq!(endpoint.url, "http://10.244.0.7:2379");
    assert_eq!(endpoint.other_urls, ["http://[fd00::7]:2379"]);
}

/// Edge case 61: certificates name addresses without brackets.
#[test]
fn server_name_of_ipv6_url_has_no_brackets() {
    let advertised = "--advertise-client-urls=https://[fd00:0::7]:12379";
    let mut pod = pod(&json!({"name": "etcd", "image": "etcd", "command": ["etcd", advertised]}));
    pod.status.pod_ip = String::from("fd00::7");
    let endpoint = read_pod(&pod).unwrap().endpoint.unwrap();
    assert_eq!(endpoint.url, "https://[fd00::7]:12379");
    assert_eq!(endpoint.tls.unwrap().server_name, "fd00:0::7");
}
