//! Voters that never started, learners, removed members, and member lists that change during a probe.

use std::time::{Duration, Instant};

use etcd_client::MemberAddOptions;
use etcd_guard_core::{
    assess::assess,
    etcd::{error::MemberError, probe_result::ProbeResult},
    policy::Policy,
    reason::Reason,
};
use etcd_guard_etcd::Connections;

use crate::{
    cluster::{Cluster, Layout, START_TIMEOUT},
    snapshots::{followers_in, leader_of},
};

on_every_version! {
    async fn unstarted_voter_counts_for_quorum(version) {
        let cluster = Cluster::start(Layout { version, members: 3, spare: 1, tls: false }).await;
        add(&cluster, false).await;
        let snapshot = cluster.settled_snapshot(&Connections::new()).await;
        let follower = followers_in(&snapshot)[0];
        let assessment = assess(&snapshot, &snapshot.pods[follower], &Policy::default());
        assert_eq!(assessment.reason, Reason::QuorumAtRisk);
        let tally = assessment.tally.unwrap();
        assert_eq!((tally.voters, tally.healthy, tally.quorum), (4, 3, 3));
        assert_eq!(assess(&snapshot, &snapshot.pods[3], &Policy::default()).reason, Reason::MemberNotServing);
    }

    async fn allows_learner(version) {
        let mut cluster = Cluster::start(Layout { version, members: 3, spare: 1, tls: false }).await;
        add(&cluster, true).await;
        cluster.restart(3);
        cluster.wait_until_serving(3).await;
        let snapshot = cluster.settled_snapshot(&Connections::new()).await;
        let leader = leader_of(&snapshot).unwrap();
        assert!(
            matches!(&snapshot.pods[3].reply, ProbeResult::StatusOnly { status, cause: MemberError::Learner } if status.is_learner),
            "{:?}",
            snapshot.pods[3].reply
        );
        assert_eq!(assess(&snapshot, &snapshot.pods[3], &Policy::default()).reason, Reason::NotAVoter);
        let assessment = assess(&snapshot, &snapshot.pods[leader], &Policy::default());
        assert_eq!(assessment.reason, Reason::LeaderProtected);
        assert_eq!(assessment.tally.unwrap().voters, 3);
    }

    /// Without a linearizable read, the list of a follower is stale in one of ten trials.
    async fn member_lists_are_current(version) {
        let cluster = Cluster::start(Layout { version, members: 3, spare: 1, tls: false }).await;
        let connections = Connections::new();
        for round in 0..5 {
            add(&cluster, true).await;
            assert_eq!(lists(&cluster, &connections).await, [4, 4, 4], "round {round}, after the addition");
            remove(&cluster).await;
            assert_eq!(lists(&cluster, &connections).await, [3, 3, 3], "round {round}, after the removal");
        }
    }

    async fn allows_removed_member(version) {
        let mut cluster = Cluster::start(Layout { version, members: 3, spare: 1, tls: false }).await;
        add(&cluster, false).await;
        cluster.restart(3);
        cluster.wait_until_serving(3).await;
        // The member must not lead, because removing the leader changes the leadership, too.
        if cluster.leader().await != 3 {
            remove(&cluster).await;
            cluster.set_must_answer(3, false);
        }
        let snapshot = cluster.settled_snapshot(&Connections::new()).await;
        assert_eq!(assess(&snapshot, &snapshot.pods[3], &Policy::default()).reason, Reason::NotAVoter);
    }
}

/// Errors of etcd that do not last. On a busy machine, a change of the membership may time out or meet an election.
const REFUSED_FOR_A_WHILE: [&str; 4] =
    ["unhealthy cluster", "member not found", "request timed out", "leader changed"];

/// Adds the spare member to the list without starting it. etcd refuses during the first five seconds of a cluster, and
/// for the rest of the second in which a member with the same address was removed, because the new member would get the
/// same id.
async fn add(cluster: &Cluster, as_learner: bool) {
    let mut client = cluster.client(0).await;
    let options =
        if as_learner { MemberAddOptions::new().with_is_learner() } else { MemberAddOptions::new() };
    let deadline = Instant::now() + START_TIMEOUT;
    while Instant::now() < deadline {
        match client.member_add([cluster.peer_url(3)], Some(options.clone())).await {
            Ok(_) => return,
            Err(error) if REFUSED_FOR_A_WHILE.iter().any(|message| error.to_string().contains(message)) => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => panic!("member add: {error}"),
        }
    }
    panic!("member add: still refused");
}

async fn remove(cluster: &Cluster) {
    let mut client = cluster.client(0).await;
    let list = client.member_list().await.unwrap();
    let spare =
        list.members().iter().find(|member| member.peer_urls() == [cluster.peer_url(3)]).unwrap().id();
    client.member_remove(spare).await.unwrap();
}

/// Returns the length of the member list of each of the three members.
async fn lists(cluster: &Cluster, connections: &Connections) -> Vec<usize> {
    let snapshot = cluster.settled_snapshot(connections).await;
    let length = |reply: &ProbeResult| match reply {
        ProbeResult::Healthy { members, .. } => members.len(),
        other => panic!("not serving: {other:?}"),
    };
    snapshot.pods[..3].iter().map(|pod| length(&pod.reply)).collect()
}
