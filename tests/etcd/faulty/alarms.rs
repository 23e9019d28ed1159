//! Alarms in the status of members.

use etcd_client::{AlarmAction, AlarmOptions, AlarmType};
use etcd_guard_core::{
    assess::assess,
    etcd::{member::MemberId, probe_result::ProbeResult},
    policy::Policy,
    reason::Reason,
};
use etcd_guard_etcd::Connections;

use crate::{
    cluster::{Cluster, START_TIMEOUT},
    snapshots::{is_in_election, leader_of},
};
use test_support::wait::wait_until;

async fn raise(cluster: &Cluster, alarm: AlarmType, member: MemberId) {
    let mut options = AlarmOptions::new();
    options.with_member(member.0);
    cluster.client(0).await.alarm(AlarmAction::Activate, alarm, Some(options)).await.unwrap();
}

/// Whether the member serves and reports an alarm of this member.
fn reports_alarm(reply: &ProbeResult, member: MemberId) -> bool {
    matches!(reply, ProbeResult::Healthy { status, .. } if status.alarms.iter().any(|alarm| alarm.member_id == member))
}

on_every_version! {
    /// The alarm NOSPACE causes a warning.
    async fn warns_about_cluster_without_space(version) {
        let cluster = Cluster::three_members(version).await;
        let connections = Connections::new();
        let snapshot = cluster.healthy_snapshot(&connections).await;
        let id = snapshot.pods[0].reply.status().unwrap().member_id;
        raise(&cluster, AlarmType::Nospace, id).await;
        wait_until("every member reports the alarm", START_TIMEOUT, async || {
            let snapshot = cluster.snapshot(&connections).await;
            if !snapshot.pods.iter().all(|pod| reports_alarm(&pod.reply, id)) || is_in_election(&snapshot) {
                return false;
            }
            let leader = leader_of(&snapshot);
            for n in 0..3 {
                    let assessment = assess(&snapshot, &snapshot.pods[n], &Policy::default());
                    let reason = if Some(n) == leader { Reason::LeaderProtected } else { Reason::SafeToDelete };
                    assert_eq!((assessment.reason, assessment.no_space), (reason, true), "etcd-{n}");
                }
                true
            })
            .await;
    }

    /// A member with corrupt data continues to respond, and does not count for the quorum.
    async fn corrupt_member_does_not_count(version) {
        let cluster = Cluster::three_members(version).await;
        let connections = Connections::new();
        let followers = cluster.followers().await;
        let snapshot = cluster.healthy_snapshot(&connections).await;
        let id = snapshot.pods[followers[0]].reply.status().unwrap().member_id;
        raise(&cluster, AlarmType::Corrupt, id).await;
        wait_until("every member reports the alarm", START_TIMEOUT, async || {
            let snapshot = cluster.snapshot(&connections).await;
            if !snapshot.pods.iter().all(|pod| reports_alarm(&pod.reply, id)) || is_in_election(&snapshot) {
                return false;
            }
            let assess_pod = |n: usize| assess(&snapshot, &snapshot.pods[n], &Policy::default());
            assert_eq!(assess_pod(followers[0]).reason, Reason::SafeToDelete, "the corrupt member does not count for the quorum");
            for n in (0..3).filter(|n| *n != followers[0]) {
                let assessment = assess_pod(n);
                assert_eq!(assessment.reason, Reason::QuorumAtRisk, "etcd-{n}");
                assert_eq!(assessment.missing[0].cause, "its data is corrupt");
            }
            true
        })
        .await;
    }
}
