//! Deletions of leaders, and failing transfers of leadership.

use std::time::Duration;

use etcd_client::MemberAddOptions;
use etcd_guard_core::{
    assess::{assess, transferee},
    etcd::{error::MemberError, probe_result::ProbeResult},
    policy::Policy,
    reason::Reason,
    snapshot::Snapshot,
};
use etcd_guard_etcd::{Connections, move_leader};
use tokio::time::{Instant, timeout};

use crate::{
    cluster::{Cluster, Layout, START_TIMEOUT},
    snapshots::{followers_in, leader_of},
};
use test_support::wait::wait_until;

/// Longer than the guard's own time limits: etcd never responds to a transfer to a frozen member.
const LONG: Duration = Duration::from_secs(20);

on_every_version! {
    /// The leader was paused after it confirmed a read, and the answer arrives after the next election.
    async fn answer_of_deposed_leader_does_not_count(version) {
        let cluster = Cluster::three_members(version).await;
        let connections = Connections::new();
        let before = cluster.healthy_snapshot(&connections).await;
        let (leader, followers) = (leader_of(&before).unwrap(), followers_in(&before));
        let reason = |snapshot: &Snapshot, n: usize| assess(snapshot, &snapshot.pods[n], &Policy::default()).reason;
        cluster.freeze(leader).await;
        wait_until("the others have a leader, and the late answer makes no deletion safe", START_TIMEOUT, async || {
                let mut snapshot = cluster.snapshot(&connections).await;
                let tally = assess(&snapshot, &snapshot.pods[leader], &Policy::default()).tally;
                if tally.is_none_or(|tally| tally.healthy != 2 || tally.leader.is_none()) {
                    return false;
                }
                snapshot.pods[leader].reply = before.pods[leader].reply.clone();
                // The follower of the new leader first: by its own answer alone its deletion would be safe.
                let leads = |n: usize| snapshot.pods[n].reply.status().is_some_and(|status| status.leader == Some(status.member_id));
                let (new_leader, others): (Vec<usize>, Vec<usize>) = followers.iter().partition(|n| leads(**n));
                for follower in others.into_iter().chain(new_leader) {
                    assert_eq!(reason(&snapshot, follower), Reason::ElectionInProgress, "{:?}", snapshot.pods);
                }
                assert_eq!(reason(&snapshot, leader), Reason::SafeToDelete, "{:?}", snapshot.pods);
                true
            })
            .await;
        cluster.thaw(leader);
        wait_until("all members follow the new leader", START_TIMEOUT, async || {
                let snapshot = cluster.snapshot(&connections).await;
                followers.iter().any(|follower| reason(&snapshot, *follower) == Reason::SafeToDelete)
            })
            .await;
    }

    /// Leadership moves to the transferee that the guard chooses.
    async fn transfers_leadership_to_serving_voter(version) {
        let cluster = Cluster::three_members(version).await;
        let connections = Connections::new();
        let snapshot = cluster.healthy_snapshot(&connections).await;
        let leader = leader_of(&snapshot).unwrap();
        let (_, status) = transferee(&snapshot, &snapshot.pods[leader], None).unwrap();
        let id = status.member_id;
        move_leader(&connections, &cluster.endpoint(leader), id, Instant::now() + LONG).await.unwrap();
        wait_until("the transferee leads", START_TIMEOUT, async || {
                let snapshot = cluster.snapshot(&connections).await;
                let assessment = assess(&snapshot, &snapshot.pods[leader], &Policy::default());
                assessment.tally.is_some_and(|tally| tally.leader == Some(id))
                    && assessment.reason == Reason::SafeToDelete
            })
            .await;
    }

    /// Etcd accepts no writes until it aborts the transfer after an election timeout.
    async fn aborts_transfer_to_frozen_member(version) {
        let cluster = Cluster::three_members(version).await;
        let connections = Connections::new();
        let (leader, followers) = (cluster.leader().await, cluster.followers().await);
        let snapshot = cluster.healthy_snapshot(&connections).await;
        let frozen = snapshot.pods[followers[0]].reply.status().unwrap().member_id;
        cluster.freeze(followers[0]).await;
        let endpoint = cluster.endpoint(leader);
        let moved = move_leader(&connections, &endpoint, frozen, Instant::now() + LONG);
        let cause = timeout(LONG, moved).await.expect("the guard aborts the transfer").unwrap_err();
        // Some releases return an error by themselves, given enough time.
        assert!(matches!(cause, MemberError::TimedOut(_) | MemberError::Other(_)), "{cause:?}");

        wait_until("the others serve, and their deletions are denied", START_TIMEOUT, async || {
                let snapshot = cluster.snapshot(&connections).await;
                let assessment = assess(&snapshot, &snapshot.pods[followers[1]], &Policy::default());
                assert!(!assessment.reason.allows(), "{:?}", snapshot.pods);
                assessment.tally.is_some_and(|tally| tally.healthy == 2 && tally.leader.is_some())
            })
            .await;
        cluster.thaw(followers[0]);
        cluster.healthy_snapshot(&connections).await;
    }

    /// Neither the guard nor etcd chooses a learner.
    async fn learner_is_no_transferee(version) {
        let mut cluster = Cluster::start(Layout { version, members: 1, spare: 1, tls: false }).await;
        let options = MemberAddOptions::new().with_is_learner();
        cluster.client(0).await.member_add([cluster.peer_url(1)], Some(options)).await.unwrap();
        cluster.restart(1);
        cluster.wait_until_serving(1).await;
        let connections = Connections::new();
        let snapshot = cluster.settled_snapshot(&connections).await;
        assert!(transferee(&snapshot, &snapshot.pods[0], None).is_none());
        let ProbeResult::StatusOnly { status, .. } = &snapshot.pods[1].reply else { panic!("{:?}", snapshot.pods) };
        let deadline = Instant::now() + LONG;
        let cause =
            move_leader(&connections, &cluster.endpoint(0), status.member_id, deadline).await.unwrap_err();
        assert!(cause.to_string().contains("bad leader transferee"), "{cause}");
    }
}
