//! Leaders that are let go, and transfers that fail.

use std::time::Duration;

use etcd_client::MemberAddOptions;
use etcd_guard::{
    etcd::{Cause, Connections, Reply, move_leader},
    guard::{
        LeaderPolicy, Policy, Reason,
        assess::{assess, heir},
    },
};
use tokio::time::{Instant, timeout};

use crate::{
    etcd_cluster::{Cluster, Layout, START_LIMIT},
    support::wait::until,
};

/// etcd never answers a transfer to a member that froze: any end within this is the guard's own.
const NEVER: Duration = Duration::from_secs(20);

on_every_version! {
    /// Edge case 2, under each policy.
    async fn a_leader_goes_only_where_that_is_allowed(version) {
        let cluster = Cluster::of_three(version).await;
        let leader = cluster.leader().await;
        let snapshot = cluster.look_at_all(&Connections::new()).await;
        let policies = [
            (LeaderPolicy::Deny, Reason::LeaderProtected),
            (LeaderPolicy::Transfer, Reason::LeaderProtected),
            (LeaderPolicy::Allow, Reason::LeaderAllowed),
        ];
        for (policy, reason) in policies {
            let policy = Policy { leader: policy, ..Policy::default() };
            assert_eq!(assess(&snapshot, &snapshot.pods[leader], &policy).reason, reason);
        }
    }

    /// The heir that the guard would choose takes over.
    async fn leadership_moves_to_a_voter_that_serves(version) {
        let cluster = Cluster::of_three(version).await;
        let connections = Connections::new();
        let leader = cluster.leader().await;
        let snapshot = cluster.look_at_all(&connections).await;
        let (_, status) = heir(&snapshot, &snapshot.pods[leader]).unwrap();
        let id = status.member_id;
        move_leader(&connections, &cluster.endpoint(leader), id, Instant::now() + NEVER).await.unwrap();
        until("the heir leads", START_LIMIT, async || {
                let snapshot = cluster.look(&connections).await;
                let assessment = assess(&snapshot, &snapshot.pods[leader], &Policy::default());
                assessment.tally.is_some_and(|tally| tally.leader == Some(id))
                    && assessment.reason == Reason::SafeToDelete
            })
            .await;
    }

    /// Edge case 22: etcd takes no write until it gives the transfer up, after an election timeout.
    async fn a_transfer_to_a_frozen_member_is_given_up_and_loses_nothing(version) {
        let cluster = Cluster::of_three(version).await;
        let connections = Connections::new();
        let (leader, followers) = (cluster.leader().await, cluster.followers().await);
        let snapshot = cluster.look_at_all(&connections).await;
        let frozen = snapshot.pods[followers[0]].reply.status().unwrap().member_id;
        cluster.freeze(followers[0]).await;
        let endpoint = cluster.endpoint(leader);
        let moved = move_leader(&connections, &endpoint, frozen, Instant::now() + NEVER);
        let cause = timeout(NEVER, moved).await.expect("the guard does not wait for ever").unwrap_err();
        // Some releases say so themselves, if they are given the time.
        assert!(matches!(cause, Cause::TimedOut(_) | Cause::Other(_)), "{cause:?}");

        until("the others serve, and none of them may go", START_LIMIT, async || {
                let snapshot = cluster.look(&connections).await;
                let assessment = assess(&snapshot, &snapshot.pods[followers[1]], &Policy::default());
                assert!(!assessment.reason.allows(), "{:?}", snapshot.pods);
                assessment.tally.is_some_and(|tally| tally.healthy == 2 && tally.leader.is_some())
            })
            .await;
        cluster.thaw(followers[0]);
        cluster.look_at_all(&connections).await;
    }

    /// Edge case 8: neither the guard's choice nor etcd's.
    async fn a_learner_is_no_heir(version) {
        let mut cluster = Cluster::start(Layout { version, members: 1, spare: 1, tls: false }).await;
        let options = MemberAddOptions::new().with_is_learner();
        cluster.client(0).await.member_add([cluster.peer_url(1)], Some(options)).await.unwrap();
        cluster.restart(1);
        cluster.wait_until_serving(1).await;
        let connections = Connections::new();
        let snapshot = cluster.look(&connections).await;
        assert!(heir(&snapshot, &snapshot.pods[0]).is_none());
        let Reply::Answering { status, .. } = &snapshot.pods[1].reply else { panic!("{:?}", snapshot.pods) };
        let deadline = Instant::now() + NEVER;
        let cause =
            move_leader(&connections, &cluster.endpoint(0), status.member_id, deadline).await.unwrap_err();
        assert!(cause.to_string().contains("bad leader transferee"), "{cause}");
    }
}
