//! Alarms, as members tell them in their status.

use etcd_client::{AlarmAction, AlarmOptions, AlarmType};
use etcd_guard::{
    etcd::{Connections, MemberId, Reply},
    guard::{Policy, Reason, assess::assess},
};

use crate::{
    etcd_cluster::{Cluster, START_LIMIT},
    support::wait::until,
};

async fn raise(cluster: &Cluster, alarm: AlarmType, member: MemberId) {
    let mut options = AlarmOptions::new();
    options.with_member(member.0);
    cluster.client(0).await.alarm(AlarmAction::Activate, alarm, Some(options)).await.unwrap();
}

/// Whether it serves, and says that this member has raised an alarm.
fn knows(reply: &Reply, member: MemberId) -> bool {
    matches!(reply, Reply::Serving { status, .. } if status.alarms.iter().any(|it| it.member_id == member))
}

on_every_version! {
    /// Edge case 26: no space is a warning.
    async fn a_cluster_without_space_is_judged_and_warned_of(version) {
        let cluster = Cluster::of_three(version).await;
        let connections = Connections::new();
        let (leader, followers) = (cluster.leader().await, cluster.followers().await);
        let snapshot = cluster.look_at_all(&connections).await;
        let id = snapshot.pods[followers[0]].reply.status().unwrap().member_id;
        raise(&cluster, AlarmType::Nospace, id).await;
        until("every member knows of the alarm", START_LIMIT, async || {
                let snapshot = cluster.look(&connections).await;
                if !snapshot.pods.iter().all(|pod| knows(&pod.reply, id)) {
                return false;
            }
            for n in 0..3 {
                    let assessment = assess(&snapshot, &snapshot.pods[n], &Policy::default());
                    let reason = if n == leader { Reason::LeaderProtected } else { Reason::SafeToDelete };
                    assert_eq!((assessment.reason, assessment.no_space), (reason, true), "etcd-{n}");
                }
                true
            })
            .await;
    }

    /// Edge case 26: a member whose data is corrupt goes on answering, and is not counted on.
    async fn a_member_with_corrupt_data_counts_as_missing(version) {
        let cluster = Cluster::of_three(version).await;
        let connections = Connections::new();
        let (leader, followers) = (cluster.leader().await, cluster.followers().await);
        let snapshot = cluster.look_at_all(&connections).await;
        let id = snapshot.pods[followers[0]].reply.status().unwrap().member_id;
        raise(&cluster, AlarmType::Corrupt, id).await;
        until("every member knows of the alarm", START_LIMIT, async || {
            let snapshot = cluster.look(&connections).await;
            if !snapshot.pods.iter().all(|pod| knows(&pod.reply, id)) {
                return false;
            }
            let judge = |n: usize| assess(&snapshot, &snapshot.pods[n], &Policy::default());
            assert_eq!(judge(followers[0]).reason, Reason::SafeToDelete, "nobody counts on it");
            for n in [leader, followers[1]] {
                let assessment = judge(n);
                assert_eq!(assessment.reason, Reason::QuorumAtRisk, "etcd-{n}");
                assert_eq!(assessment.missing[0].why, "its data is corrupt");
            }
            true
        })
        .await;
    }
}
