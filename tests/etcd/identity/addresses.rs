//! Pods with several addresses, and pods whose proxy accepts connections in the place of etcd.

use std::net::Ipv4Addr;

use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    cluster::Cluster,
    guarded_cluster::{GuardedPods, pod},
};

/// A loopback address at which no process listens.
const UNUSED: &str = "127.255.1.1";

/// The members listen at the second address of their pods only.
#[tokio::test]
async fn probes_all_addresses_of_a_pod() {
    let cluster = Cluster::three_members("3.6").await;
    let (leader, follower) = (cluster.leader().await, cluster.followers().await[0]);
    let with_second_address = |n: usize| {
        let mut pod = pod(&cluster, n);
        pod["status"]["podIP"] = json!(UNUSED);
        pod["status"]["podIPs"] = json!([{"ip": UNUSED}, {"ip": cluster.address(n)}]);
        pod["metadata"]["annotations"] = json!({"etcd-guard.io/leader": "transfer"});
        pod
    };
    let pods: Vec<Value> = (0..3).map(with_second_address).collect();
    let guarded = GuardedPods::start(&pods).await;
    let (reason, message) = guarded.dry_run(&pods[follower]).await;
    assert_eq!(reason, "SafeToDelete", "{message}");
    // The transfer uses the same addresses.
    let (reason, message) = guarded.delete(&pods[leader]).await;
    assert_eq!(reason, "LeaderTransferred", "{message}");
}

/// The quorum is lost, and the restart of a member that does not run may restore it.
#[tokio::test]
async fn proxy_of_stopped_member_does_not_count_as_member() {
    let mut cluster = Cluster::three_members("3.6").await;
    let mut pods: Vec<Value> = (0..3).map(|n| pod(&cluster, n)).collect();
    for (n, pod) in pods.iter_mut().enumerate().take(2) {
        cluster.kill(n);
        pod["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "proxy", "image": "proxy"}));
        pod["status"]["containerStatuses"] = json!([
            {"name": "etcd", "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
            {"name": "proxy", "state": {"running": {}}}
        ]);
    }
    let address: Ipv4Addr = cluster.address(0).parse().unwrap();
    let proxy = TcpListener::bind((address, 2379)).await.unwrap();
    tokio::spawn(async move {
        while let Ok((connection, _)) = proxy.accept().await {
            drop(connection);
        }
    });
    let guarded = GuardedPods::start(&pods).await;
    let (reason, message) = guarded.dry_run(&pods[0]).await;
    assert_eq!(reason, "MemberNotServing", "{message}");
    let (reason, message) = guarded.dry_run(&pods[2]).await;
    assert_ne!(reason, "MemberNotServing", "{message}");
}
