//! `kubectl etcd-guard version`: the releases of the program and of the guard.

use serde_json::{Value, json};

use test_support::{guard::cli, guarded_cluster::GuardedCluster};

const RELEASE: &str = env!("CARGO_PKG_VERSION");

#[tokio::test]
async fn version_has_client_and_each_server() {
    let mut etcd = GuardedCluster::start().await;
    let printed = cli::run(&etcd, "version", &[]).await;
    let replica = format!("the replica at http://{}/", etcd.guard.http());
    let expected = format!("Client Version: {RELEASE}\nServer Version: {RELEASE} ({replica})\n");
    assert_eq!((printed.status, printed.stdout), (Some(0), expected));
    let expected = json!({"clientVersion": RELEASE, "servers": [{"replica": replica, "version": RELEASE}]});
    let (status, releases) = cli::json(&etcd, "version", &[]).await;
    assert_eq!((status, &releases), (Some(0), &expected));
    let yaml = cli::run(&etcd, "version", &["-o", "yaml"]).await;
    assert_eq!(serde_saphyr::from_str::<Value>(&yaml.stdout).unwrap(), expected);

    etcd.guard.kill();
    let without_server = cli::run(&etcd, "version", &[]).await;
    assert_eq!(without_server.status, Some(2), "{without_server:?}");
    assert_eq!(without_server.stdout, format!("Client Version: {RELEASE}\n"));
    assert!(without_server.stderr.starts_with("error: the replica at http"), "{without_server:?}");
    let client = cli::run(&etcd, "version", &["--client"]).await;
    assert_eq!((client.status, client.stderr.as_str()), (Some(0), ""), "{client:?}");
    etcd.guard.restart().await;
}
