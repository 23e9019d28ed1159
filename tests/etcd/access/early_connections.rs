//! Connections that the guard opens while it reads from the API server.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::{cluster::START_TIMEOUT, guarded_cluster::GuardedPods, untrusted::fan_out::pod};
use test_support::{
    etcd::fake_member::{FakeListed, FakeMember, FakeReplies},
    wait::wait_until,
};

/// Number of clusters with one member each. It exceeds the maximum number of pooled connections of evaluations.
const CLUSTERS: u64 = 110;

/// Starts the only member of cluster `etcd-N`, and returns it with its pod.
async fn start_member(n: u64) -> (FakeMember, Value) {
    let name = format!("etcd-{n}-0");
    let listed = FakeListed {
        id: 1,
        name: name.clone(),
        peer_urls: vec![format!("http://{name}.example:2380")],
        client_urls: vec![format!("http://{name}.example:2379")],
    };
    let replies =
        FakeReplies { cluster_id: 100 + n, member_id: 1, leader: 1, term: 3, members: vec![listed] };
    let member = FakeMember::start(SocketAddr::from(([127, 0, 0, 1], 0)), replies).await;
    let mut pod = pod(&name, member.address());
    let owner = &mut pod["metadata"]["ownerReferences"][0];
    (owner["name"], owner["uid"]) = (json!(format!("etcd-{n}")), json!(format!("set-{n}")));
    (member, pod)
}

#[tokio::test]
async fn connects_while_the_pods_are_read() {
    let mut started = Vec::new();
    for n in 0..CLUSTERS {
        started.push(start_member(n).await);
    }
    let (members, pods): (Vec<_>, Vec<_>) = started.into_iter().unzip();
    let guarded = GuardedPods::start(&pods).await;
    for pod in &pods {
        let name = pod["metadata"]["name"].as_str().unwrap();
        guarded.objects.put(&format!("/api/v1/namespaces/prod/pods/{name}"), 200, pod.clone());
    }
    let first = guarded.dry_run(&pods[0]).await;
    assert_eq!(members[0].connections(), 1, "{first:?}");
    for pod in &pods[1..] {
        guarded.dry_run_at_once(pod).await;
    }
    guarded.objects.hold_reads(true);
    let connects = async {
        wait_until("the guard connects while the API server does not answer", START_TIMEOUT, async || {
            members[0].connections() == 2
        })
        .await;
        guarded.objects.hold_reads(false);
    };
    let (second, ()) = tokio::join!(guarded.dry_run(&pods[0]), connects);
    assert_eq!(second, first);
    assert_eq!(members[0].connections(), 2, "the probe uses the connection");
}
