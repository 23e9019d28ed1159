use super::*;
use crate::{
    etcd::{Alarm, AlarmKind, ProbeResult},
    guard::model::snapshot::fixture::{cluster, id},
};

fn reason(snapshot: &Snapshot, replicas: u32) -> Reason {
    evaluate_scale_down(snapshot, "etcd", replicas).reason
}

#[test]
fn approves_scale_down_that_retains_the_quorum() {
    let verdict = evaluate_scale_down(&cluster(3), "etcd", 2);
    assert_eq!(verdict.reason, Reason::IntentHarmless, "{}", verdict.message);
    assert!(verdict.warnings[0].contains("remains a voter"), "{:?}", verdict.warnings);
}

#[test]
fn denies_scale_down_that_costs_the_quorum() {
    assert_eq!(reason(&cluster(3), 1), Reason::IntentProtected);
    assert_eq!(reason(&cluster(3).crash(0), 2), Reason::IntentProtected);
}

#[test]
fn corrupt_voter_does_not_count_as_remaining() {
    let mut snapshot = cluster(3);
    let ProbeResult::Healthy { status, .. } = &mut snapshot.pods[1].reply else { unreachable!() };
    status.alarms.push(Alarm { member_id: id(0), kind: AlarmKind::Corrupt });
    assert_eq!(reason(&snapshot, 2), Reason::IntentProtected);
}

#[test]
fn owner_without_ordinals_deletes_healthy_members_first() {
    let names = ["etcd-0", "etcd-1", "etcd-2"];
    let evaluate = |snapshot: &Snapshot, names: &[&str], count| {
        evaluate_any_pods(snapshot, "Deployment ea", names, count)
    };
    assert_eq!(evaluate(&cluster(3), &names, 1).reason, Reason::IntentHarmless);
    assert_eq!(evaluate(&cluster(3), &names, 2).reason, Reason::IntentProtected);
    // The pod that remains can be the one whose member has crashed.
    let crashed = cluster(3).crash(0);
    let denial = evaluate(&crashed, &names, 1);
    assert_eq!(denial.reason, Reason::IntentProtected);
    assert!(denial.message.starts_with("scaling Deployment ea down to 2 replicas would leave 1 of 3 voters"));
    assert_eq!(evaluate(&crashed, &["etcd-0"], 1).reason, Reason::IntentHarmless);
}
