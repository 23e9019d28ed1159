//! Tests of the addresses of a pod.

use serde_json::json;

use super::tests::{pod, read_pod};
use crate::{
    etcd::{error::MemberError, member::Scheme, probe_result::ProbeResult},
    objects::pod::PodIp,
};

#[test]
fn all_addresses_of_pod_are_endpoints() {
    let mut pod = pod(&json!({"name": "etcd", "image": "etcd"}));
    pod.status.pod_ips = ["10.244.0.7", "fd00::7"].map(|ip| PodIp { ip: ip.to_owned() }).into();
    let endpoint = read_pod(&pod).unwrap().endpoint.unwrap();
    assert_eq!(endpoint.url, "http://10.244.0.7:2379");
    assert_eq!(endpoint.other_urls, ["http://[fd00::7]:2379"]);
}

/// Certificates name addresses without brackets.
#[test]
fn server_name_of_ipv6_url_has_no_brackets() {
    let advertised = "--advertise-client-urls=https://[fd00:0::7]:12379";
    let mut pod = pod(&json!({"name": "etcd", "image": "etcd", "command": ["etcd", advertised]}));
    pod.status.pod_ip = String::from("fd00::7");
    let endpoint = read_pod(&pod).unwrap().endpoint.unwrap();
    assert_eq!(endpoint.url, "https://[fd00::7]:12379");
    assert_eq!(endpoint.tls.unwrap().server_name, "fd00:0::7");
}

/// The settings are in a wrapper. A certificate in the flags of the wrapper shows the scheme.
#[test]
fn scheme_of_hidden_settings_is_unknown() {
    let wrapped = |args: &[&str]| {
        let args = [["start-etcd"].as_slice(), args].concat();
        read_pod(&pod(&json!({"name": "etcd", "image": "etcd-wrapper", "args": args, "ports": [{"containerPort": 2379}]}))).unwrap()
    };
    let mut member = wrapped(&[]);
    assert_eq!(member.endpoint.as_ref().unwrap().url, "http://10.244.0.7:2379");
    assert_eq!(member.possible_tls.as_ref().unwrap().server_name, "10.244.0.7");
    assert!(!member.credentials.tls.is_empty(), "Secrets are known in case that the member uses TLS");
    let mut plain = member.clone();
    member.set_scheme(Some(Scheme::Https));
    let endpoint = member.endpoint.unwrap();
    assert_eq!((endpoint.url.as_str(), endpoint.tls.is_some()), ("https://10.244.0.7:2379", true));
    plain.set_scheme(None);
    assert_eq!(plain.endpoint.unwrap().tls, None);
    assert!(plain.credentials.tls.is_empty());
    for known in ["--etcd-client-cert-path=/tls/tls.crt", "--listen-client-urls=http://0.0.0.0:2379"] {
        assert_eq!(wrapped(&[known]).possible_tls, None, "{known}");
    }
    let variable = wrapped(&["--advertise-client-urls=https://${POD_IP}:4379"]).endpoint.unwrap();
    assert_eq!(variable.url, "https://10.244.0.7:4379");
}

/// Every process at the address can reply without TLS.
#[test]
fn unproven_plain_http_receives_no_password() {
    let secret =
        json!({"name": "ETCD_ROOT_PASSWORD", "valueFrom": {"secretKeyRef": {"name": "root", "key": "p"}}});
    let mut hidden =
        pod(&json!({"name": "etcd", "image": "etcd", "command": ["/start.sh"], "env": [secret]}));
    hidden.metadata.owner_references = serde_json::from_value(json!([
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "etcd", "uid": "s", "controller": true}
    ]))
    .unwrap();
    let mut member = read_pod(&hidden).unwrap();
    assert!(member.credentials.user.is_some());
    member.set_scheme(Some(Scheme::Http));
    assert_eq!(member.credentials.user, None);
    assert!(member.problem.unwrap().contains("etcd-guard.io/endpoints=http://:2379"));
}

/// With a file, etcd ignores flags and variables.
#[test]
fn configuration_file_replaces_flags() {
    let mut filed = pod(&json!({
        "name": "etcd",
        "image": "etcd",
        "command": ["etcd", "--config-file=/etc/etcd/etcd.yaml", "--listen-client-urls=http://0.0.0.0:1"],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/etcd"}]
    }));
    filed.spec.volumes =
        serde_json::from_value(json!([{"name": "config", "configMap": {"name": "etcd-config"}}])).unwrap();
    let member = read_pod(&filed).unwrap();
    let file = member.config_file.clone().unwrap();
    assert_eq!(
        (file.object.describe("prod").as_str(), file.key.as_str()),
        ("ConfigMap prod/etcd-config", "etcd.yaml")
    );
    let content = "{name: a, listen-client-urls: 'https://0.0.0.0:4379', initial-cluster: 'a=http://a:2380,b=http://b:2380'}";
    let complete = member.with_config_file(&filed, &filed.metadata.annotations, content).unwrap();
    assert_eq!(complete.endpoint.unwrap().url, "https://10.244.0.7:4379");
    assert_eq!(
        (complete.member_name.as_deref(), complete.initial_members),
        (Some("a"), vec!["a".to_owned(), "b".to_owned()])
    );
    assert!(member.with_config_file(&filed, &filed.metadata.annotations, "no mapping").is_err());
}

#[test]
fn hostname_and_ipv6_literals_are_expected_names() {
    let urls = "--advertise-client-urls=https://other.etcd:2379,https://member.etcd.prod.svc:4379";
    let mut hosted = pod(&json!({"name": "etcd", "image": "etcd", "command": ["etcd", urls]}));
    hosted.spec.hostname = String::from("member");
    let endpoint = read_pod(&hosted).unwrap().endpoint.unwrap();
    assert_eq!(endpoint.url, "https://10.244.0.7:4379");
    assert_eq!(endpoint.tls.unwrap().server_name, "member.etcd.prod.svc");
    let mut listening = pod(
        &json!({"name": "etcd", "image": "etcd", "command": ["etcd", "--listen-client-urls=https://[::]:2379"]}),
    );
    (listening.spec.hostname, listening.spec.subdomain) = (String::from("member"), String::from("etcd"));
    assert_eq!(
        read_pod(&listening).unwrap().endpoint.unwrap().tls.unwrap().server_name,
        "member.etcd.prod.svc"
    );
    listening
        .metadata
        .annotations
        .insert(String::from("etcd-guard.io/endpoints"), String::from("https://[fd00::7]:4379"));
    let endpoint = read_pod(&listening).unwrap().endpoint.unwrap();
    assert_eq!(
        (endpoint.url.as_str(), endpoint.tls.unwrap().server_name.as_str()),
        ("https://10.244.0.7:4379", "fd00::7")
    );
}

#[test]
fn loopback_address_is_named_with_a_refused_connection() {
    let listens = |urls: &str| {
        let flag = format!("--listen-client-urls={urls}");
        read_pod(&pod(&json!({"name": "etcd", "image": "etcd", "command": ["etcd", flag]}))).unwrap()
    };
    let refused = ProbeResult::NoStatus { cause: MemberError::Refused(String::from("Connection refused")) };
    let local = listens("http://127.0.0.1:2379,http://[::1]:2379").with_problem(refused.clone());
    let text = local.cause().unwrap().to_string();
    assert!(
        matches!(local.cause(), Some(MemberError::Refused(_))),
        "the evidence of a stopped process remains"
    );
    assert!(text.contains("loopback address only") && text.contains("--listen-client-urls"), "{text}");
    assert_eq!(listens("http://127.0.0.1:2379,http://0.0.0.0:2379").with_problem(refused.clone()), refused);

    let by_default = |command: &[&str]| {
        let ports = json!([{"containerPort": 2379}]);
        let container = json!({"name": "etcd", "image": "etcd", "command": command, "ports": ports});
        let member = read_pod(&pod(&container)).unwrap().with_problem(refused.clone());
        member.cause().unwrap().to_string().contains("by default etcd listens on the loopback address only")
    };
    assert!(by_default(&[]) && by_default(&["etcd", "--name=a"]));
    assert!(!by_default(&["etcd", "--config-file=/etc/etcd.yaml"]));
    assert!(!by_default(&["etcd", "--advertise-client-urls=http://$(UNKNOWN):2379"]));
    assert!(!by_default(&["etcd-wrapper"]), "a wrapper can add flags");
}

#[test]
fn file_of_the_image_is_used_if_it_exists() {
    let mut pod = pod(&json!({
        "name": "etcd",
        "image": "bitnami/etcd",
        "env": [
            {"name": "ETCD_LISTEN_CLIENT_URLS", "value": "http://0.0.0.0:2379"},
            {"name": "ETCD_INITIAL_CLUSTER", "value": "a=http://a:2380"},
        ],
        "volumeMounts": [{"name": "config", "mountPath": "/opt/bitnami/etcd/conf/"}]
    }));
    pod.spec.volumes =
        serde_json::from_value(json!([{"name": "config", "configMap": {"name": "etcd-config"}}])).unwrap();
    let member = read_pod(&pod).unwrap();
    let file = member.config_file.clone().unwrap();
    assert_eq!((file.key.as_str(), member.is_config_file_optional), ("etcd.yaml", true));
    assert!(member.endpoint.as_ref().unwrap().url.ends_with(":2379"), "the variables apply without the file");
    assert_eq!(member.initial_members, Vec::<String>::new(), "the file may name other members");
    let content =
        "{listen-client-urls: 'http://0.0.0.0:4379', initial-cluster: 'a=http://a:2380,b=http://b:2380'}";
    let complete = member.with_config_file(&pod, &pod.metadata.annotations, content).unwrap();
    assert!(complete.endpoint.unwrap().url.ends_with(":4379"));
    assert_eq!(complete.initial_members, ["a", "b"]);
    assert!(complete.is_config_file_optional && complete.config_file == Some(file));

    pod.spec.volumes = Vec::new();
    assert_eq!(read_pod(&pod).unwrap().config_file, None);
}
