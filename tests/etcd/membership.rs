//! Voters that never started, learners, members that were removed, and lists that change under a round.

use etcd_client::MemberAddOptions;
use etcd_guard::{
    etcd::{Cause, Connections, Reply},
    guard::{Policy, Reason, assess::assess},
};

use crate::etcd_cluster::{Cluster, Layout};

on_every_version! {
    /// Edge case 7.
    async fn a_voter_that_never_started_counts_for_the_quorum(version) {
        let cluster = Cluster::start(Layout { version, members: 3, spare: 1, tls: false }).await;
        add(&cluster, false).await;
        let follower = cluster.followers().await[0];
        let snapshot = cluster.look(&Connections::new()).await;
        let assessment = assess(&snapshot, &snapshot.pods[follower], &Policy::default());
        assert_eq!(assessment.reason, Reason::QuorumAtRisk);
        let tally = assessment.tally.unwrap();
        assert_eq!((tally.voters, tally.healthy, tally.quorum), (4, 3, 3));
        assert_eq!(assess(&snapshot, &snapshot.pods[3], &Policy::default()).reason, Reason::MemberNotServing);
    }

    /// Edge case 8.
    async fn a_learner_may_go_and_is_no_heir(version) {
        let mut cluster = Cluster::start(Layout { version, members: 3, spare: 1, tls: false }).await;
        add(&cluster, true).await;
        cluster.restart(3);
        cluster.wait_until_serving(3).await;
        let leader = cluster.leader().await;
        let snapshot = cluster.look(&Connections::new()).await;
        assert!(
            matches!(&snapshot.pods[3].reply, Reply::Answering { status, cause: Cause::Learner } if status.is_learner),
            "{:?}",
            snapshot.pods[3].reply
        );
        assert_eq!(assess(&snapshot, &snapshot.pods[3], &Policy::default()).reason, Reason::NotAVoter);
        let of_leader = assess(&snapshot, &snapshot.pods[leader], &Policy::default());
        assert_eq!(of_leader.reason, Reason::LeaderProtected);
        assert_eq!(of_leader.tally.unwrap().voters, 3);
    }

    /// Edge case 12: a list that is asked for alone is stale on a follower in one of ten trials.
    async fn every_list_is_as_new_as_the_last_change(version) {
        let cluster = Cluster::start(Layout { version, members: 3, spare: 1, tls: false }).await;
        let connections = Connections::new();
        for round in 0..5 {
            add(&cluster, true).await;
            assert_eq!(lists(&cluster, &connections).await, [4, 4, 4], "round {round}, after the addition");
            remove(&cluster).await;
            assert_eq!(lists(&cluster, &connections).await, [3, 3, 3], "round {round}, after the removal");
        }
    }

    /// Edge case 32.
    async fn a_member_that_was_removed_may_go(version) {
        let mut cluster = Cluster::start(Layout { version, members: 3, spare: 1, tls: false }).await;
        add(&cluster, false).await;
        cluster.restart(3);
        cluster.wait_until_serving(3).await;
        // It leads nothing yet: removing a leader would change it as well.
        if cluster.leader().await != 3 {
            remove(&cluster).await;
        }
        let snapshot = cluster.look(&Connections::new()).await;
        assert_eq!(assess(&snapshot, &snapshot.pods[3], &Policy::default()).reason, Reason::NotAVoter);
    }
}

/// Adds the spare member to the list; it does not start by that. etcd refuses for the first five seconds of a cluster,
/// and for the rest of a second in which a member of the same address was removed: it would get the same id.
async fn add(cluster: &Cluster, as_learner: bool) {
    let mut client = cluster.client(0).await;
    let options =
        if as_learner { MemberAddOptions::new().with_is_learner() } else { MemberAddOptions::new() };
    for _ in 0..100 {
        match client.member_add([cluster.peer_url(3)], Some(options.clone())).await {
            Ok(_) => return,
            Err(error)
                if ["unhealthy cluster", "member not found"]
                    .iter()
                    .any(|it| error.to_string().contains(it)) =>
            {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
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

/// How many members each of the three lists.
async fn lists(cluster: &Cluster, connections: &Connections) -> Vec<usize> {
    let snapshot = cluster.look(connections).await;
    let length = |reply: &Reply| match reply {
        Reply::Serving { members, .. } => members.len(),
        other => panic!("not serving: {other:?}"),
    };
    snapshot.pods[..3].iter().map(|pod| length(&pod.reply)).collect()
}
