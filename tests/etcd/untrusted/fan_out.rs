//! Member lists of a process that is no member: the guard probes few of their addresses, and omits them from its texts.

use std::{net::SocketAddr, time::Instant};

use serde_json::{Value, json};

use crate::{cluster::START_TIMEOUT, guarded_cluster::GuardedPods};
use test_support::{
    etcd::fake_member::{DialCounter, FakeListed, FakeMember, FakeReplies},
    guard::process::{ALL_NETWORKS, CONFIG_HEADER},
    wait::wait_for,
};

/// The result of a review of a pod with a member that returns a chosen list.
struct Review {
    reason: String,
    message: String,
    /// Connections to addresses of the list, and the number of these addresses.
    dials: (usize, usize),
    /// The encoded size of the list in bytes.
    list_bytes: usize,
    /// The growth of the guard's anonymous memory in bytes.
    memory_growth: u64,
}

/// The largest growth of the guard's memory by reviews of one pod, in bytes: less than a list of 4 MiB occupies. A first
/// evaluation takes two of them.
const MAX_MEMORY_GROWTH: u64 = 4 << 20;

/// Sends a review of the pod of a fake member. Its list has this number of further voters, with this number of client
/// URLs each.
async fn review(voters: u64, urls: u64, config: &str) -> Review {
    review_beside_api_servers(voters, urls, config, &[]).await
}

/// Sends a review like [`review`], while API servers listen at these addresses and at the port of the list.
async fn review_beside_api_servers(voters: u64, urls: u64, config: &str, api_servers: &[&str]) -> Review {
    let counter = DialCounter::start().await;
    let url = |n: u64| {
        let [_, a, b, c] = u32::try_from(n).unwrap().to_be_bytes();
        format!("http://127.{}.{b}.{c}:{}", 100 + a, counter.port())
    };
    let listed = |n: u64| FakeListed {
        id: 2 + n,
        name: format!("etcd-{}", n + 1),
        peer_urls: vec![format!("http://etcd-{}.example:2380", n + 1)],
        client_urls: (0..urls).map(|at| url(n * urls + at)).collect(),
    };
    let own = FakeListed {
        id: 1,
        name: String::from("etcd-0"),
        peer_urls: vec![String::from("http://etcd-0.example:2380")],
        client_urls: vec![String::from("http://etcd-0.example:2379")],
    };
    let members: Vec<FakeListed> = [own].into_iter().chain((0..voters).map(listed)).collect();
    let list_bytes = members.iter().map(FakeListed::encoded_len_in_list).sum();
    let replies = FakeReplies { cluster_id: 7, member_id: 1, leader: 1, term: 3, members };
    let member = FakeMember::start(SocketAddr::from(([127, 0, 0, 1], 0)), replies).await;
    let pod = pod("etcd-0", member.address());
    let guarded = GuardedPods::start_with_config(std::slice::from_ref(&pod), config).await;
    let memory_before = guarded.anonymous_memory();
    let endpoints: Vec<Value> = api_servers.iter().map(|address| json!({"addresses": [address]})).collect();
    let slice = json!({"endpoints": endpoints, "ports": [{"port": counter.port()}]});
    guarded.objects.put("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes", 200, slice);
    // On a busy machine the member may answer too late, which proves nothing.
    wait_for("the member answers in time", START_TIMEOUT, async || {
        counter.take();
        let started = Instant::now();
        let (reason, message) = guarded.dry_run(&pod).await;
        let took = started.elapsed();
        let dials = counter.take();
        let memory_growth = guarded.anonymous_memory().saturating_sub(memory_before);
        eprintln!(
            "{voters} voters, {urls} URLs each, {list_bytes} bytes: {dials:?} connections and addresses, {took:?}, \
             {memory_growth} bytes of memory: {message:.200}"
        );
        (reason != "EtcdUnreachable").then_some(Review { reason, message, dials, list_bytes, memory_growth })
    })
    .await
}

/// Returns a pod with a member that listens at this address.
pub(crate) fn pod(name: &str, address: SocketAddr) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "prod",
            "uid": format!("uid-{name}"),
            "annotations": {"etcd-guard.io/endpoints": format!("http://:{}", address.port())},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "etcd", "uid": "set", "controller": true}]
        },
        "spec": {"containers": [{"name": "etcd", "image": "etcd", "command": ["etcd", "--data-dir=/data"]}]},
        "status": {
            "phase": "Running",
            "podIP": address.ip().to_string(),
            "containerStatuses": [{"name": "etcd", "state": {"running": {}}}]
        }
    })
}

/// The longest list that gRPC accepts, a longer one, and a list that is only a little too long.
#[tokio::test]
async fn oversized_member_lists_are_errors() {
    let longest = review(25_300, 4, ALL_NETWORKS).await;
    assert!((4_100_000..4 << 20).contains(&longest.list_bytes), "{}", longest.list_bytes);
    assert_eq!(longest.reason, "AmbiguousMember", "{}", longest.message);
    let cause = "etcd-0 (the response is larger than 256 KiB)";
    assert!(longest.message.contains(cause), "{}", longest.message);

    let longer = review(26_000, 4, ALL_NETWORKS).await;
    assert!((4 << 20..5 << 20).contains(&longer.list_bytes), "{}", longer.list_bytes);
    assert_eq!(longer.reason, "ElectionInProgress", "{}", longer.message);
    assert!(longer.message.contains("decoded message length too large"), "{}", longer.message);

    for Review { dials, memory_growth, .. } in [longest, longer] {
        assert_eq!(dials, (0, 0));
        assert!(memory_growth < MAX_MEMORY_GROWTH, "{memory_growth}");
    }

    let Review { reason, message, dials, .. } = review(64, 1, ALL_NETWORKS).await;
    assert_eq!((reason.as_str(), dials), ("AmbiguousMember", (0, 0)), "{message}");
    assert!(message.contains("the member list has 65 members, and at most 64 are evaluated"), "{message}");
}

#[tokio::test]
async fn probes_one_address_per_voter_and_16_in_total() {
    let Review { reason, message, dials, .. } = review(63, 4, ALL_NETWORKS).await;
    assert_eq!((reason.as_str(), dials.1), ("QuorumAtRisk", 16), "{message}");
    let Review { dials, .. } = review(3, 4, ALL_NETWORKS).await;
    assert_eq!(dials.1, 12);
}

/// The shipped configuration denies loopback, and the text does not describe the address.
#[tokio::test]
async fn denied_addresses_are_not_probed_or_described() {
    let Review { reason, message, dials, .. } = review(2, 2, CONFIG_HEADER).await;
    assert_eq!((reason.as_str(), dials), ("QuorumAtRisk", (0, 0)), "{message}");
    let class = "etcd-1, etcd-2 (no visible pod runs this member, and guard.probe.deniedNetworks rejects its client URLs)";
    assert!(message.contains(class), "{message}");

    let Review { message, .. } = review(2, 2, ALL_NETWORKS).await;
    assert!(
        message.contains(
            "etcd-1, etcd-2 (no visible pod runs this member, and none of its client URLs replies)"
        ),
        "{message}"
    );
}

/// The processes behind the Service `kubernetes` listen at addresses of their own.
#[tokio::test]
async fn endpoints_of_the_api_server_are_not_probed() {
    let Review { dials, .. } = review(2, 1, ALL_NETWORKS).await;
    assert_eq!(dials.1, 2);
    let Review { reason, dials, .. } = review_beside_api_servers(2, 1, ALL_NETWORKS, &["127.100.0.1"]).await;
    assert_eq!((reason.as_str(), dials.1), ("QuorumAtRisk", 1), "the other address is probed");
    let both = ["127.100.0.0", "127.100.0.1"];
    let Review { reason, dials, .. } = review_beside_api_servers(2, 1, ALL_NETWORKS, &both).await;
    assert_eq!((reason.as_str(), dials), ("QuorumAtRisk", (0, 0)));
}
