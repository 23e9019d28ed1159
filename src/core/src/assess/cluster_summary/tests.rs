//! Summaries of whole clusters.

use crate::{
    assess::cluster_summary::ClusterSummary,
    etcd::member::{Alarm, AlarmKind, ClusterId},
    membership::Member,
    reason::Reason,
    snapshot::{
        ExternalMember,
        fixture::{cluster, id},
    },
};

#[test]
fn counts_healthy_cluster_without_problems() {
    let snapshot = cluster(3);
    let summary = ClusterSummary::new(&snapshot);
    let tally = summary.tally.as_ref().unwrap();
    assert_eq!((tally.voters, tally.healthy, tally.quorum, tally.remaining), (3, 3, 2, 3));
    assert_eq!((tally.leader, tally.term), (Some(id(0)), 7));
    assert_eq!(summary.members().len(), 3);
    assert_eq!((summary.missing, summary.obstacle), (Vec::new(), None));
    assert_eq!((summary.corrupt, summary.no_space), (Vec::new(), false));
}

#[test]
fn lists_members_with_and_without_pods() {
    let mut snapshot = cluster(3);
    let hidden = snapshot.pods.pop().unwrap();
    snapshot.external_members = vec![ExternalMember { id: id(2), reply: hidden.reply, reserved: false }];
    let summary = ClusterSummary::new(&snapshot);
    for n in [0, 1] {
        assert_eq!(summary.member_of_pod(&format!("etcd-{n}")).map(|member| member.id), Some(id(n)));
    }
    assert_eq!(summary.member_of_pod("etcd-2"), None);
    assert_eq!(summary.without_pod().map(Member::id).collect::<Vec<_>>(), [id(2)]);
    assert_eq!(summary.tally.as_ref().unwrap().healthy, 3);
}

#[test]
fn names_missing_voter_with_its_cause() {
    let snapshot = cluster(3).crash(1);
    let summary = ClusterSummary::new(&snapshot);
    assert_eq!(summary.tally.as_ref().map(|tally| tally.healthy), Some(2));
    let missing: Vec<_> =
        summary.missing.iter().map(|missing| format!("{}: {}", missing.name, missing.cause)).collect();
    assert_eq!(missing, ["etcd-1: Connection refused (os error 111)"]);
    assert_eq!(summary.obstacle, None);
}

#[test]
fn names_all_pods_and_obstacle_without_proven_quorum() {
    let snapshot = cluster(3).starve(0).starve(1).silence(2);
    let summary = ClusterSummary::new(&snapshot);
    assert!(summary.tally.is_none());
    let missing: Vec<_> = summary.missing.iter().map(|missing| missing.name.as_str()).collect();
    assert_eq!(missing, ["etcd-0", "etcd-1", "etcd-2"]);
    let (reason, text) = summary.obstacle.unwrap();
    assert_eq!((reason, text.as_str()), (Reason::ElectionInProgress, "no member could prove a quorum"));
}

#[test]
fn names_both_ids_of_split_cluster() {
    let split = cluster(3).restate(2, |status| status.cluster_id = ClusterId(0xc2));
    let (reason, text) = ClusterSummary::new(&split).obstacle.unwrap();
    assert_eq!(
        (reason, text.as_str()),
        (Reason::SplitCluster, "its pods belong to different etcd clusters: c1 and c2")
    );
}

#[test]
fn names_pod_with_ambiguous_member() {
    let twins = cluster(3).restate(2, |status| status.member_id = id(1));
    let summary = ClusterSummary::new(&twins);
    let (reason, text) = summary.obstacle.unwrap();
    assert_eq!(reason, Reason::AmbiguousMember);
    assert!(
        text.starts_with("pod etcd-2 cannot be matched with one member: this pod and pod etcd-1"),
        "{text}"
    );
    assert!(summary.tally.is_none());
}

#[test]
fn distinguishes_alarms() {
    let alarmed = |kind| {
        let alarm = Alarm { member_id: id(1), kind };
        cluster(3).restate(0, |status| status.alarms = vec![alarm])
    };
    let full = alarmed(AlarmKind::NoSpace);
    let full = ClusterSummary::new(&full);
    assert_eq!((full.no_space, full.corrupt), (true, Vec::new()));
    let corrupt = alarmed(AlarmKind::Corrupt);
    let corrupt = ClusterSummary::new(&corrupt);
    assert_eq!((corrupt.no_space, corrupt.corrupt), (false, vec![id(1)]));
    assert_eq!(corrupt.tally.unwrap().healthy, 2);
}

#[test]
fn pod_of_removed_member_has_no_member() {
    let removed = cluster(3).relist(|list| drop(list.pop()));
    let summary = ClusterSummary::new(&removed);
    assert_eq!(summary.member_of_pod("etcd-2"), None);
    assert_eq!(summary.without_pod().count(), 0);
    assert_eq!(summary.tally.as_ref().unwrap().voters, 2);
}
