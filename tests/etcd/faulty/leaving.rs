//! Members that catch up, and voters that never started.

use etcd_client::{Client, Error};
use etcd_guard_core::{
    assess::{Assessment, assess},
    etcd::probe_result::ProbeResult,
    policy::Policy,
    reason::Reason,
    snapshot::{Snapshot, Storage},
};
use etcd_guard_etcd::Connections;
use futures::future::try_join_all;

use crate::cluster::{Cluster, Layout, START_TIMEOUT};
use test_support::wait::wait_until;

/// The number of writes that a frozen member misses; it needs a moment to apply them.
const MISSED_WRITES: usize = 3000;

/// The number of concurrent writes.
const CONCURRENT_WRITES: usize = 100;

fn review(snapshot: &Snapshot, n: usize) -> Assessment {
    assess(snapshot, &snapshot.pods[n], &Policy::default())
}

async fn applied_index(client: &mut Client) -> u64 {
    client.status().await.unwrap().raft_applied_index()
}

async fn write(client: &Client) -> Result<(), Error> {
    for round in 0..MISSED_WRITES / CONCURRENT_WRITES {
        try_join_all((0..CONCURRENT_WRITES).map(async |n| {
            let key = format!("key-{round}-{n}");
            client.clone().put(key, vec![b'x'; 1024], None).await
        }))
        .await?;
    }
    Ok(())
}

on_every_version! {
    /// A resumed member serves only after it has applied every entry that was committed at the time of the
    /// read.
    async fn member_counts_only_after_catching_up(version) {
        let cluster = Cluster::three_members(version).await;
        let (leader, followers) = (cluster.leader().await, cluster.followers().await);
        let connections = Connections::new();
        cluster.healthy_snapshot(&connections).await;
        let mut client = cluster.client(leader).await;
        cluster.freeze(followers[0]).await;
        // On a busy machine, writes may time out.
        wait_until("the writes pass", START_TIMEOUT, async || write(&client).await.is_ok()).await;
        let snapshot = cluster.settled_snapshot(&connections).await;
        assert_eq!(review(&snapshot, followers[1]).reason, Reason::QuorumAtRisk);

        cluster.thaw(followers[0]);
        wait_until("the member serves", START_TIMEOUT, async || {
                let committed = applied_index(&mut client).await;
                let snapshot = cluster.snapshot(&connections).await;
                let serves = match &snapshot.pods[followers[0]].reply {
                    ProbeResult::Healthy { status, .. } => {
                        assert!(status.applied_index >= committed, "{} of {committed}", status.applied_index);
                        true
                    }
                    _ => false,
                };
                let reason = review(&snapshot, followers[1]).reason;
                assert!(serves || reason != Reason::SafeToDelete, "{reason}: {:?}", snapshot.pods);
                serves
            })
            .await;
    }

    async fn unstarted_voter_has_nothing_to_lose(version) {
        let cluster = Cluster::start(Layout { version, members: 3, spare: 1, tls: false }).await;
        let leader = cluster.leader().await;
        cluster.add(&mut cluster.client(leader).await, 3).await;
        let connections = Connections::new();
        wait_until("the deletion of the new voter's pod is safe", START_TIMEOUT, async || {
                let mut snapshot = cluster.snapshot(&connections).await;
                snapshot.pods[3].storage = Storage::Ephemeral;
                let assessment = review(&snapshot, 3);
                let is_complete = assessment.tally.is_some_and(|tally| (tally.voters, tally.healthy) == (4, 3));
                if is_complete {
                    assert_eq!(assessment.reason, Reason::SafeToDelete, "{:?}", snapshot.pods);
                }
                is_complete
            })
            .await;
    }

}
