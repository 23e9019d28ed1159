//! Members that are on their way out, on their way back, or would not come back.

use etcd_client::{Client, Error};
use etcd_guard::{
    etcd::{Connections, Reply},
    guard::{
        Policy, Reason,
        assess::{Assessment, assess},
        snapshot::{Snapshot, Storage},
    },
};
use futures::future::try_join_all;

use crate::{
    etcd_cluster::{Cluster, Layout, START_LIMIT},
    support::wait::until,
};

/// Writes that a frozen member misses: it needs a moment to apply them.
const MISSED: usize = 3000;

/// Writes that are under way at a time.
const AT_ONCE: usize = 100;

fn judge(snapshot: &Snapshot, n: usize) -> Assessment {
    assess(snapshot, &snapshot.pods[n], &Policy::default())
}

async fn applied_index(client: &mut Client) -> u64 {
    client.status().await.unwrap().raft_applied_index()
}

async fn write(client: &Client) -> Result<(), Error> {
    for round in 0..MISSED / AT_ONCE {
        try_join_all((0..AT_ONCE).map(async |n| {
            let key = format!("key-{round}-{n}");
            client.clone().put(key, vec![b'x'; 1024], None).await
        }))
        .await?;
    }
    Ok(())
}

on_every_version! {
    /// Edge case 3.
    async fn a_pod_that_terminates_and_still_serves_counts_no_more(version) {
        let cluster = Cluster::of_three(version).await;
        let followers = cluster.followers().await;
        let mut snapshot = cluster.look_at_all(&Connections::new()).await;
        assert_eq!(judge(&snapshot, followers[1]).reason, Reason::SafeToDelete);
        snapshot.pods[followers[0]].terminating = true;
        let assessment = judge(&snapshot, followers[1]);
        assert_eq!(assessment.reason, Reason::DisruptionInProgress);
        assert_eq!(assessment.leaving, [format!("etcd-{}", followers[0])]);
        let tally = assessment.tally.unwrap();
        assert_eq!((tally.healthy, tally.remaining), (3, 1), "it serves, and is not counted on");
    }

    /// Edge case 4: a member that is back serves only once it has applied all that was committed when it was asked.
    async fn a_member_that_catches_up_does_not_count_before_it_has(version) {
        let cluster = Cluster::of_three(version).await;
        let (leader, followers) = (cluster.leader().await, cluster.followers().await);
        let connections = Connections::new();
        cluster.look_at_all(&connections).await;
        let mut client = cluster.client(leader).await;
        cluster.freeze(followers[0]).await;
        write(&client).await.unwrap();
        assert_eq!(judge(&cluster.look(&connections).await, followers[1]).reason, Reason::QuorumAtRisk);

        cluster.thaw(followers[0]);
        until("the member is back", START_LIMIT, async || {
                let committed = applied_index(&mut client).await;
                let snapshot = cluster.look(&connections).await;
                let serves = match &snapshot.pods[followers[0]].reply {
                    Reply::Serving { status, .. } => {
                        assert!(status.applied_index >= committed, "{} of {committed}", status.applied_index);
                        true
                    }
                    _ => false,
                };
                let reason = judge(&snapshot, followers[1]).reason;
                assert!(serves || reason != Reason::SafeToDelete, "{reason}: {:?}", snapshot.pods);
                serves
            })
            .await;
    }

    /// Edge cases 6, 23 and 24: what ends a member for good takes one voter more than what stops it.
    async fn a_member_that_would_not_come_back_needs_a_voter_to_spare(version) {
        let mut cluster = Cluster::start(Layout { version, members: 5, spare: 0, tls: false }).await;
        let followers = cluster.followers().await;
        let connections = Connections::new();
        let losses = [Storage::Ephemeral, Storage::OnNode, Storage::ClaimTerminating, Storage::RemovedByHook];
        let mut snapshot = cluster.look_at_all(&connections).await;
        for storage in losses {
            snapshot.pods[followers[1]].storage = storage;
            assert_eq!(judge(&snapshot, followers[1]).reason, Reason::SafeToDelete, "{storage:?}: 4 would stay");
        }
        cluster.kill(followers[0]);
        until("the other four serve", START_LIMIT, async || {
                let mut snapshot = cluster.look(&connections).await;
                let tally = judge(&snapshot, followers[1]).tally;
                if tally.is_none_or(|tally| tally.healthy != 4) {
                    return false;
                }
                assert_eq!(judge(&snapshot, followers[1]).reason, Reason::SafeToDelete, "3 of 5 would stay");
                for storage in losses {
                    snapshot.pods[followers[1]].storage = storage;
                    assert_eq!(judge(&snapshot, followers[1]).reason, Reason::PermanentLoss, "{storage:?}");
                }
                true
            })
            .await;
    }
}
