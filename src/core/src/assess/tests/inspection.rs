//! The command that inspects a pod, at the end of denials because of recognition, credentials or reachability.

use std::collections::BTreeSet;

use super::*;
use crate::{
    assess::{
        node_deletion::evaluate_node_deletion,
        scale_down::{evaluate_any_pods, evaluate_scale_down},
    },
    explain::advise_inspection,
    verdict::Verdict,
};

/// Denials that depend on no member to which the guard may lack access.
const OTHER_DENIALS: [Reason; 9] = [
    Reason::TooFewVoters,
    Reason::LeaderProtected,
    Reason::SingleMember,
    Reason::LookupFailed,
    Reason::TransferFailed,
    Reason::LedgerUnavailable,
    Reason::MemberListWrong,
    Reason::BudgetExhausted,
    Reason::AmbiguousBudget,
];

/// The causes by which the guard may lack access to a healthy member.
fn access_causes() -> [MemberError; 6] {
    let text = || String::from("cause");
    [
        MemberError::CredentialsRejected(text()),
        MemberError::Tls(text()),
        MemberError::Unreachable(text()),
        MemberError::Refused(text()),
        MemberError::Closed(text()),
        MemberError::UnadvertisedScheme("http"),
    ]
}

impl Snapshot {
    fn fail(self, n: usize, cause: &MemberError) -> Self {
        self.change(n, |pod| pod.reply = ProbeResult::NoStatus { cause: cause.clone() })
    }
}

/// Returns a denial for each situation in which the guard may lack access to members, and the number of the pod to inspect.
fn denials(cause: &MemberError) -> Vec<(Verdict, usize)> {
    let fail = |size: usize, failed: &[usize]| {
        failed.iter().fold(cluster(size), |cluster, n| cluster.fail(*n, cause))
    };
    let ephemeral = |pod: &mut MemberPod| pod.storage = Storage::Ephemeral;
    let unlisted = cluster(3).fail(1, cause).relist(|members| {
        let other = &mut members[1];
        (other.id, other.name, other.peer_urls) = (id(9), String::from("other"), Vec::new());
        other.client_urls.clear();
    });
    let names = ["etcd-0", "etcd-1", "etcd-2"];
    let on_node = |snapshot: &Snapshot, uid| {
        evaluate_node_deletion(snapshot, "worker", &BTreeSet::from([uid])).with_remedy("Drain the node first")
    };
    vec![
        (fail(3, &[2]).explained(1), 2),
        // A voter that is restored outside of the guard is no reason to hide one to which the guard lacks access.
        (fail(5, &[3]).crash(1).crash(2).explained(4), 3),
        (fail(5, &[0]).change(0, |pod| pod.reserved = true).explained(1), 0),
        (fail(5, &[3]).change(1, ephemeral).explained(1), 3),
        (fail(5, &[3]).change(4, |pod| pod.terminating = true).explained(2), 3),
        (unlisted.explained(1), 1),
        (fail(3, &[0, 1, 2]).explained(1), 1),
        (fail(3, &[1, 2]).starve(0).explained(0), 1),
        (evaluate_scale_down(&fail(3, &[0]), "etcd", 0..2), 0),
        (evaluate_scale_down(&fail(3, &[0, 1, 2]), "etcd", 0..2), 0),
        (evaluate_any_pods(&fail(3, &[0]), "Deployment etcd", &names[1..], 1), 0),
        (evaluate_any_pods(&fail(3, &[0, 1, 2]), "Deployment etcd", &names, 1), 0),
        (on_node(&fail(3, &[2]), "uid-1"), 2),
        (on_node(&fail(3, &[1, 2]).starve(0), "uid-0"), 1),
    ]
}

#[test]
fn denials_for_lack_of_access_end_with_inspection() {
    let mut found = BTreeSet::new();
    for cause in access_causes() {
        for (mut denial, inspected) in denials(&cause) {
            advise_inspection(&mut denial, None);
            let text = denial.text();
            assert!(!denial.allows(), "{cause:?}: {text}");
            // A pod that runs no listed member is not among the voters.
            let is_listed = denial.reason != Reason::AmbiguousMember;
            assert!(!is_listed || text.contains(&cause.to_string()), "{cause:?}: {text}");
            let command = format!(": kubectl etcd-guard inspect -n prod etcd-{inspected}");
            assert!(text.ends_with(&command), "{cause:?}: {text}");
            assert_eq!(text.matches("kubectl etcd-guard inspect").count(), 1, "{text}");
            found.insert(denial.reason.as_str());
        }
    }
    for reason in Reason::ALL.iter().filter(|reason| reason.concerns_discovery()) {
        let mut denial = Verdict::new(*reason, "facts").with_remedy("Remedy: command");
        advise_inspection(&mut denial, Some((String::from("prod"), String::from("etcd-0"))));
        let text = denial.text();
        assert!(text.ends_with("\nSee what the guard reads of the pod, and the Role that it needs: kubectl etcd-guard inspect -n prod etcd-0"), "{text}");
        found.insert(reason.as_str());
    }
    let is_covered = |reason: &&Reason| found.contains(reason.as_str()) != OTHER_DENIALS.contains(reason);
    let uncovered: Vec<_> =
        Reason::ALL.iter().filter(|reason| !reason.allows()).filter(|reason| !is_covered(reason)).collect();
    assert!(uncovered.is_empty(), "{uncovered:?}");
}

#[test]
fn a_missing_role_comes_first() {
    let rejected = MemberError::CredentialsRejected(String::from("cause"));
    let role = "kubectl etcd-guard inspect -n prod etcd-2 --role | kubectl apply -f -";
    let all = (0..3).fold(cluster(3), |cluster, n| cluster.fail(n, &rejected));
    for (mut snapshot, target) in [(cluster(3).fail(2, &rejected), 1), (all, 1)] {
        snapshot.without_role.insert(String::from("etcd-2"));
        let mut denial = snapshot.explained(target);
        advise_inspection(&mut denial, None);
        assert!(denial.remedy.as_ref().is_some_and(|remedy| remedy.ends_with(role)), "{}", denial.text());
        assert_eq!(denial.text().matches("inspect").count(), 1, "{}", denial.text());
    }
    let mut refused = cluster(3).crash(2);
    refused.without_role.insert(String::from("etcd-2"));
    assert!(!refused.text(1).contains("--role"), "the Role is not the cause");
}

#[test]
fn denials_of_other_causes_name_no_inspection() {
    let snapshots = [
        (cluster(3), 0),
        (cluster(3).crash(2), 1),
        (cluster(3).silence(2), 1),
        // The missing voter is not the cause.
        (cluster(5).fail(3, &MemberError::Tls(String::new())), 0),
        // The target is not counted.
        (cluster(3).crash(2).fail(1, &MemberError::Tls(String::new())), 1),
    ];
    for (snapshot, target) in snapshots {
        let mut denial = snapshot.explained(target);
        advise_inspection(&mut denial, Some((String::from("prod"), String::from("etcd-0"))));
        let text = denial.text();
        assert!(!denial.allows() && !text.contains("inspect"), "{text}");
    }
    let mut approval = cluster(3).fail(2, &MemberError::Tls(String::new())).explained(2);
    advise_inspection(&mut approval, None);
    assert!(approval.allows() && approval.remedy.is_none(), "{}", approval.text());
}
