//! Members that are down, frozen, cut off or without a leader.

use std::time::Duration;

use etcd_guard::{
    etcd::{self, Cause, Connections, Endpoint, Reply},
    guard::{Policy, Reason, assess::assess, snapshot::Snapshot},
};
use tokio::net::{TcpSocket, TcpStream};

use crate::{
    etcd_cluster::{Cluster, Layout, soon},
    support::in_time::{TRIES, in_time},
};

fn reason(snapshot: &Snapshot, n: usize) -> Reason {
    assess(snapshot, &snapshot.pods[n], &Policy::default()).reason
}

on_every_version! {
    /// Edge cases 1 and 2.
    async fn of_a_healthy_cluster_only_the_leader_is_held(version) {
        let cluster = Cluster::of_three(version).await;
        let leader = cluster.leader().await;
        let snapshot = cluster.look(&Connections::new()).await;
        for n in 0..3 {
            let Reply::Serving { status, members } = &snapshot.pods[n].reply else {
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

    /// Edge cases 5 and 6.
    async fn while_a_member_is_down_only_its_own_pod_may_go(version) {
        let mut cluster = Cluster::of_three(version).await;
        let followers = cluster.followers().await;
        cluster.kill(followers[0]);
        let snapshot = cluster.look(&Connections::new()).await;
        assert!(matches!(snapshot.pods[followers[0]].reply, Reply::Silent { cause: Cause::Refused(_) }));
        assert_eq!(reason(&snapshot, followers[1]), Reason::QuorumAtRisk);
        assert_eq!(reason(&snapshot, followers[0]), Reason::MemberNotServing);
    }

    /// Edge case 17.
    async fn a_frozen_member_is_given_up_in_time_and_counts_as_down(version) {
        let cluster = Cluster::of_three(version).await;
        let followers = cluster.followers().await;
        let mut reused: Vec<_> = std::iter::repeat_with(Connections::new).take(TRIES).collect();
        for connections in &reused {
            cluster.look(connections).await;
        }
        cluster.freeze(followers[0]).await;
        let connections = Connections::new();
        for snapshot in [
            in_time(async || cluster.look(&reused.pop().unwrap()).await).await,
            in_time(async || cluster.look(&Connections::new()).await).await,
            cluster.look(&connections).await,
        ] {
            let reply = &snapshot.pods[followers[0]].reply;
            assert!(matches!(reply, Reply::Silent { cause: Cause::TimedOut(_) }), "{reply:?}");
            assert_eq!(reason(&snapshot, followers[1]), Reason::QuorumAtRisk);
            assert_eq!(reason(&snapshot, followers[0]), Reason::SafeToDelete);
        }
        cluster.thaw(followers[0]);
        cluster.wait_until_serving(followers[0]).await;
        assert_eq!(reason(&cluster.look(&connections).await, followers[1]), Reason::SafeToDelete);
    }

    /// Edge case 9.
    async fn without_a_quorum_only_what_serves_nothing_may_go(version) {
        let mut cluster = Cluster::of_three(version).await;
        let followers = cluster.followers().await;
        let leader = cluster.leader().await;
        cluster.kill(followers[0]);
        cluster.kill(followers[1]);
        let snapshot = in_time(async || cluster.look(&Connections::new()).await).await;
        assert!(matches!(snapshot.pods[leader].reply, Reply::Answering { .. }), "{:?}", snapshot.pods[leader].reply);
        assert_eq!(reason(&snapshot, leader), Reason::QuorumLost);
        assert_eq!(reason(&snapshot, followers[0]), Reason::MemberNotServing);
    }

    /// Edge case 10: followers name a dead leader for a second or two.
    async fn after_the_leader_died_nobody_goes_until_another_one_serves(version) {
        let mut cluster = Cluster::start(Layout { version, members: 5, spare: 0, tls: false }).await;
        let connections = Connections::new();
        let dead = cluster.leader().await;
        let follower = cluster.followers().await[0];
        let dead_id = cluster.look(&connections).await.pods[dead].reply.status().unwrap().member_id;
        cluster.kill(dead);
        let mut denials = 0;
        loop {
            let snapshot = cluster.look(&connections).await;
            let assessment = assess(&snapshot, &snapshot.pods[follower], &Policy::default());
            match assessment.reason {
                Reason::SafeToDelete | Reason::LeaderProtected => {
                    assert_ne!(assessment.tally.unwrap().leader, Some(dead_id), "the dead member leads nothing");
                    break;
                }
                Reason::ElectionInProgress | Reason::QuorumLost | Reason::QuorumAtRisk => denials += 1,
                other => panic!("{other} while an election runs"),
            }
            assert!(denials < 60, "no new leader");
        }
        assert!(denials > 0, "the first look came while the dead leader was still named");
    }

    /// Edge case 11.
    async fn a_leader_without_followers_is_held_in_time(version) {
        let cluster = Cluster::of_three(version).await;
        let leader = cluster.leader().await;
        for follower in cluster.followers().await {
            cluster.freeze(follower).await;
        }
        let snapshot = in_time(async || cluster.look(&Connections::new()).await).await;
        assert_eq!(reason(&snapshot, leader), Reason::QuorumLost);
    }

    async fn a_member_that_restarted_is_found_on_its_old_connection(version) {
        let mut cluster = Cluster::of_three(version).await;
        let follower = cluster.followers().await[0];
        let connections = Connections::new();
        cluster.look(&connections).await;
        cluster.kill(follower);
        cluster.restart(follower);
        cluster.wait_until_serving(follower).await;
        let snapshot = cluster.look(&connections).await;
        assert!(matches!(snapshot.pods[follower].reply, Reply::Serving { .. }), "{:?}", snapshot.pods[follower].reply);
    }

    /// Edge case 18: an address that swallows the first packet of every connection.
    async fn a_black_hole_and_a_frozen_member_together_are_given_up_in_time(version) {
        let cluster = Cluster::of_three(version).await;
        let follower = cluster.followers().await[0];
        cluster.freeze(follower).await;
        let (_queue, address) = black_hole().await;
        let hole = Endpoint { url: format!("http://{address}"), tls: None, user: None };
        let endpoints = [cluster.endpoint(follower), hole];
        let replies = in_time(async || etcd::probe(&Connections::new(), &endpoints, soon()).await).await;
        for reply in replies {
            assert!(matches!(reply, Reply::Silent { cause: Cause::TimedOut(_) }), "{reply:?}");
        }
    }

    /// Alarms are proposals, and so is every write: neither may come from a guard.
    async fn asking_adds_nothing_to_the_raft_log(version) {
        let cluster = Cluster::of_three(version).await;
        let mut client = cluster.client(0).await;
        let connections = Connections::new();
        cluster.look(&connections).await;
        let before = client.status().await.unwrap();
        for _ in 0..20 {
            cluster.look(&connections).await;
        }
        let after = client.status().await.unwrap();
        assert_eq!(after.raft_index(), before.raft_index());
        assert_eq!(after.header().unwrap().revision(), before.header().unwrap().revision());
    }
}

/// A listener with a full queue drops what else arrives, as a firewall does.
async fn black_hole() -> (Vec<TcpStream>, std::net::SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    // Nobody accepts: the listener is kept alive without a task.
    std::mem::forget(listener);
    let mut queue = Vec::new();
    while let Ok(Ok(stream)) =
        tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(address)).await
    {
        queue.push(stream);
    }
    (queue, address)
}
