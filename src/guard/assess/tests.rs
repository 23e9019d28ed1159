//! Clusters are made of a few words here: `cluster(3)` is healthy, led by its first member; each test then breaks it.

mod laws;

use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::{
    etcd::{Alarm, ClusterId},
    guard::{explain::explain, snapshot::Storage},
};

/// The id of the member that pod `etcd-N` runs.
pub(super) fn id(n: usize) -> MemberId {
    MemberId(0xe7cd_0000 + u64::try_from(n).unwrap())
}

fn listed(n: usize) -> ListedMember {
    ListedMember {
        id: id(n),
        name: format!("etcd-{n}"),
        peer_urls: vec![format!("http://etcd-{n}.etcd.prod.svc:2380")],
        client_urls: vec![format!("http://etcd-{n}.etcd.prod.svc:2379")],
        is_learner: false,
    }
}

fn status(n: usize) -> Status {
    Status {
        member_id: id(n),
        cluster_id: ClusterId(0xc1),
        leader: Some(id(0)),
        term: 7,
        applied_index: 100,
        version: String::from("3.6.16"),
        is_learner: false,
        alarms: Vec::new(),
    }
}

fn pod(n: usize, list: &[ListedMember]) -> MemberPod {
    MemberPod {
        name: format!("etcd-{n}"),
        uid: format!("uid-{n}"),
        container: String::from("etcd"),
        ip: format!("10.0.0.{n}"),
        member_name: None,
        terminating: false,
        reserved: false,
        running: true,
        storage: Storage::Persistent,
        reply: Reply::Serving { status: status(n), members: list.to_vec() },
    }
}

/// A healthy cluster of this many voters, led by `etcd-0`.
pub(in crate::guard) fn cluster(size: usize) -> Snapshot {
    let list: Vec<ListedMember> = (0..size).map(listed).collect();
    Snapshot {
        cluster: String::from("prod/etcd"),
        namespace: String::from("prod"),
        taken_at: Instant::now(),
        pods: (0..size).map(|n| pod(n, &list)).collect(),
        elsewhere: Vec::new(),
    }
}

fn timed_out() -> Cause {
    Cause::TimedOut(Duration::from_millis(750))
}

impl Snapshot {
    /// Nothing answers at this pod.
    pub(in crate::guard) fn silence(mut self, n: usize) -> Self {
        self.pods[n].reply = Reply::Silent { cause: timed_out() };
        self
    }

    /// Nobody listens at this pod's address.
    fn refuse(mut self, n: usize) -> Self {
        self.pods[n].reply =
            Reply::Silent { cause: Cause::Refused(String::from("Connection refused (os error 111)")) };
        self
    }

    /// This pod's container has ended, and nobody listens there.
    pub(in crate::guard) fn crash(mut self, n: usize) -> Self {
        self.pods[n].running = false;
        self.refuse(n)
    }

    /// The member still answers, but no linearizable read passes.
    pub(in crate::guard) fn starve(mut self, n: usize) -> Self {
        self.pods[n].reply = Reply::Answering { status: status(n), cause: timed_out() };
        self
    }

    /// Changes every list that a serving member shows.
    pub(super) fn relist(mut self, change: impl Fn(&mut Vec<ListedMember>)) -> Self {
        for pod in &mut self.pods {
            if let Reply::Serving { members, .. } = &mut pod.reply {
                change(members);
            }
        }
        self
    }

    /// Changes what one member says of itself.
    pub(super) fn restate(mut self, n: usize, change: impl Fn(&mut Status)) -> Self {
        match &mut self.pods[n].reply {
            Reply::Serving { status, .. } | Reply::Answering { status, .. } => change(status),
            Reply::Silent { .. } => {}
        }
        self
    }

    fn change(mut self, n: usize, change: impl Fn(&mut MemberPod)) -> Self {
        change(&mut self.pods[n]);
        self
    }

    fn reason(&self, n: usize) -> Reason {
        assess(self, &self.pods[n], &Policy::default()).reason
    }

    fn text(&self, n: usize) -> String {
        let target = &self.pods[n];
        explain(self, target, &assess(self, target, &Policy::default()), self.taken_at).text()
    }
}

#[test]
fn a_follower_of_a_healthy_cluster_may_go() {
    assert_eq!(cluster(3).reason(1), Reason::SafeToDelete);
    assert_eq!(cluster(5).reason(4), Reason::SafeToDelete);
}

#[test]
fn the_leader_is_protected() {
    assert_eq!(cluster(3).reason(0), Reason::LeaderProtected);
    assert_eq!(
        cluster(3).text(0),
        "pod etcd-0 is the leader of etcd cluster prod/etcd (member e7cd0000, term 7; 3 of 3 voters healthy, quorum 2). \
         Move leadership first, by etcd-guard.io/leader=transfer on the StatefulSet or by hand, for instance to etcd-2: \
         kubectl -n prod exec etcd-0 -c etcd -- etcdctl move-leader e7cd0002 [LeaderProtected]"
    );
}

#[test]
fn the_leader_is_protected_even_if_only_others_say_that_it_leads() {
    // The guard cannot reach the leader, but reads pass through it at its followers.
    assert_eq!(cluster(3).silence(0).reason(0), Reason::LeaderProtected);
}

#[test]
fn nobody_goes_while_the_named_leader_does_not_serve_at_its_own_address() {
    assert_eq!(cluster(5).silence(0).reason(1), Reason::ElectionInProgress);
}

#[test]
fn nobody_goes_while_members_of_one_term_name_different_leaders() {
    let split_brain = cluster(3).restate(1, |status| status.leader = Some(id(1)));
    assert_eq!(split_brain.reason(2), Reason::ElectionInProgress);
}

#[test]
fn the_leader_of_the_highest_term_counts() {
    let moved = |status: &mut Status| {
        status.leader = Some(id(1));
        status.term = 8;
    };
    let after = cluster(3).restate(1, moved).restate(2, moved);
    assert_eq!(after.reason(1), Reason::LeaderProtected);
    assert_eq!(after.reason(0), Reason::SafeToDelete);
}

#[test]
fn the_term_of_a_member_that_is_cut_off_does_not_count() {
    let cut_off = cluster(5).starve(4).restate(4, |status| {
        status.term = 900;
        status.leader = None;
    });
    assert_eq!(cut_off.reason(1), Reason::SafeToDelete);
    assert_eq!(cut_off.reason(0), Reason::LeaderProtected);
}

#[test]
fn a_second_pod_stays_while_the_first_terminates() {
    // The dying member still answers: it drains for up to seven seconds.
    let dying = cluster(3).change(1, |pod| pod.terminating = true);
    assert_eq!(dying.reason(2), Reason::DisruptionInProgress);
    assert_eq!(
        dying.text(2),
        "without pod etcd-2 etcd cluster prod/etcd would have 1 of 3 voters healthy, quorum 2: etcd-1 is on the way \
         out. Wait until it is back and try again: kubectl -n prod get pods -w [DisruptionInProgress]"
    );
}

#[test]
fn a_second_pod_stays_while_the_first_is_reserved() {
    let reserved = cluster(3).change(1, |pod| pod.reserved = true);
    assert_eq!(reserved.reason(2), Reason::DisruptionInProgress);
}

#[test]
fn its_own_reservation_does_not_count_against_a_pod() {
    let again = cluster(3).change(1, |pod| pod.reserved = true);
    assert_eq!(again.reason(1), Reason::SafeToDelete);
}

#[test]
fn five_members_spare_two() {
    let one_gone = cluster(5).change(1, |pod| pod.terminating = true);
    assert_eq!(one_gone.reason(2), Reason::SafeToDelete);
    let two_gone = one_gone.change(2, |pod| pod.reserved = true);
    assert_eq!(two_gone.reason(3), Reason::DisruptionInProgress);
}

#[test]
fn a_healthy_pod_stays_while_another_of_three_is_down() {
    let down = cluster(3).crash(2);
    assert_eq!(down.reason(1), Reason::QuorumAtRisk);
    assert_eq!(
        down.text(1),
        "without pod etcd-1 etcd cluster prod/etcd would have 1 of 3 voters healthy, quorum 2; not healthy: etcd-2 \
         (Connection refused (os error 111)). Bring it back first: kubectl -n prod describe pod etcd-2 [QuorumAtRisk]"
    );
    assert_eq!(cluster(5).crash(2).reason(1), Reason::SafeToDelete);
}

/// Of three voters the first has been down for long, and the second serves: so the third votes, though its kubelet has told
/// neither its address nor that its container runs.
#[test]
fn a_voter_that_must_live_because_another_serves_is_not_taken_for_idle() {
    let unseen = |n: usize| Cause::Unreachable(format!("pod etcd-{n} has no address"));
    let snapshot = cluster(3).crash(0).silence(2).change(2, |pod| {
        pod.running = false;
        pod.reply = Reply::Silent { cause: unseen(2) };
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

/// What is allowed of a single member is that it is away for a while.
#[test]
fn the_only_copy_of_the_data_is_not_deleted_by_a_permission_to_restart_it() {
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
fn leadership_is_not_handed_to_a_member_whose_data_is_corrupt() {
    let alarm = Alarm { member_id: id(1), kind: AlarmKind::Corrupt };
    let snapshot = cluster(3).restate(1, |status| status.applied_index += 1);
    let heir_of = |snapshot: &Snapshot| heir(snapshot, &snapshot.pods[0]).map(|(pod, _)| pod.name.clone());
    assert_eq!(heir_of(&snapshot).as_deref(), Some("etcd-1"));
    assert_eq!(heir_of(&snapshot.restate(2, |status| status.alarms.push(alarm))).as_deref(), Some("etcd-2"));
}

#[test]
fn a_frozen_member_counts_as_down() {
    assert_eq!(cluster(3).silence(2).reason(1), Reason::QuorumAtRisk);
    assert_eq!(cluster(3).starve(2).reason(1), Reason::QuorumAtRisk);
}

#[test]
fn a_broken_pod_may_go_while_the_others_are_healthy() {
    assert_eq!(cluster(3).silence(2).reason(2), Reason::SafeToDelete);
    assert_eq!(cluster(3).crash(2).reason(2), Reason::MemberNotServing);
    let silent = cluster(3).crash(2).silence(2);
    assert_eq!(silent.reason(2), Reason::MemberNotServing, "the others are a quorum without it");
}

#[test]
fn a_pod_that_serves_nothing_may_go_even_without_a_quorum() {
    // Its restart may be the cure.
    let lost = cluster(3).crash(0).crash(1).starve(2);
    assert_eq!(lost.reason(0), Reason::MemberNotServing);
    assert_eq!(lost.reason(2), Reason::QuorumLost);
    let without_address = lost.clone().silence(0).change(0, |pod| pod.ip.clear());
    assert_eq!(without_address.reason(0), Reason::MemberNotServing, "it was never started");
    // Its kubelet may be late, and an election be under way that it takes part in.
    assert_ne!(lost.silence(0).reason(0), Reason::MemberNotServing);
}

#[test]
fn a_voter_that_never_started_counts_for_the_quorum() {
    let unstarted = ListedMember { name: String::new(), client_urls: Vec::new(), ..listed(3) };
    let grown = cluster(3).relist(|list| list.push(unstarted.clone()));
    assert_eq!(grown.reason(1), Reason::QuorumAtRisk);
    assert!(
        grown
            .text(1)
            .contains("2 of 4 voters healthy, quorum 3; not healthy: member e7cd0003 (it has never started)")
    );
}

#[test]
fn a_learner_may_go_and_does_not_count() {
    let learner = |list: &mut Vec<ListedMember>| list[3].is_learner = true;
    let mut snapshot = cluster(4).relist(learner);
    let mut status = status(3);
    status.is_learner = true;
    snapshot.pods[3].reply = Reply::Answering { status, cause: Cause::Learner };
    assert_eq!(snapshot.reason(3), Reason::NotAVoter);
    assert_eq!(snapshot.reason(1), Reason::SafeToDelete);
    assert_eq!(snapshot.crash(2).reason(1), Reason::QuorumAtRisk);
}

#[test]
fn who_votes_in_one_of_two_lists_votes() {
    // The learner was promoted between two members' answers.
    let mut snapshot = cluster(4).crash(3);
    if let Reply::Serving { members, .. } = &mut snapshot.pods[0].reply {
        members[3].is_learner = true;
    }
    assert_eq!(assess(&snapshot, &snapshot.pods[1], &Policy::default()).tally.unwrap().voters, 4);
    assert_eq!(snapshot.reason(1), Reason::QuorumAtRisk);
}

#[test]
fn a_member_that_was_removed_has_no_vote() {
    let removed = cluster(4).relist(|list| drop(list.pop()));
    assert_eq!(removed.reason(3), Reason::NotAVoter);
}

#[test]
fn a_pod_without_a_member_stays_while_a_voter_has_no_pod() {
    // The pod that answers to no listed id may be the voter that nobody can find.
    let renamed = cluster(3).relist(|list| list[2].id = MemberId(0xbad));
    assert_eq!(renamed.reason(2), Reason::AmbiguousMember);
}

#[test]
fn two_pods_that_look_like_one_member_are_ambiguous() {
    let twins = cluster(3).restate(2, |status| status.member_id = id(1));
    assert_eq!(twins.reason(1), Reason::AmbiguousMember);
    assert!(twins.text(1).contains("etcd-2 (both it and etcd-1 look like member e7cd0001)"));
}

#[test]
fn a_silent_pod_is_known_by_its_peer_url() {
    let named_otherwise = cluster(3).relist(|list| list[2].name = String::from("default")).crash(2);
    assert_eq!(named_otherwise.reason(2), Reason::MemberNotServing);
    assert_eq!(assess(&named_otherwise, &named_otherwise.pods[2], &Policy::default()).member, Some(id(2)));
}

#[test]
fn a_silent_pod_is_known_by_the_name_that_etcd_was_given() {
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
fn pods_of_different_clusters_are_told_apart_and_nobody_goes() {
    let mixed = cluster(3).restate(2, |status| status.cluster_id = ClusterId(0xc2));
    assert_eq!(mixed.reason(1), Reason::SplitCluster);
    assert!(mixed.text(1).contains("(c1, c2)"), "{}", mixed.text(1));
}

#[test]
fn a_single_member_stays() {
    assert_eq!(cluster(1).reason(0), Reason::SingleMember);
    assert_eq!(cluster(1).crash(0).reason(0), Reason::MemberNotServing);
}

#[test]
fn two_members_spare_none() {
    assert_eq!(cluster(2).reason(1), Reason::QuorumAtRisk);
    assert!(cluster(2).text(1).contains("add a member first"));
}

#[test]
fn owners_may_let_a_single_member_go() {
    let policy = Policy { single_member: Permission::Allow, ..Policy::default() };
    let snapshot = cluster(1);
    assert_eq!(assess(&snapshot, &snapshot.pods[0], &policy).reason, Reason::SingleMemberAllowed);
    let three = cluster(3).silence(1).silence(2);
    assert!(!assess(&three, &three.pods[0], &policy).reason.allows(), "one of three is no single member");
}

#[test]
fn owners_may_let_data_go() {
    let policy = Policy { ephemeral_data: Permission::Allow, ..Policy::default() };
    let snapshot = cluster(3).change(1, |pod| pod.storage = Storage::Ephemeral);
    assert_eq!(assess(&snapshot, &snapshot.pods[1], &policy).reason, Reason::SafeToDelete);
    let down = snapshot.silence(2);
    assert_eq!(assess(&down, &down.pods[1], &policy).reason, Reason::QuorumAtRisk);
}

#[test]
fn owners_may_let_the_leader_go_but_not_the_quorum() {
    let policy = Policy { leader: LeaderPolicy::Allow, ..Policy::default() };
    let snapshot = cluster(3);
    assert_eq!(assess(&snapshot, &snapshot.pods[0], &policy).reason, Reason::LeaderAllowed);
    let down = snapshot.silence(2);
    assert_eq!(assess(&down, &down.pods[0], &policy).reason, Reason::QuorumAtRisk);
}

#[test]
fn the_heir_is_a_voter_that_serves_stays_and_has_applied_most() {
    let best = |snapshot: &Snapshot| heir(snapshot, &snapshot.pods[0]).map(|(pod, _)| pod.name.clone());
    let ahead = cluster(5).restate(2, |status| status.applied_index = 200);
    assert_eq!(best(&ahead).as_deref(), Some("etcd-2"));
    assert_ne!(best(&ahead.clone().change(2, |pod| pod.reserved = true)).as_deref(), Some("etcd-2"));
    assert_ne!(best(&ahead.clone().change(2, |pod| pod.terminating = true)).as_deref(), Some("etcd-2"));
    assert_ne!(best(&ahead.clone().starve(2)).as_deref(), Some("etcd-2"));
    assert_ne!(best(&ahead.restate(2, |status| status.is_learner = true)).as_deref(), Some("etcd-2"));
    assert_eq!(best(&cluster(3).silence(1).starve(2)), None);
}

/// Edge cases 23 and 24.
#[test]
fn a_member_that_a_deletion_ends_needs_one_voter_more() {
    let ends = [
        (
            Storage::Ephemeral,
            "the data of pod etcd-1 goes with it, so that its member can never come back, and etcd",
        ),
        (
            Storage::OnNode,
            "the data of pod etcd-1 lies on its node, and nothing makes its successor come back there",
        ),
        (Storage::ClaimTerminating, "the claim that holds the data of pod etcd-1 goes with it"),
        (
            Storage::RemovedByHook,
            "a preStop hook of pod etcd-1 removes its member, and etcd cluster prod/etcd has no",
        ),
    ];
    for (storage, words) in ends {
        let ends = |pod: &mut MemberPod| pod.storage = storage;
        let three = cluster(3).change(1, ends);
        assert_eq!(three.reason(1), Reason::PermanentLoss, "{storage:?}");
        assert!(three.text(1).starts_with(words), "{}", three.text(1));
        assert_eq!(cluster(5).change(1, ends).reason(1), Reason::SafeToDelete, "{storage:?}");
    }
}

#[test]
fn a_stopped_member_is_lost_with_its_data_but_not_by_a_hook() {
    let crashed = |storage| cluster(3).change(1, |pod| pod.storage = storage).crash(1).reason(1);
    assert_eq!(crashed(Storage::Ephemeral), Reason::PermanentLoss);
    assert_eq!(crashed(Storage::ClaimTerminating), Reason::PermanentLoss);
    assert_eq!(crashed(Storage::RemovedByHook), Reason::MemberNotServing);
}

/// A member that refuses an answer is there, whatever the kubelet says.
#[test]
fn who_refuses_an_answer_is_not_idle() {
    let causes = [
        Cause::CredentialsRejected(String::from("permission denied")),
        Cause::Tls(String::from("unknown issuer")),
        Cause::Closed(String::from("connection closed")),
        Cause::LoginTimedOut(Duration::from_millis(750)),
    ];
    for cause in causes {
        let refusing =
            cluster(3).crash(1).crash(2).change(1, |pod| pod.reply = Reply::Silent { cause: cause.clone() });
        assert_eq!(refusing.reason(2), Reason::MemberNotServing);
        assert_eq!(refusing.reason(1), Reason::QuorumAtRisk, "{cause:?}");
    }
}

/// Edge case 13.
#[test]
fn a_member_elsewhere_counts_by_its_own_word() {
    let mut snapshot = cluster(3);
    let hidden = snapshot.pods.pop().unwrap();
    assert_eq!(snapshot.reason(1), Reason::QuorumAtRisk);
    assert!(snapshot.text(1).contains("none of its client URLs answers for it"), "{}", snapshot.text(1));
    snapshot.elsewhere = vec![Elsewhere { id: id(2), reply: hidden.reply, reserved: false }];
    assert_eq!(snapshot.reason(1), Reason::SafeToDelete);
    assert_eq!(snapshot.reason(0), Reason::LeaderProtected);
    snapshot.elsewhere[0].reserved = true;
    assert_eq!(snapshot.reason(1), Reason::DisruptionInProgress);
    snapshot.elsewhere[0].reserved = false;
    snapshot.elsewhere[0].reply = Reply::Answering { status: status(2), cause: timed_out() };
    assert_eq!(snapshot.reason(1), Reason::QuorumAtRisk);
}

/// A pod that does not answer may be the member that was found by another name.
#[test]
fn a_silent_pod_without_a_member_stays_although_all_voters_answer_somewhere() {
    let mut snapshot = cluster(3).relist(|list| {
        list[2].name = String::from("other");
        list[2].peer_urls = vec![String::from("http://lb.example:2380")];
    });
    let reply = snapshot.pods[2].reply.clone();
    snapshot = snapshot.silence(2);
    snapshot.elsewhere = vec![Elsewhere { id: id(2), reply, reserved: false }];
    assert_eq!(snapshot.reason(2), Reason::AmbiguousMember);
}

#[test]
fn what_is_wrong_with_several_is_said_once() {
    let rejected = Reply::Silent { cause: Cause::CredentialsRejected(String::from("user name is empty")) };
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
        text.contains("kubectl -n prod annotate pod etcd-0 etcd-guard.io/client-tls-secret=NAME"),
        "{text}"
    );
}

#[test]
fn a_corrupt_member_is_not_healthy() {
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
fn a_voter_without_a_pod_is_named_as_its_cluster_names_it() {
    let mut snapshot = cluster(5);
    let hidden = snapshot.pods.pop().unwrap();
    snapshot.elsewhere = vec![Elsewhere { id: id(4), reply: hidden.reply, reserved: true }];
    let going = snapshot.clone().change(1, |pod| pod.terminating = true);
    assert!(going.text(2).contains("etcd-1 and etcd-4 are on the way out"), "{}", going.text(2));
    let unstarted = ListedMember { name: String::new(), client_urls: Vec::new(), ..listed(5) };
    let corrupt = snapshot.relist(|list| list.push(unstarted.clone())).restate(0, |status| {
        status.alarms = vec![Alarm { member_id: MemberId(0), kind: AlarmKind::Corrupt }];
    });
    let text = corrupt.text(1);
    assert!(text.contains("etcd-4, member e7cd0005 (its data is corrupt)"), "{text}");
}

#[test]
fn leadership_is_moved_for_the_leader_alone_and_where_the_policy_says_so() {
    let transfer = Policy { leader: LeaderPolicy::Transfer, ..Policy::default() };
    let wants = |n: usize, policy: &Policy| {
        let snapshot = cluster(3);
        assess(&snapshot, &snapshot.pods[n], policy).wants_transfer(policy)
    };
    assert!(wants(0, &transfer));
    assert!(!wants(0, &Policy::default()));
    assert!(!wants(1, &transfer));
}

#[test]
fn a_full_cluster_keeps_its_votes_and_warns() {
    let full = cluster(5).restate(0, |status| {
        status.alarms = vec![Alarm { member_id: id(1), kind: AlarmKind::NoSpace }];
    });
    let target = &full.pods[1];
    let verdict = explain(&full, target, &assess(&full, target, &Policy::default()), full.taken_at);
    assert_eq!(verdict.reason, Reason::SafeToDelete);
    assert_eq!(verdict.warnings, ["etcd prod/etcd is out of space (alarm NOSPACE) and refuses writes"]);
}

#[test]
fn a_yes_that_leaves_no_voter_to_spare_warns() {
    let snapshot = cluster(3);
    let target = &snapshot.pods[1];
    let verdict =
        explain(&snapshot, target, &assess(&snapshot, target, &Policy::default()), snapshot.taken_at);
    assert_eq!(
        verdict.warnings,
        ["etcd prod/etcd has no voter to spare until etcd-1 is back: 2 of 3 remain, quorum 2"]
    );
}

#[test]
fn without_any_proof_the_reason_says_how_much_answers() {
    assert_eq!(cluster(3).silence(0).silence(1).silence(2).reason(1), Reason::EtcdUnreachable);
    assert_eq!(cluster(3).starve(0).silence(1).silence(2).reason(0), Reason::QuorumLost);
    let two_of_five = cluster(5).starve(0).starve(1).silence(2).silence(3).silence(4);
    assert_eq!(two_of_five.reason(0), Reason::QuorumLost, "no election ends with two of five");
    // A leader that died a moment ago, still named by its followers.
    assert_eq!(cluster(3).silence(0).starve(1).starve(2).reason(1), Reason::ElectionInProgress);
    let rejected = Reply::Silent { cause: Cause::CredentialsRejected(String::from("authentication failed")) };
    let locked = cluster(3).silence(0).silence(1).change(2, |pod| pod.reply = rejected.clone());
    assert_eq!(locked.reason(1), Reason::CredentialsRejected);
}
