//! Member lists that what the members do contradicts.

use super::*;
use crate::{
    assess::{node_deletion::evaluate_node_deletion, scale_down::evaluate_scale_down},
    etcd::member::Suffrage,
    membership::contradiction::Contradiction,
};

/// A cluster in which the last member is listed as a learner, and answers as one.
fn with_listed_learner(size: usize) -> Snapshot {
    let last = size - 1;
    let reply = ProbeResult::StatusOnly {
        status: Status { is_learner: true, ..status(last) },
        cause: MemberError::Learner,
    };
    cluster(size)
        .relist(move |list| list[last].is_learner = true)
        .change(last, |pod| pod.reply = reply.clone())
}

/// Three voters, of which one is listed as a learner (etcd issue 19557), and another one is down.
#[test]
fn listed_learner_stays_while_too_few_listed_voters_respond() {
    let all_serve = with_listed_learner(3);
    assert_eq!(all_serve.reason(2), Reason::NotAVoter);
    for down in [all_serve.clone().crash(1), all_serve.clone().silence(1)] {
        assert_eq!(down.reason(2), Reason::QuorumAtRisk);
        assert_eq!(down.reason(0), Reason::QuorumAtRisk);
        assert_eq!(down.reason(1), Reason::QuorumAtRisk, "it may be the learner that is none");
        let text = down.text(2);
        let numbers = "is not healthy: without etcd-2, prod/etcd would have 1 of 2 voters healthy, quorum 2; reads pass";
        let cause = "; reads pass although only 1 of 2 voters respond: the others may vote unseen, or the member list may be wrong.";
        assert!(text.contains(numbers) && text.contains(cause), "{text}");
        let node = |n: usize| {
            let uid = format!("uid-{n}");
            evaluate_node_deletion(&down, "worker", &[uid.as_str()].into()).reason
        };
        assert_eq!((node(2), node(1)), (Reason::IntentProtected, Reason::IntentHarmless));
        assert_eq!(evaluate_scale_down(&down, "etcd", 0..2).reason, Reason::IntentProtected);
    }
    let leaving = all_serve.clone().change(1, |pod| pod.terminating = true);
    assert_eq!(leaving.reason(2), Reason::DisruptionInProgress);
    // The voter responds: it can be part of the quorum that the read proves.
    assert_eq!(all_serve.starve(1).reason(2), Reason::NotAVoter);
}

#[test]
fn removed_member_that_answers_stays_while_too_few_voters_respond() {
    let removed = cluster(4).relist(|list| drop(list.pop()));
    assert_eq!(removed.clone().silence(1).reason(3), Reason::NotAVoter);
    assert_eq!(removed.clone().silence(1).silence(2).reason(3), Reason::QuorumAtRisk);
    let crashed = removed.silence(1).silence(2).crash(3);
    assert_eq!(crashed.reason(3), Reason::NotAVoter, "it does not run");
}

#[test]
fn removed_member_stays_while_it_leads() {
    let removed = cluster(4).relist(|list| drop(list.remove(0)));
    assert_eq!(removed.reason(0), Reason::ElectionInProgress);
}

#[test]
fn denies_all_pods_if_listed_learner_leads() {
    let mut snapshot = with_listed_learner(3);
    for n in 0..3 {
        snapshot = snapshot.restate(n, |status| status.leader = Some(id(2)));
    }
    for n in 0..3 {
        assert_eq!(snapshot.reason(n), Reason::MemberListWrong);
    }
    let text = snapshot.text(0);
    let expected = "the member list of prod/etcd is wrong: etcd-2 is listed as a learner and leads (";
    assert!(text.contains(expected) && text.ends_with("member list -w table"), "{text}");
}

/// Two voters and a learner that is listed as a voter (etcd issue 21694).
#[test]
fn denies_all_pods_if_listed_voter_is_a_learner() {
    let snapshot = cluster(3);
    assert_eq!(snapshot.reason(1), Reason::SafeToDelete);
    let contradicted = snapshot.restate(2, |status| status.suffrage = Some(Suffrage::Learner));
    for n in 0..3 {
        assert_eq!(contradicted.reason(n), Reason::MemberListWrong);
    }
    let membership = Membership::new(&contradicted).unwrap();
    assert_eq!(membership.contradiction(), Some(Contradiction::VoterIsLearner(String::from("etcd-2"))));
    assert_eq!(evaluate_scale_down(&contradicted, "etcd", 0..2).reason, Reason::MemberListWrong);
    let node = evaluate_node_deletion(&contradicted, "worker", &["uid-1"].into());
    assert_eq!(node.reason, Reason::IntentProtected);
}

#[test]
fn denies_all_pods_if_listed_learner_votes() {
    let contradicted = with_listed_learner(4).restate(3, |status| status.suffrage = Some(Suffrage::Voter));
    for n in 0..4 {
        assert_eq!(contradicted.reason(n), Reason::MemberListWrong);
    }
    let genuine = with_listed_learner(4).restate(3, |status| status.suffrage = Some(Suffrage::Learner));
    assert_eq!(genuine.reason(1), Reason::SafeToDelete);
}

/// Around a promotion, other members list the member as a voter before it has applied the promotion.
#[test]
fn member_that_has_not_applied_its_promotion_is_no_contradiction() {
    let mut snapshot = cluster(3).restate(2, |status| status.suffrage = Some(Suffrage::Learner));
    if let ProbeResult::Healthy { members, .. } = &mut snapshot.pods[2].reply {
        members[2].is_learner = true;
    }
    assert_eq!(snapshot.reason(1), Reason::QuorumAtRisk, "it does not count yet");
}

/// A member is removed, or its list lost it, between two answers: only lists that agree prove that it votes.
#[test]
fn voter_counts_as_healthy_only_if_all_lists_contain_it() {
    let changes: [fn(&mut Vec<ListedMember>); 2] =
        [|list| list[2].is_learner = true, |list| drop(list.pop())];
    for change in changes {
        let mut snapshot = cluster(3);
        if let ProbeResult::Healthy { members, .. } = &mut snapshot.pods[0].reply {
            change(members);
        }
        assert_eq!(snapshot.reason(1), Reason::QuorumAtRisk);
        let text = snapshot.text(1);
        assert!(text.contains("etcd-2 (the members do not agree that it is a voter)"), "{text}");
        assert_eq!(snapshot.reason(2), Reason::SafeToDelete, "the others are a quorum of both lists");
    }
}

fn warnings(snapshot: &Snapshot, n: usize) -> String {
    snapshot.explained(n).warnings.join("\n")
}

/// All members that reply run this release.
fn on_release(mut snapshot: Snapshot, version: &str) -> Snapshot {
    for n in 0..snapshot.pods.len() {
        snapshot = snapshot.restate(n, |status| version.clone_into(&mut status.version));
    }
    snapshot
}

fn votes(snapshot: Snapshot, n: usize) -> Snapshot {
    snapshot.restate(n, |status| status.suffrage = Some(Suffrage::Voter))
}

#[test]
fn approval_names_voters_that_may_be_learners() {
    let old = |snapshot| on_release(snapshot, "3.6.11");
    let unknown = old(cluster(3));
    let text = warnings(&unknown, 1);
    let expected = "etcd 3.6.11 can list a learner as a voter (fixed in 3.6.12): nothing proves that etcd-0 or etcd-2 votes";
    assert!(text.contains(expected), "{text}");
    let partly = votes(unknown, 0);
    assert!(warnings(&partly, 1).contains("that etcd-2 votes"), "{}", warnings(&partly, 1));
    assert!(!warnings(&votes(partly, 2), 1).contains("can list"));
    assert!(!warnings(&cluster(3), 1).contains("can list"), "a corrected release");
    let spare = (0..3).fold(old(cluster(5)), votes);
    assert!(!warnings(&spare, 3).contains("can list"), "the proven ones are a quorum");
}

#[test]
fn approval_of_a_learner_warns_if_it_could_be_a_needed_voter() {
    let old =
        |snapshot: Snapshot, n: usize| snapshot.restate(n, |status| "3.5.19".clone_into(&mut status.version));
    let degraded = old(with_listed_learner(4).starve(1), 3);
    assert_eq!(degraded.reason(3), Reason::NotAVoter);
    let text = warnings(&degraded, 3);
    let expected = "etcd-3 may be a voter that the list shows as a learner: if so, the cluster loses its quorum\n\
                    etcd 3.5.19 can list a voter as a learner (fixed in 3.5.31): its log names raft's voters";
    assert!(text.contains(expected), "{text}");
    assert_eq!(warnings(&old(with_listed_learner(4), 3), 3), "");
    let two_serve_of_three = old(with_listed_learner(3).starve(1), 2);
    assert_eq!(
        two_serve_of_three.reason(2),
        Reason::QuorumAtRisk,
        "the voter that does not serve proves nothing"
    );
    assert_eq!(warnings(&with_listed_learner(4).starve(1), 3), "", "a corrected release");
}

/// Raft counts members whose promotions the list lost (etcd issue 19557), and which are down.
#[test]
fn approval_names_learners_that_may_be_voters() {
    let listed_learners = |size: usize, version| {
        let lost =
            cluster(size).relist(|list| list.iter_mut().skip(3).for_each(|member| member.is_learner = true));
        (0..3).fold(on_release((3..size).fold(lost, Snapshot::silence), version), votes)
    };
    let may_vote = |names: &str| {
        format!(
            "{names} may be a voter that the list shows as a learner: if so, the cluster loses its quorum"
        )
    };
    let four = listed_learners(4, "3.6.11");
    assert_eq!(four.reason(1), Reason::SafeToDelete);
    let text = warnings(&four, 1);
    assert!(text.contains(&may_vote("etcd-3")), "{text}");
    let check = "etcd 3.6.11 can list a voter as a learner (fixed in 3.6.12): its log names raft's voters";
    assert!(text.contains(check) && !text.contains("a learner as a voter"), "{text}");
    let five = listed_learners(5, "3.6.11");
    assert!(warnings(&five, 1).contains(&may_vote("etcd-3 or etcd-4")), "{}", warnings(&five, 1));
    let scale_down = evaluate_scale_down(&four, "etcd", 0..2);
    assert_eq!(scale_down.reason, Reason::IntentHarmless);
    assert!(scale_down.warnings.contains(&may_vote("etcd-3")), "{:?}", scale_down.warnings);
    let node = evaluate_node_deletion(&four, "worker", &["uid-1"].into());
    assert_eq!(node.reason, Reason::IntentHarmless);
    assert!(node.warnings.contains(&may_vote("etcd-3")), "{:?}", node.warnings);

    for version in ["3.4.21", "3.6.16"] {
        let text = warnings(&listed_learners(4, version), 1);
        assert!(!text.contains("may be a voter"), "{version} does not lose promotions: {text}");
    }
    let crashed = four.crash(1);
    assert_eq!(crashed.reason(1), Reason::MemberNotServing);
    assert!(!warnings(&crashed, 1).contains("may be a voter"), "the quorum does not include it");
}

#[test]
fn learner_that_responds_and_stays_needs_no_warning() {
    let old = |snapshot| (0..3).fold(on_release(snapshot, "3.6.11"), votes);
    let responds = old(with_listed_learner(4));
    assert_eq!(responds.reason(1), Reason::SafeToDelete);
    assert!(!warnings(&responds, 1).contains("may be a voter"), "{}", warnings(&responds, 1));
    let leaves = responds.change(3, |pod| pod.terminating = true);
    assert!(warnings(&leaves, 1).contains("etcd-3 may be a voter"), "{}", warnings(&leaves, 1));
    // If only the silent one votes, two of four voters remain.
    let one_of_two = old(with_listed_learner(5).relist(|list| list[3].is_learner = true).silence(3));
    assert_eq!(one_of_two.reason(1), Reason::SafeToDelete);
    assert!(warnings(&one_of_two, 1).contains("etcd-3 may be a voter"), "{}", warnings(&one_of_two, 1));
}
