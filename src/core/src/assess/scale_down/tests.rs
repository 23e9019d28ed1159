use super::*;
use crate::{
    etcd::{
        error::MemberError,
        member::{Alarm, AlarmKind},
        probe_result::ProbeResult,
    },
    snapshot::fixture::{cluster, id},
};

fn reason(snapshot: &Snapshot, replicas: u32) -> Reason {
    evaluate_scale_down(snapshot, "etcd", 0..replicas).reason
}

#[test]
fn approves_scale_down_that_retains_the_quorum() {
    let verdict = evaluate_scale_down(&cluster(3), "etcd", 0..2);
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
    // The pod that remains can be the pod of a crashed member.
    let crashed = cluster(3).crash(0);
    let denial = evaluate(&crashed, &names, 1);
    assert_eq!(denial.reason, Reason::IntentProtected);
    assert!(denial.message.starts_with("scaling Deployment ea down to 2 replicas would leave 1 of 3 voters"));
    assert_eq!(evaluate(&crashed, &["etcd-0"], 1).reason, Reason::IntentHarmless);
}

#[test]
fn scale_down_without_credentials_states_the_cause() {
    let cause = || MemberError::CredentialsRejected(String::from("not allowed to read Secret prod/tls"));
    let rejected = (0..3).fold(cluster(3), |cluster, n| {
        cluster.change(n, |pod| pod.reply = ProbeResult::NoStatus { cause: cause() })
    });
    let denial = evaluate_scale_down(&rejected, "etcd", 0..2);
    assert_eq!(
        denial.text(),
        "CredentialsRejected: scaling etcd down requires a quorum, but no member of prod/etcd proves a quorum; not healthy: \
         etcd-0, etcd-1, etcd-2 (credentials rejected: not allowed to read Secret prod/tls). Name a Secret with \
         valid credentials (of a user with a password: etcd-guard.io/auth-secret): kubectl -n prod annotate --overwrite \
         statefulset/etcd etcd-guard.io/client-tls-secret=SECRET"
    );
    assert_eq!(denial.inaccessible_pod, Some((String::from("prod"), String::from("etcd-0"))));
    assert_eq!(reason(&cluster(3).crash(0).crash(1).crash(2), 2), Reason::EtcdUnreachable);
    assert_eq!(reason(&cluster(3).starve(0).crash(1).crash(2), 2), Reason::QuorumLost);
    assert_eq!(reason(&cluster(3).starve(0).starve(1).crash(2), 2), Reason::ElectionInProgress);
}

#[test]
fn scale_down_names_missing_voters_that_would_remain() {
    let denial = evaluate_scale_down(&cluster(3).crash(0), "etcd", 0..2);
    assert!(
        denial.message.contains("1 of 3 voters of prod/etcd healthy, quorum 2; not healthy: etcd-0 (Conn"),
        "{}",
        denial.message
    );
    // The container of etcd-0 does not run: the address is no cause.
    assert_eq!(denial.inaccessible_pod, None);
    let denial = evaluate_scale_down(&cluster(3).crash(2), "etcd", 0..1);
    assert!(!denial.message.contains("not healthy"), "{}", denial.message);
}
