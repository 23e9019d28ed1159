//! Members that are down, frozen, disconnected or without a leader.

use std::time::{Duration, Instant};

use etcd_guard_core::{
    assess::assess,
    etcd::{endpoint::Endpoint, error::MemberError, probe_result::ProbeResult},
    policy::Policy,
    reason::Reason,
    snapshot::Snapshot,
};
use etcd_guard_etcd as etcd;
use etcd_guard_etcd::Connections;
use tokio::net::{TcpSocket, TcpStream};

use crate::{
    cluster::{Cluster, Layout, START_TIMEOUT},
    snapshots::{leader_of, probe_deadline},
};
use test_support::deadline::{MAX_ATTEMPTS, within_deadline};

fn reason(snapshot: &Snapshot, n: usize) -> Reason {
    assess(snapshot, &snapshot.pods[n], &Policy::default()).reason
}

on_every_version! {
    async fn denies_only_leader_of_healthy_cluster(version) {
        let cluster = Cluster::three_members(version).await;
        let snapshot = cluster.settled_snapshot(&Connections::new()).await;
        let leader = leader_of(&snapshot).unwrap();
        for n in 0..3 {
            let ProbeResult::Healthy { status, members } = &snapshot.pods[n].reply else {
                panic!("etcd-{n} does not serve: {:?}", snapshot.pods[n].reply);
            };
            assert_eq!(members.len(), 3);
            assert!(status.version.starts_with(version), "{} answers for {version}", status.version);
            let expected = if n == leader { Reason::LeaderProtected } else { Reason::SafeToDelete };
            assert_eq!(reason(&snapshot, n), expected, "etcd-{n}");
        }
        let tally = assess(&snapshot, &snapshot.pods[leader], &Policy::default()).tally.unwrap();
        assert_eq!((tally.voters, tally.healthy, tally.quorum, tally.remaining), (3, 3, 2, 2));
    }

    async fn allows_only_pod_of_member_that_is_down(version) {
        let mut cluster = Cluster::three_members(version).await;
        let followers = cluster.followers().await;
        cluster.kill(followers[0]);
        let snapshot = cluster.settled_snapshot(&Connections::new()).await;
        assert!(matches!(snapshot.pods[followers[0]].reply, ProbeResult::NoStatus { cause: MemberError::Refused(_) }));
        assert_eq!(reason(&snapshot, followers[1]), Reason::QuorumAtRisk);
        assert_eq!(reason(&snapshot, followers[0]), Reason::MemberNotServing);
    }

    async fn frozen_member_counts_as_down_in_time(version) {
        let cluster = Cluster::three_members(version).await;
        let followers = cluster.followers().await;
        // A snapshot may be repeated, and removes the connections of silent members.
        let mut reused: Vec<_> = std::iter::repeat_with(Connections::new).take(2 * MAX_ATTEMPTS).collect();
        for connections in &reused {
            cluster.settled_snapshot(connections).await;
        }
        cluster.freeze(followers[0]).await;
        let connections = Connections::new();
        for snapshot in [
            cluster.settle_in_time(|| reused.pop().unwrap()).await,
            cluster.settle_in_time(Connections::new).await,
            cluster.settled_snapshot(&connections).await,
        ] {
            let reply = &snapshot.pods[followers[0]].reply;
            assert!(matches!(reply, ProbeResult::NoStatus { cause: MemberError::TimedOut(_) }), "{reply:?}");
            assert_eq!(reason(&snapshot, followers[1]), Reason::QuorumAtRisk);
            assert_eq!(reason(&snapshot, followers[0]), Reason::SafeToDelete);
        }
        cluster.thaw(followers[0]);
        cluster.wait_until_serving(followers[0]).await;
        let snapshot = cluster.settled_snapshot(&connections).await;
        let follower = (0..3).find(|n| leader_of(&snapshot) != Some(*n)).unwrap();
        assert_eq!(reason(&snapshot, follower), Reason::SafeToDelete);
    }

    async fn without_quorum_allows_only_pods_that_serve_nothing(version) {
        let mut cluster = Cluster::three_members(version).await;
        let followers = cluster.followers().await;
        let leader = cluster.leader().await;
        cluster.kill(followers[0]);
        cluster.kill(followers[1]);
        let snapshot = cluster.settle_in_time(Connections::new).await;
        assert!(matches!(snapshot.pods[leader].reply, ProbeResult::StatusOnly { .. }), "{:?}", snapshot.pods[leader].reply);
        assert_eq!(reason(&snapshot, leader), Reason::QuorumLost);
        assert_eq!(reason(&snapshot, followers[0]), Reason::MemberNotServing);
    }

    /// Followers report a dead leader for a second or two.
    async fn denies_until_new_leader_serves(version) {
        let mut cluster = Cluster::start(Layout { version, members: 5, spare: 0, tls: false }).await;
        let connections = Connections::new();
        // On a busy machine, the members may elect a leader before the first snapshot.
        for _ in 0..MAX_ATTEMPTS {
            if count_denials_until_next_leader(&mut cluster, &connections).await > 0 {
                return;
            }
        }
        panic!("no snapshot was taken while the followers report the dead leader");
    }

    async fn denies_leader_without_followers_in_time(version) {
        let cluster = Cluster::three_members(version).await;
        let leader = cluster.leader().await;
        for follower in cluster.followers().await {
            cluster.freeze(follower).await;
        }
        let snapshot = cluster.settle_in_time(Connections::new).await;
        assert_eq!(reason(&snapshot, leader), Reason::QuorumLost);
    }

    async fn reconnects_to_restarted_member(version) {
        let mut cluster = Cluster::three_members(version).await;
        let follower = cluster.followers().await[0];
        let connections = Connections::new();
        cluster.settled_snapshot(&connections).await;
        cluster.kill(follower);
        cluster.restart(follower);
        cluster.wait_until_serving(follower).await;
        let snapshot = cluster.settled_snapshot(&connections).await;
        assert!(matches!(snapshot.pods[follower].reply, ProbeResult::Healthy { .. }), "{:?}", snapshot.pods[follower].reply);
    }

    /// An address that drops the first packet of every connection.
    async fn limits_time_for_unreachable_and_frozen_members(version) {
        let cluster = Cluster::three_members(version).await;
        let follower = cluster.followers().await[0];
        cluster.freeze(follower).await;
        let (_queue, address) = black_hole().await;
        let unreachable = Endpoint { url: format!("http://{address}"), other_urls: Vec::new(), tls: None, user: None };
        let endpoints = [cluster.endpoint(follower), unreachable];
        let results = within_deadline(async || etcd::probe(&Connections::new(), &endpoints, probe_deadline()).await).await;
        for reply in results {
            assert!(matches!(reply, ProbeResult::NoStatus { cause: MemberError::TimedOut(_) }), "{reply:?}");
        }
    }

    /// Alarms and writes are raft proposals, and probes must not cause either.
    async fn probes_add_nothing_to_raft_log(version) {
        let cluster = Cluster::three_members(version).await;
        let mut client = cluster.client(0).await;
        let connections = Connections::new();
        for _ in 0..MAX_ATTEMPTS {
            cluster.settled_snapshot(&connections).await;
            let before = client.status().await.unwrap();
            for _ in 0..20 {
                cluster.snapshot(&connections).await;
            }
            let after = client.status().await.unwrap();
            // An election adds an entry.
            if after.raft_term() == before.raft_term() {
                assert_eq!(after.raft_index(), before.raft_index());
                assert_eq!(after.header().unwrap().revision(), before.header().unwrap().revision());
                return;
            }
        }
        panic!("an election took place in each attempt");
    }
}

/// Kills the leader, and counts the denials until another member serves as the leader. The killed member is started
/// again.
async fn count_denials_until_next_leader(cluster: &mut Cluster, connections: &Connections) -> usize {
    let snapshot = cluster.healthy_snapshot(connections).await;
    let dead = leader_of(&snapshot).unwrap();
    let dead_id = snapshot.pods[dead].reply.status().unwrap().member_id;
    let follower = (dead + 1) % snapshot.pods.len();
    cluster.kill(dead);
    let (mut denials, deadline) = (0, Instant::now() + START_TIMEOUT);
    loop {
        let snapshot = cluster.snapshot(connections).await;
        let assessment = assess(&snapshot, &snapshot.pods[follower], &Policy::default());
        match assessment.reason {
            Reason::SafeToDelete | Reason::LeaderProtected => {
                assert_ne!(
                    assessment.tally.unwrap().leader,
                    Some(dead_id),
                    "the dead member is not the leader"
                );
                break;
            }
            Reason::ElectionInProgress | Reason::QuorumLost | Reason::QuorumAtRisk => denials += 1,
            _ if cluster.is_late(&snapshot) => {}
            other => panic!("{other} during an election"),
        }
        assert!(Instant::now() < deadline, "no new leader");
    }
    cluster.restart(dead);
    cluster.wait_until_serving(dead).await;
    denials
}

/// A listener with a full queue drops further connections, as a firewall does.
async fn black_hole() -> (Vec<TcpStream>, std::net::SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    // The listener stays open, and no task accepts connections.
    std::mem::forget(listener);
    let mut queue = Vec::new();
    while let Ok(Ok(stream)) =
        tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(address)).await
    {
        queue.push(stream);
    }
    (queue, address)
}
