//! Clusters with members of two releases, as during an upgrade.

use etcd_guard_core::{assess::assess, etcd::probe_result::ProbeResult, policy::Policy, reason::Reason};
use etcd_guard_etcd::Connections;

use crate::{
    cluster::{Cluster, PASSWORD, START_TIMEOUT},
    guarded_cluster::{GuardedPods, pod},
    snapshots::leader_of,
};
use test_support::wait::wait_until;

async fn assess_during_upgrade(from: &str, to: &str, cluster: &mut Cluster) {
    let connections = Connections::new();
    for (n, follower) in cluster.followers().await.into_iter().enumerate() {
        cluster.settled_snapshot(&connections).await;
        cluster.kill(follower);
        cluster.upgrade(follower, to);
        cluster.restart(follower);
        cluster.wait_until_serving(follower).await;
        let snapshot = cluster.healthy_snapshot(&connections).await;
        let leader = leader_of(&snapshot).unwrap();
        for pod in &snapshot.pods {
            let ProbeResult::Healthy { status, members } = &pod.reply else {
                panic!("{}: {:?}", pod.name, pod.reply)
            };
            assert_eq!(members.len(), 3);
            let expected = if pod.name == format!("etcd-{leader}") {
                Reason::LeaderProtected
            } else {
                Reason::SafeToDelete
            };
            let assessment = assess(&snapshot, pod, &Policy::default());
            assert_eq!(assessment.reason, expected, "{} ({}): {assessment:?}", pod.name, status.version);
        }
        let upgraded = snapshot
            .pods
            .iter()
            .filter_map(|pod| pod.reply.status())
            .filter(|status| status.version.starts_with(to));
        assert_eq!(upgraded.count(), n + 1, "from {from} to {to}");
    }
}

macro_rules! upgrades {
    ($($name:ident: $from:literal to $to:literal,)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                let mut cluster = Cluster::three_members($from).await;
                // With users, because releases differ most in the permissions for status and member list.
                cluster.enable_auth().await;
                cluster.log_in_as("root", PASSWORD);
                assess_during_upgrade($from, $to, &mut cluster).await;
            }
        )*
    };
}

upgrades! {
    from_3_4: "3.4" to "3.5",
    from_3_5: "3.5" to "3.6",
    from_3_6: "3.6" to "3.7",
}

/// 3.4 of the tests can confirm a read at a deposed leader.
#[tokio::test]
async fn metric_counts_members_with_stale_reads() {
    let mut cluster = Cluster::three_members("3.4").await;
    let pods: Vec<_> = (0..3).map(|n| pod(&cluster, n)).collect();
    let guarded = GuardedPods::start_with_survey(&pods).await;
    let counts = async || {
        let of = async |release: &str| {
            guarded.metric(&format!("etcd_guard_members{{release=\"{release}\"}}")).await
        };
        (of("stale_reads").await, of("ok").await)
    };
    wait_until("three members are counted", START_TIMEOUT, async || counts().await == (3, 0)).await;
    let follower = cluster.followers().await[0];
    cluster.kill(follower);
    cluster.upgrade(follower, "3.5");
    cluster.restart(follower);
    wait_until("one member is upgraded", START_TIMEOUT, async || counts().await == (2, 1)).await;
}
