//! One pod per flavour of etcd on Kubernetes, written after its conventions: tests/data/flavours. Edge cases 13, 14, 23
//! and 24.

use super::*;

/// What is expected of a flavour's pod. All their containers are named `etcd`.
#[derive(Debug, PartialEq)]
struct Expected<'a> {
    url: &'a str,
    server_name: Option<&'a str>,
    member_name: Option<&'a str>,
    storage: Storage,
    claim: Option<&'a str>,
    /// Where certificates are looked for, in this order.
    tls: &'a [&'a str],
    login: Option<&'a str>,
}

/// Reads the pod of a flavour.
fn pod(yaml: &str) -> Pod {
    serde_saphyr::from_str(yaml).expect("a pod in YAML")
}

fn assert_reads(yaml: &str, expected: &Expected<'_>) {
    let pod = pod(yaml);
    let it = read(&pod, &pod.metadata.annotations).expect("it runs etcd");
    assert_eq!((it.container.as_str(), it.gap.as_deref()), ("etcd", None));
    let endpoint = it.endpoint.as_ref().expect("it has an address");
    let tls: Vec<&str> = it.wanted.tls.iter().map(|place| place.secret.as_str()).collect();
    let read = Expected {
        url: &endpoint.url,
        server_name: endpoint.tls.as_ref().map(|tls| tls.server_name.as_str()),
        member_name: it.member_name.as_deref(),
        storage: it.storage,
        claim: it.claim.as_deref(),
        tls: &tls,
        login: it.wanted.login.as_ref().map(|login| login.secret.as_str()),
    };
    assert_eq!(&read, expected);
}

macro_rules! flavour {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/flavours/", $name, ".yaml"))
    };
}

#[test]
fn bitnami() {
    assert_reads(
        flavour!("bitnami"),
        &Expected {
            url: "https://10.244.1.7:2379",
            server_name: Some("shop-etcd-1.shop-etcd-headless.prod.svc.cluster.local"),
            member_name: Some("shop-etcd-1"),
            storage: Storage::Persistent,
            claim: Some("data-shop-etcd-1"),
            tls: &[
                "shop-etcd-crt",
                "shop-etcd-client-tls",
                "shop-etcd-client-certs",
                "shop-etcd-root-client-certs",
                "shop-client-tls",
            ],
            login: Some("shop-etcd"),
        },
    );
}

#[test]
fn etcd_io_operator() {
    assert_reads(
        flavour!("etcd-operator"),
        &Expected {
            url: "https://10.244.1.8:2379",
            server_name: Some("orders-0.orders.prod.svc.cluster.local"),
            member_name: Some("orders-0"),
            storage: Storage::Persistent,
            claim: Some("etcd-data-orders-0"),
            tls: &[
                "orders-client-tls",
                "orders-client-certs",
                "orders-root-client-certs",
                "orders-server-tls",
            ],
            login: None,
        },
    );
}

#[test]
fn cozystack() {
    assert_reads(
        flavour!("cozystack"),
        &Expected {
            url: "http://10.244.1.9:2379",
            server_name: None,
            member_name: Some("cache-2"),
            storage: Storage::Ephemeral,
            claim: None,
            tls: &[],
            login: None,
        },
    );
}

/// The name that etcd was given is in its configuration file; the header tells the member all the same.
#[test]
fn druid() {
    assert_reads(
        flavour!("druid"),
        &Expected {
            url: "https://10.244.1.10:12379",
            server_name: Some("etcd-main-local"),
            member_name: None,
            storage: Storage::Persistent,
            claim: Some("main-etcd-etcd-main-1"),
            tls: &[
                "etcd-main-client",
                "etcd-main-client-tls",
                "etcd-main-client-certs",
                "etcd-main-root-client-certs",
                "ca-etcd",
                "etcd-main-server",
            ],
            login: None,
        },
    );
}

#[test]
fn kamaji() {
    assert_reads(
        flavour!("kamaji"),
        &Expected {
            url: "https://10.244.1.11:2379",
            server_name: Some("kamaji-etcd-2.kamaji-etcd.kamaji-system.svc.cluster.local"),
            member_name: Some("kamaji-etcd-2"),
            storage: Storage::Persistent,
            claim: Some("data-kamaji-etcd-2"),
            tls: &[
                "kamaji-etcd-client-tls",
                "kamaji-etcd-client-certs",
                "kamaji-etcd-root-client-certs",
                "kamaji-client-tls",
                "kamaji-etcd-certs",
            ],
            login: None,
        },
    );
}

#[test]
fn vcluster() {
    assert_reads(
        flavour!("vcluster"),
        &Expected {
            url: "https://10.244.1.12:2379",
            server_name: Some("team-a-etcd-0.team-a-etcd-headless.vcluster-team-a"),
            member_name: Some("team-a-etcd-0"),
            storage: Storage::Ephemeral,
            claim: None,
            tls: &[
                "team-a-etcd-client-tls",
                "team-a-etcd-client-certs",
                "team-a-etcd-root-client-certs",
                "team-a-client-tls",
                "vcluster-etcd-client-tls",
                "team-a-certs",
            ],
            login: None,
        },
    );
}

#[test]
fn example_of_etcd_io() {
    assert_reads(
        flavour!("etcd-io-example"),
        &Expected {
            url: "https://10.244.1.13:4379",
            server_name: Some("etcd-1.etcd"),
            member_name: Some("etcd-1"),
            storage: Storage::Persistent,
            claim: Some("etcd-data-etcd-1"),
            tls: &["etcd-client-tls", "etcd-client-certs", "etcd-root-client-certs", "etcd-server-tls"],
            login: None,
        },
    );
}

#[test]
fn short_names() {
    assert_reads(
        flavour!("short-names"),
        &Expected {
            url: "http://10.244.1.14:2379",
            server_name: None,
            member_name: Some("etcd-2"),
            storage: Storage::RemovedByHook,
            claim: Some("datadir-etcd-2"),
            tls: &[],
            login: None,
        },
    );
}

/// What lies in the flavours' Secrets, under their own names.
#[test]
fn keys_of_secrets_are_those_of_clients_before_those_of_servers() {
    let pod = pod(flavour!("vcluster"));
    let it = read(&pod, &pod.metadata.annotations).unwrap();
    let place = it.wanted.tls.last().unwrap();
    let all = crate::k8s::Secret::from([
        ("etcd-ca.crt", "CA"),
        ("etcd-server.crt", "server"),
        ("etcd-server.key", "key"),
        ("apiserver-etcd-client.crt", "client"),
        ("apiserver-etcd-client.key", "key"),
    ]);
    assert_eq!(place.pair(&all), Some(("apiserver-etcd-client.crt", "apiserver-etcd-client.key")));
    assert_eq!(place.ca(&all), Some("etcd-ca.crt"));
    let servers = crate::k8s::Secret::from([("etcd-server.crt", "server"), ("etcd-server.key", "key")]);
    assert_eq!(place.pair(&servers), Some(("etcd-server.crt", "etcd-server.key")));
}
