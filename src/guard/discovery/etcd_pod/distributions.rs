//! One pod per distribution of etcd, written after its conventions, in tests/data/flavours. Edge cases 13, 14, 23 and 24.

use super::*;

/// The expected member of a pod. All containers are named `etcd`.
#[derive(Debug, PartialEq)]
struct Expected<'a> {
    url: &'a str,
    server_name: Option<&'a str>,
    member_name: Option<&'a str>,
    storage: Storage,
    claim: Option<&'a str>,
    /// Secrets for certificates, in order of preference.
    tls: &'a [&'a str],
    user: Option<&'a str>,
}

/// Parses the pod of a distribution.
fn pod(yaml: &str) -> Pod {
    serde_saphyr::from_str(yaml).expect("a pod in YAML")
}

fn assert_reads(yaml: &str, expected: &Expected<'_>) {
    let pod = pod(yaml);
    let member = read(&pod, &pod.metadata.annotations).expect("the pod runs etcd");
    assert_eq!((member.container.as_str(), member.problem.as_deref()), ("etcd", None));
    let endpoint = member.endpoint.as_ref().expect("the pod has an address");
    let tls: Vec<&str> = member.credentials.tls.iter().map(|source| source.secret.as_str()).collect();
    let read = Expected {
        url: &endpoint.url,
        server_name: endpoint.tls.as_ref().map(|tls| tls.server_name.as_str()),
        member_name: member.member_name.as_deref(),
        storage: member.storage,
        claim: member.claims.first().map(String::as_str),
        tls: &tls,
        user: member.credentials.user.as_ref().map(|source| source.secret.as_str()),
    };
    assert_eq!(&read, expected);
}

macro_rules! distribution {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/flavours/", $name, ".yaml"))
    };
}

#[test]
fn bitnami() {
    assert_reads(
        distribution!("bitnami"),
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
            user: Some("shop-etcd"),
        },
    );
}

#[test]
fn etcd_io_operator() {
    assert_reads(
        distribution!("etcd-operator"),
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
            user: None,
        },
    );
}

#[test]
fn cozystack() {
    assert_reads(
        distribution!("cozystack"),
        &Expected {
            url: "http://10.244.1.9:2379",
            server_name: None,
            member_name: Some("cache-2"),
            storage: Storage::Ephemeral,
            claim: None,
            tls: &[],
            user: None,
        },
    );
}

/// The member name is in etcd's configuration file. The response header identifies the member.
#[test]
fn druid() {
    assert_reads(
        distribution!("druid"),
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
            user: None,
        },
    );
}

#[test]
fn kamaji() {
    assert_reads(
        distribution!("kamaji"),
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
            user: None,
        },
    );
}

#[test]
fn vcluster() {
    assert_reads(
        distribution!("vcluster"),
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
            user: None,
        },
    );
}

#[test]
fn example_of_etcd_io() {
    assert_reads(
        distribution!("etcd-io-example"),
        &Expected {
            url: "https://10.244.1.13:4379",
            server_name: Some("etcd-1.etcd"),
            member_name: Some("etcd-1"),
            storage: Storage::Persistent,
            claim: Some("etcd-data-etcd-1"),
            tls: &["etcd-client-tls", "etcd-client-certs", "etcd-root-client-certs", "etcd-server-tls"],
            user: None,
        },
    );
}

#[test]
fn short_names() {
    assert_reads(
        distribution!("short-names"),
        &Expected {
            url: "http://10.244.1.14:2379",
            server_name: None,
            member_name: Some("etcd-2"),
            storage: Storage::RemovedByHook,
            claim: Some("datadir-etcd-2"),
            tls: &[],
            user: None,
        },
    );
}

/// Keys as the distributions' Secrets name them.
#[test]
fn prefers_client_keys_to_server_keys() {
    let pod = pod(distribution!("vcluster"));
    let member = read(&pod, &pod.metadata.annotations).unwrap();
    let source = member.credentials.tls.last().unwrap();
    let all = crate::k8s::Secret::from([
        ("etcd-ca.crt", "CA"),
        ("etcd-server.crt", "server"),
        ("etcd-server.key", "key"),
        ("apiserver-etcd-client.crt", "client"),
        ("apiserver-etcd-client.key", "key"),
    ]);
    assert_eq!(source.pair(&all), Some(("apiserver-etcd-client.crt", "apiserver-etcd-client.key")));
    assert_eq!(source.ca(&all), Some("etcd-ca.crt"));
    let servers = crate::k8s::Secret::from([("etcd-server.crt", "server"), ("etcd-server.key", "key")]);
    assert_eq!(source.pair(&servers), Some(("etcd-server.crt", "etcd-server.key")));
}
