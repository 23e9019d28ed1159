//! The longest time without an acknowledged write when the node of the leader is cordoned, and when the pod on this node is
//! killed some seconds later, with and without handovers. No test asserts a duration: this one prints a table.

use std::time::Duration;

use tokio::time::sleep;

use test_support::{
    etcd::writer::{WriteStats, Writer},
    guarded_cluster::GuardedCluster,
    process_node::ProcessAction,
};

use crate::cluster::{Turn, cordon, node_of, start, uncordon};

/// Interval between two writes.
const INTERVAL: Duration = Duration::from_millis(5);

/// Time after which the results of all writes around an event are complete: etcd answers within 7 s. The pod is killed
/// this time after the cordon, so that a write that fails at the move does not count as one that fails at the death.
const RESULT_TIME: Duration = Duration::from_secs(9);

const ROUNDS: usize = 5;

#[tokio::test]
#[ignore = "measures; scripts/prove runs it"]
async fn write_gap_at_cordon_and_death_of_the_leader() {
    let _turn = Turn::start().await;
    for handover in [true, false] {
        let etcd = start(handover).await;
        for round in 1..=ROUNDS {
            let (at_cordon, at_death) = measure(&etcd).await;
            let describe = |stats: WriteStats| {
                let WriteStats { longest_gap, acknowledged, failed, .. } = stats;
                format!(
                    "gap {} ms, {failed} of {} writes failed",
                    longest_gap.as_millis(),
                    acknowledged + failed
                )
            };
            let mode = if handover { "on" } else { "off" };
            println!(
                "result: handover {mode}, round {round}: cordon: {}; death of the pod: {}",
                describe(at_cordon),
                describe(at_death)
            );
        }
    }
}

async fn measure(etcd: &GuardedCluster) -> (WriteStats, WriteStats) {
    let leader = etcd.leader().await;
    let urls: Vec<String> =
        GuardedCluster::names().iter().map(|name| etcd.member(name).url().to_owned()).collect();
    let writer = Writer::start(&urls, INTERVAL).await;
    sleep(Duration::from_secs(1)).await;
    writer.reset();
    cordon(etcd, node_of(&leader)).await;
    sleep(RESULT_TIME).await;
    let at_cordon = writer.stats();
    writer.reset();
    etcd.apply(&leader, ProcessAction::Kill).await;
    sleep(RESULT_TIME).await;
    let at_death = writer.stats();
    drop(writer);
    uncordon(etcd, node_of(&leader)).await;
    etcd.wait_until_healthy().await;
    // The guard forgets the cordon.
    sleep(Duration::from_secs(2)).await;
    (at_cordon, at_death)
}
