//! What people are shown of whole clusters.

use crate::{
    etcd::{Alarm, AlarmKind, ClusterId},
    guard::{
        assess::{
            census::census,
            tests::{cluster, id},
        },
        snapshot::Elsewhere,
        verdict::Reason,
    },
};

#[test]
fn a_healthy_cluster_is_counted_whole_and_has_no_problem() {
    let census = census(&cluster(3));
    let tally = census.tally.unwrap();
    assert_eq!((tally.voters, tally.healthy, tally.quorum, tally.remaining), (3, 3, 2, 3));
    assert_eq!((tally.leader, tally.term), (Some(id(0)), 7));
    assert_eq!(census.list.len(), 3);
    assert_eq!((census.missing, census.obstacle), (Vec::new(), None));
    assert_eq!((census.corrupt, census.no_space), (Vec::new(), false));
}

#[test]
fn each_pod_is_shown_with_its_own_member_and_whoever_has_no_pod_without_one() {
    let mut snapshot = cluster(3);
    let hidden = snapshot.pods.pop().unwrap();
    snapshot.elsewhere = vec![Elsewhere { id: id(2), reply: hidden.reply, reserved: false }];
    let census = census(&snapshot);
    for n in [0, 1] {
        assert_eq!(census.member_of(&format!("etcd-{n}")).map(|it| it.id), Some(id(n)));
    }
    assert_eq!(census.member_of("etcd-2"), None);
    assert_eq!(census.without_pod().map(|it| it.id).collect::<Vec<_>>(), [id(2)]);
    assert_eq!(census.tally.unwrap().healthy, 3);
}

#[test]
fn who_is_down_is_named_with_the_cause() {
    let census = census(&cluster(3).crash(1));
    assert_eq!(census.tally.as_ref().map(|it| it.healthy), Some(2));
    let missing: Vec<_> = census.missing.iter().map(|it| format!("{}: {}", it.who, it.why)).collect();
    assert_eq!(missing, ["etcd-1: Connection refused (os error 111)"]);
    assert_eq!(census.obstacle, None);
}

#[test]
fn where_nothing_can_be_counted_all_pods_are_named_and_why_none_may_go() {
    let census = census(&cluster(3).starve(0).starve(1).silence(2));
    assert!(census.tally.is_none());
    let missing: Vec<_> = census.missing.iter().map(|it| it.who.as_str()).collect();
    assert_eq!(missing, ["etcd-0", "etcd-1", "etcd-2"]);
    let (reason, text) = census.obstacle.unwrap();
    assert_eq!((reason, text.as_str()), (Reason::ElectionInProgress, "no member could prove a quorum"));
}

#[test]
fn pods_of_two_clusters_are_told_with_both_ids() {
    let split = cluster(3).restate(2, |status| status.cluster_id = ClusterId(0xc2));
    let (reason, text) = census(&split).obstacle.unwrap();
    assert_eq!((reason, text.as_str()), (Reason::SplitCluster, "its pods answer as clusters c1 and c2"));
}

#[test]
fn a_pod_that_cannot_be_told_from_another_is_named() {
    let twins = cluster(3).restate(2, |status| status.member_id = id(1));
    let census = census(&twins);
    let (reason, text) = census.obstacle.unwrap();
    assert_eq!(reason, Reason::AmbiguousMember);
    assert!(text.starts_with("which member pod etcd-2 runs: both it and etcd-1"), "{text}");
    assert!(census.tally.is_none());
}

#[test]
fn alarms_are_told_each_as_what_it_is() {
    let alarmed = |kind| {
        let alarm = Alarm { member_id: id(1), kind };
        census(&cluster(3).restate(0, |status| status.alarms = vec![alarm]))
    };
    let full = alarmed(AlarmKind::NoSpace);
    assert_eq!((full.no_space, full.corrupt), (true, Vec::new()));
    let corrupt = alarmed(AlarmKind::Corrupt);
    assert_eq!((corrupt.no_space, corrupt.corrupt), (false, vec![id(1)]));
    assert_eq!(corrupt.tally.unwrap().healthy, 2);
}

#[test]
fn a_pod_without_a_listed_member_has_none() {
    let removed = cluster(3).relist(|list| drop(list.pop()));
    let census = census(&removed);
    assert_eq!(census.member_of("etcd-2"), None);
    assert_eq!(census.without_pod().count(), 0);
    assert_eq!(census.tally.unwrap().voters, 2);
}
