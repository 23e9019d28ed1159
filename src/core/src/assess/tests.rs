//! Each test adds faults to the healthy cluster of the fixture.

mod contradictions;
mod inspection;
mod invariants;
mod leadership;
mod policies;
mod silence;

use std::time::Duration;

use super::*;
use crate::{
    config::policies::LeaderPolicy,
    etcd::{
        error::MemberError,
        member::{Alarm, AlarmKind, ClusterId, ListedMember},
        probe_result::ProbeResult,
    },
    explain::explain,
    snapshot::{
        ContainerState, ExternalMember, Storage,
        fixture::{cluster, id, listed, status, timed_out},
    },
    verdict::Verdict,
    wall_clock::WallClock,
};

impl Snapshot {
    fn reason(&self, n: usize) -> Reason {
        assess(self, &self.pods[n], &Policy::default()).reason
    }

    fn explained(&self, n: usize) -> Verdict {
        let target = &self.pods[n];
        explain(self, target, &assess(self, target, &Policy::default()), self.taken_at, &WallClock::default())
    }

    fn text(&self, n: usize) -> String {
        self.explained(n).text()
    }
}

#[test]
fn approves_follower_of_healthy_cluster() {
    assert_eq!(cluster(3).reason(1), Reason::SafeToDelete);
    assert_eq!(cluster(5).reason(4), Reason::SafeToDelete);
}

#[test]
fn denies_leader() {
    assert_eq!(cluster(3).reason(0), Reason::LeaderProtected);
    assert_eq!(
        cluster(3).text(0),
        "LeaderProtected: etcd-0 leads prod/etcd (member e7cd0000, term 7; 3 of 3 voters healthy, quorum 2). \
         Move leadership, then retry: kubectl etcd-guard move-leader -n prod etcd-0\nWithout the plugin: kubectl -n prod \
         annotate --overwrite statefulset/etcd etcd-guard.io/move-leader=etcd-2@$(date -u +%FT%TZ)"
    );
}

#[test]
fn denies_leader_that_only_followers_report() {
    // The guard cannot reach the leader, but reads pass through it at its followers.
    assert_eq!(cluster(3).silence(0).reason(0), Reason::LeaderProtected);
}

/// The reads of the other four pass through the leader, so that raft runs, and they are a quorum without it.
#[test]
fn followers_may_go_while_the_leader_answers_nobody() {
    let deaf = cluster(5).silence(0);
    assert_eq!(deaf.reason(1), Reason::SafeToDelete);
    let warning =
        "the leader of etcd prod/etcd, etcd-0, does not answer at its client port: no answer within 750ms";
    assert!(
        deaf.explained(1).warnings.iter().any(|text| text == warning),
        "{:?}",
        deaf.explained(1).warnings
    );
    assert_eq!(deaf.clone().silence(2).reason(1), Reason::QuorumAtRisk, "no quorum without the leader");
    assert_eq!(cluster(3).silence(0).reason(1), Reason::QuorumAtRisk);
    assert_eq!(deaf.clone().change(2, |pod| pod.reserved = true).reason(1), Reason::DisruptionInProgress);
}

#[test]
fn leader_that_answers_nobody_stays() {
    let deaf = cluster(5).silence(0);
    assert_eq!(deaf.reason(0), Reason::LeaderProtected);
    let text = deaf.text(0);
    let cause = "etcd-0 leads prod/etcd (member e7cd0000, term 7; 4 of 5 voters healthy, quorum 3), and does not answer at its \
                 client port: no answer within 750ms.";
    let command = "kubectl annotate --overwrite -n prod pod etcd-0 etcd-guard.io/allow-delete-until=";
    assert!(text.contains(cause) && text.contains(command), "{text}");
    let policy = Policy { leader: LeaderPolicy::Transfer, ..Policy::default() };
    let assess = |snapshot: &Snapshot| assess(snapshot, &snapshot.pods[0], &policy).wants_transfer(&policy);
    assert!(!assess(&deaf) && assess(&cluster(5)), "it would have to move leadership itself");
}

#[test]
fn denies_all_pods_if_named_leader_has_stopped_or_leaves() {
    let stopped = cluster(5).crash(0);
    assert_eq!(stopped.reason(1), Reason::ElectionInProgress);
    for change in [|pod: &mut MemberPod| pod.terminating = true, |pod: &mut MemberPod| pod.reserved = true] {
        assert_eq!(cluster(5).silence(0).change(0, change).reason(1), Reason::ElectionInProgress);
    }
    let denying = cluster(5).starve(0).restate(0, |status| status.leader = None);
    assert_eq!(denying.reason(1), Reason::ElectionInProgress);
    let mut hidden = cluster(5);
    hidden.pods.remove(0);
    assert_eq!(hidden.reason(0), Reason::ElectionInProgress, "its pod may be leaving");
}

#[test]
fn denies_all_pods_if_members_name_different_leaders() {
    let split_brain = cluster(3).restate(1, |status| status.leader = Some(id(1)));
    assert_eq!(split_brain.reason(2), Reason::ElectionInProgress);
}

#[test]
fn trusts_leader_of_highest_term() {
    let moved = |status: &mut Status| {
        status.leader = Some(id(1));
        status.term = 8;
    };
    let after = cluster(3).restate(1, moved).restate(2, moved);
    assert_eq!(after.reason(0), Reason::SafeToDelete);
    let all = after.restate(0, moved);
    assert_eq!(all.reason(1), Reason::LeaderProtected);
    assert_eq!(all.reason(0), Reason::SafeToDelete);
}

#[test]
fn ignores_term_of_partitioned_member() {
    let cut_off = cluster(5).starve(4).restate(4, |status| {
        status.term = 900;
        status.leader = None;
    });
    assert_eq!(cut_off.reason(1), Reason::SafeToDelete);
    assert_eq!(cut_off.reason(0), Reason::LeaderProtected);
}

#[test]
fn rejects_second_deletion_while_first_pod_terminates() {
    // The dying member still answers: it drains for up to seven seconds.
    let dying = cluster(3).change(1, |pod| pod.terminating = true);
    assert_eq!(dying.reason(2), Reason::DisruptionInProgress);
    assert_eq!(
        dying.text(2),
        "DisruptionInProgress: without etcd-2, prod/etcd would have 1 of 3 voters healthy, quorum 2: etcd-1 is being \
         deleted (it is terminating). Wait until etcd-1 is ready again, then retry: kubectl -n prod get pods -w\nIf etcd-1 \
         stays Pending or Terminating, see why: kubectl -n prod describe pod etcd-1"
    );
}

#[test]
fn denial_says_how_long_a_reservation_lasts() {
    let mut reserved = cluster(3).change(1, |pod| pod.reserved = true);
    reserved.reserved_until.insert(String::from("etcd-1"), reserved.taken_at + Duration::from_millis(47_200));
    let text = reserved.text(2);
    assert!(
        text.contains(
            "etcd-1 is being deleted (approved a moment ago; it counts as gone until it serves again, or for another 48 s)"
        ),
        "{text}"
    );
}

#[test]
fn rejects_second_deletion_while_first_is_reserved() {
    let reserved = cluster(3).change(1, |pod| pod.reserved = true);
    assert_eq!(reserved.reason(2), Reason::DisruptionInProgress);
}

#[test]
fn ignores_reservation_of_target_itself() {
    let again = cluster(3).change(1, |pod| pod.reserved = true);
    assert_eq!(again.reason(1), Reason::SafeToDelete);
}

#[test]
fn five_members_can_lose_two() {
    let one_gone = cluster(5).change(1, |pod| pod.terminating = true);
    assert_eq!(one_gone.reason(2), Reason::SafeToDelete);
    let two_gone = one_gone.change(2, |pod| pod.reserved = true);
    assert_eq!(two_gone.reason(3), Reason::DisruptionInProgress);
}

#[test]
fn denies_healthy_pod_while_another_of_three_is_down() {
    let down = cluster(3).crash(2);
    assert_eq!(down.reason(1), Reason::QuorumAtRisk);
    assert_eq!(
        down.text(1),
        "QuorumAtRisk: etcd-2 (Connection refused (os error 111)) is not healthy: without etcd-1, prod/etcd would have 1 of 3 \
         voters healthy, quorum 2. Repair etcd-2, then retry: kubectl -n prod describe pod etcd-2"
    );
    let frozen = cluster(3).silence(2).text(1);
    assert!(frozen.starts_with("QuorumAtRisk: etcd-2 ("), "{frozen}");
    assert!(frozen.ends_with("kubectl -n prod logs etcd-2 -c etcd --tail=50"), "it runs: {frozen}");
    let two = cluster(5).crash(2).crash(4).text(1);
    assert!(
        two.starts_with("QuorumAtRisk: etcd-2, etcd-4 (Connection refused (os error 111)) are not healthy: "),
        "{two}"
    );
    assert_eq!(cluster(5).crash(2).reason(1), Reason::SafeToDelete);
}

/// Of three voters the first has been down for long, and the second serves: so the third votes, though its kubelet has told
/// neither its address nor that its container runs.
#[test]
fn does_not_treat_voter_needed_for_quorum_as_idle() {
    let unseen = |n: usize| MemberError::Unreachable(format!("pod etcd-{n} has no address"));
    let snapshot = cluster(3).crash(0).silence(2).change(2, |pod| {
        pod.report.container = ContainerState::Stopped;
        pod.reply = ProbeResult::NoStatus { cause: unseen(2) };
    });
    assert_eq!(snapshot.reason(2), Reason::QuorumAtRisk);
    assert_eq!(
        snapshot.reason(0),
        Reason::QuorumAtRisk,
        "or it is the first that votes, and does not listen yet"
    );
    assert_eq!(snapshot.clone().refuse(2).reason(2), Reason::QuorumAtRisk);
    let lagging = snapshot.starve(2);
    assert_eq!(lagging.reason(0), Reason::MemberNotServing, "the third lives, and lags behind");
}

/// The policy for a single member permits its absence for a limited time.
#[test]
fn restart_permission_does_not_allow_loss_of_only_copy() {
    let restart = Policy { single_member: Permission::Allow, ..Policy::default() };
    let reason = |storage, policy: &Policy| {
        let snapshot = cluster(1).change(0, |pod| pod.storage = storage);
        assess(&snapshot, &snapshot.pods[0], policy).reason
    };
    assert_eq!(reason(Storage::Persistent, &restart), Reason::SingleMemberAllowed);
    for storage in [Storage::Ephemeral, Storage::OnNode, Storage::ClaimTerminating, Storage::RemovedByHook] {
        assert_eq!(reason(storage, &restart), Reason::PermanentLoss, "{storage:?}");
    }
    let lose = Policy { ephemeral_data: Permission::Allow, ..restart };
    assert_eq!(reason(Storage::Ephemeral, &lose), Reason::SingleMemberAllowed);
}

#[test]
fn corrupt_member_is_no_transferee() {
    let alarm = Alarm { member_id: id(1), kind: AlarmKind::Corrupt };
    let snapshot = cluster(3).restate(1, |status| status.applied_index += 1);
    let transferee_of =
        |snapshot: &Snapshot| transferee(snapshot, &snapshot.pods[0], None).map(|(pod, _)| pod.name.clone());
    assert_eq!(transferee_of(&snapshot).as_deref(), Some("etcd-1"));
    assert_eq!(
        transferee_of(&snapshot.restate(2, |status| status.alarms.push(alarm))).as_deref(),
        Some("etcd-2")
    );
}

#[test]
fn frozen_member_counts_as_down() {
    assert_eq!(cluster(3).silence(2).reason(1), Reason::QuorumAtRisk);
    assert_eq!(cluster(3).starve(2).reason(1), Reason::QuorumAtRisk);
}

#[test]
fn approves_broken_pod_while_others_are_healthy() {
    assert_eq!(cluster(3).silence(2).reason(2), Reason::SafeToDelete);
    assert_eq!(cluster(3).crash(2).reason(2), Reason::MemberNotServing);
    let silent = cluster(3).crash(2).silence(2);
    assert_eq!(silent.reason(2), Reason::MemberNotServing, "the others are a quorum without it");
}

#[test]
fn approves_idle_pod_without_quorum() {
    // Its restart may be the cure.
    let lost = cluster(3).crash(0).crash(1).starve(2);
    assert_eq!(lost.reason(0), Reason::MemberNotServing);
    assert_eq!(lost.reason(2), Reason::QuorumLost);
    let without_address = lost.clone().silence(0).change(0, |pod| pod.ip.clear());
    assert_eq!(without_address.reason(0), Reason::MemberNotServing, "it was never started");
    // The status of its kubelet may be late, and the member may participate in an election.
    assert_ne!(lost.silence(0).reason(0), Reason::MemberNotServing);
}

#[test]
fn never_started_voter_counts_for_quorum() {
    let unstarted = ListedMember { name: String::new(), client_urls: Vec::new(), ..listed(3) };
    let grown = cluster(3).relist(|list| list.push(unstarted.clone()));
    assert_eq!(grown.reason(1), Reason::QuorumAtRisk);
    assert!(grown.text(1).contains("member e7cd0003 (it has never started) is not healthy: without "));
}

#[test]
fn approves_learner_and_does_not_count_it() {
    let learner = |list: &mut Vec<ListedMember>| list[3].is_learner = true;
    let mut snapshot = cluster(4).relist(learner);
    let mut status = status(3);
    status.is_learner = true;
    snapshot.pods[3].reply = ProbeResult::StatusOnly { status, cause: MemberError::Learner };
    assert_eq!(snapshot.reason(3), Reason::NotAVoter);
    assert_eq!(snapshot.reason(1), Reason::SafeToDelete);
    assert_eq!(snapshot.crash(2).reason(1), Reason::QuorumAtRisk);
}

#[test]
fn voter_in_one_of_two_lists_is_a_voter() {
    // The learner was promoted between two members' answers.
    let mut snapshot = cluster(4).crash(3);
    if let ProbeResult::Healthy { members, .. } = &mut snapshot.pods[0].reply {
        members[3].is_learner = true;
    }
    assert_eq!(assess(&snapshot, &snapshot.pods[1], &Policy::default()).tally.unwrap().voters, 4);
    assert_eq!(snapshot.reason(1), Reason::QuorumAtRisk);
}

#[test]
fn removed_member_is_not_a_voter() {
    let removed = cluster(4).relist(|list| drop(list.pop()));
    assert_eq!(removed.reason(3), Reason::NotAVoter);
}

#[test]
fn denies_unlisted_pod_while_a_voter_has_no_pod() {
    // The pod without a listed id may run the voter that has no visible pod.
    let renamed = cluster(3).relist(|list| list[2].id = MemberId(0xbad));
    assert_eq!(renamed.reason(2), Reason::AmbiguousMember);
}

#[test]
fn two_pods_with_one_member_are_ambiguous() {
    let twins = cluster(3).restate(2, |status| status.member_id = id(1));
    assert_eq!(twins.reason(1), Reason::AmbiguousMember);
    assert!(twins.text(1).contains("etcd-2 (this pod and pod etcd-1 both match member e7cd0001)"));
}

#[test]
fn identifies_silent_pod_by_peer_url() {
    let named_otherwise = cluster(3).relist(|list| list[2].name = String::from("default")).crash(2);
    assert_eq!(named_otherwise.reason(2), Reason::MemberNotServing);
    assert_eq!(assess(&named_otherwise, &named_otherwise.pods[2], &Policy::default()).member, Some(id(2)));
}

#[test]
fn identifies_silent_pod_by_member_name() {
    let prefixed = cluster(3)
        .relist(|list| {
            list[2].name = String::from("main-etcd-2");
            list[2].peer_urls = vec![String::from("http://lb.example:2380")];
        })
        .change(2, |pod| pod.member_name = Some(String::from("main-etcd-2")))
        .crash(2);
    assert_eq!(assess(&prefixed, &prefixed.pods[2], &Policy::default()).member, Some(id(2)));
}

#[test]
fn denies_pods_of_different_clusters() {
    let mixed = cluster(3).restate(2, |status| status.cluster_id = ClusterId(0xc2));
    assert_eq!(mixed.reason(1), Reason::SplitCluster);
    let [majority, stray] = [1, 2].map(|n| mixed.text(n));
    assert!(majority.contains("(c1, c2)") && !majority.contains("annotate"), "{majority}");
    let advice = "kubectl annotate --overwrite -n prod pod etcd-2 etcd-guard.io/allow-delete-until=";
    assert!(stray.contains("Pod etcd-2 replies for the smaller") && stray.contains(advice), "{stray}");
}

/// A member that rejects a request runs, even if the status of the kubelet differs.
#[test]
fn member_that_rejects_requests_is_not_idle() {
    let causes = [
        MemberError::CredentialsRejected(String::from("permission denied")),
        MemberError::Tls(String::from("unknown issuer")),
        MemberError::Closed(String::from("connection closed")),
        MemberError::LoginTimedOut(Duration::from_millis(750)),
    ];
    for cause in causes {
        let refusing = cluster(3)
            .crash(1)
            .crash(2)
            .change(1, |pod| pod.reply = ProbeResult::NoStatus { cause: cause.clone() });
        assert_eq!(refusing.reason(2), Reason::MemberNotServing);
        assert_eq!(refusing.reason(1), Reason::QuorumAtRisk, "{cause:?}");
    }
}

/// Etcd does not run, and the proxy of a service mesh accepts and closes connections.
#[test]
fn closed_connection_of_proxy_is_no_reply() {
    let closed =
        ProbeResult::NoStatus { cause: MemberError::Closed(String::from("connection reset by peer")) };
    let behind_proxy = |snapshot: Snapshot, n: usize| {
        snapshot.crash(n).change(n, |pod| (pod.other_containers, pod.reply) = (1, closed.clone()))
    };
    let one = behind_proxy(cluster(3), 2);
    assert_eq!(one.reason(2), Reason::MemberNotServing);
    assert_eq!(one.change(2, |pod| pod.other_containers = 0).reason(2), Reason::SafeToDelete);
    let lost = behind_proxy(behind_proxy(cluster(3).starve(0), 1), 2);
    assert_eq!(lost.reason(1), Reason::MemberNotServing);
    let all = behind_proxy(lost.clone(), 0);
    assert_eq!(all.reason(0), Reason::MemberNotServing);
    // A running member closes connections as well, so that the guard may use the wrong scheme or credentials.
    let rejected = lost.change(0, |pod| pod.reply = closed.clone());
    assert_eq!(rejected.reason(1), Reason::EtcdUnreachable);
}

#[test]
fn external_member_counts_by_its_own_reply() {
    let mut snapshot = cluster(3);
    let hidden = snapshot.pods.pop().unwrap();
    assert_eq!(snapshot.reason(1), Reason::QuorumAtRisk);
    assert!(snapshot.text(1).contains("none of its client URLs replies"), "{}", snapshot.text(1));
    snapshot.external_members = vec![ExternalMember { id: id(2), reply: hidden.reply, reserved: false }];
    assert_eq!(snapshot.reason(1), Reason::SafeToDelete);
    assert_eq!(snapshot.reason(0), Reason::LeaderProtected);
    snapshot.external_members[0].reserved = true;
    assert_eq!(snapshot.reason(1), Reason::DisruptionInProgress);
    snapshot.external_members[0].reserved = false;
    snapshot.external_members[0].reply = ProbeResult::StatusOnly { status: status(2), cause: timed_out() };
    assert_eq!(snapshot.reason(1), Reason::QuorumAtRisk);
}

/// A pod that does not answer may be the member that was found by another name.
#[test]
fn denies_silent_unlisted_pod_with_external_members() {
    let mut snapshot = cluster(3).relist(|list| {
        list[2].name = String::from("other");
        list[2].peer_urls = vec![String::from("http://lb.example:2380")];
    });
    let reply = snapshot.pods[2].reply.clone();
    snapshot = snapshot.silence(2);
    snapshot.external_members = vec![ExternalMember { id: id(2), reply, reserved: false }];
    assert_eq!(snapshot.reason(2), Reason::AmbiguousMember);
}

#[test]
fn states_shared_cause_once() {
    let rejected =
        ProbeResult::NoStatus { cause: MemberError::CredentialsRejected(String::from("user name is empty")) };
    let locked = cluster(2)
        .change(0, |pod| pod.reply = rejected.clone())
        .change(1, |pod| pod.reply = rejected.clone());
    assert_eq!(locked.reason(0), Reason::CredentialsRejected);
    let text = locked.text(0);
    assert!(
        text.contains("not healthy: etcd-0, etcd-1 (credentials rejected: user name is empty)"),
        "{text}"
    );
    assert!(
        text.contains("etcd-guard.io/auth-secret")
            && text.ends_with("etcd-guard.io/client-tls-secret=SECRET"),
        "{text}"
    );
}

#[test]
fn corrupt_member_is_not_healthy() {
    let corrupt = |member: MemberId| {
        move |status: &mut Status| status.alarms = vec![Alarm { member_id: member, kind: AlarmKind::Corrupt }]
    };
    let one = cluster(3).restate(0, corrupt(id(2)));
    assert_eq!(one.reason(1), Reason::QuorumAtRisk);
    assert!(one.text(1).contains("etcd-2 (its data is corrupt)"));
    assert_eq!(one.reason(2), Reason::SafeToDelete);
    let unknown_which = cluster(5).restate(0, corrupt(MemberId(0)));
    assert_eq!(unknown_which.reason(1), Reason::QuorumAtRisk);
}

#[test]
fn names_voter_without_pod_as_listed() {
    let mut snapshot = cluster(5);
    let hidden = snapshot.pods.pop().unwrap();
    snapshot.external_members = vec![ExternalMember { id: id(4), reply: hidden.reply, reserved: true }];
    let going = snapshot.clone().change(1, |pod| pod.terminating = true);
    let text = going.text(2);
    assert!(text.contains("etcd-1 is being deleted"), "{text}");
    assert!(text.contains("etcd-4 is being deleted"), "{text}");
    let unstarted = ListedMember { name: String::new(), client_urls: Vec::new(), ..listed(5) };
    let corrupt = snapshot.relist(|list| list.push(unstarted.clone())).restate(0, |status| {
        status.alarms = vec![Alarm { member_id: MemberId(0), kind: AlarmKind::Corrupt }];
    });
    let text = corrupt.text(1);
    assert!(text.contains("etcd-4, member e7cd0005 (its data is corrupt)"), "{text}");
}

#[test]
fn warns_of_full_cluster() {
    let full = cluster(5).restate(0, |status| {
        status.alarms = vec![Alarm { member_id: id(1), kind: AlarmKind::NoSpace }];
    });
    let verdict = full.explained(1);
    assert_eq!(verdict.reason, Reason::SafeToDelete);
    assert_eq!(verdict.warnings, ["etcd prod/etcd is out of space (alarm NOSPACE) and rejects writes"]);
}

#[test]
fn warns_if_no_voter_to_spare_remains() {
    let verdict = cluster(3).explained(1);
    assert_eq!(
        verdict.warnings,
        ["etcd prod/etcd has no voter to spare until etcd-1 is ready: 2 of 3 remain, quorum 2"]
    );
}

#[test]
fn reason_without_proven_quorum_depends_on_replies() {
    assert_eq!(cluster(3).silence(0).silence(1).silence(2).reason(1), Reason::EtcdUnreachable);
    assert_eq!(cluster(3).starve(0).silence(1).silence(2).reason(0), Reason::QuorumLost);
    let two_of_five = cluster(5).starve(0).starve(1).silence(2).silence(3).silence(4);
    assert_eq!(two_of_five.reason(0), Reason::QuorumLost, "no election ends with two of five");
    // A leader that died a moment ago, still named by its followers.
    assert_eq!(cluster(3).silence(0).starve(1).starve(2).reason(1), Reason::ElectionInProgress);
    let rejected = ProbeResult::NoStatus {
        cause: MemberError::CredentialsRejected(String::from("authentication failed")),
    };
    let locked = cluster(3).silence(0).silence(1).change(2, |pod| pod.reply = rejected.clone());
    assert_eq!(locked.reason(1), Reason::CredentialsRejected);
}
