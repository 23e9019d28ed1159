//! Leaders that leave or were deposed, and members whose answers disagree about the leadership.

use proptest::prelude::*;

use super::*;
use crate::{
    request::{Operation, Requester},
    verdict::Verdict,
};

fn verdict(snapshot: &Snapshot, n: usize) -> Verdict {
    snapshot.explained(n)
}

/// The members of `etcd-N` for all `n` follow the new leader `etcd-1` in term 8.
fn with_new_leader(snapshot: Snapshot, members: &[usize]) -> Snapshot {
    members.iter().fold(snapshot, |snapshot, n| {
        snapshot.restate(*n, |status| (status.leader, status.term) = (Some(id(1)), 8))
    })
}

/// The read of `etcd-0` passed, although the others have elected a new leader.
#[test]
fn deposed_leader_is_not_healthy() {
    let deposed = with_new_leader(cluster(3), &[1, 2]);
    let found = verdict(&deposed, 2);
    assert_eq!(found.reason, Reason::ElectionInProgress);
    assert_eq!(found.refusal(Operation::Evict).unwrap().code, 429, "it follows the new leader in a moment");
    assert_eq!(
        found.text(),
        "ElectionInProgress: prod/etcd has just changed its leader (member e7cd0002, term 8; 2 of 3 voters healthy, \
         quorum 2); not healthy: etcd-0 (it reports the former term 7). An election takes about a second: retry in \
         3 s. If it persists: kubectl -n prod exec etcd-0 -c etcd -- etcdctl endpoint status -w table"
    );
    assert_eq!(deposed.reason(0), Reason::SafeToDelete, "the others are a quorum in the new term");
    assert_eq!(with_new_leader(cluster(5), &[1, 2, 3]).reason(4), Reason::SafeToDelete);
    assert_eq!(with_new_leader(cluster(5), &[1, 2, 3]).reason(3), Reason::ElectionInProgress);
    let down = with_new_leader(cluster(5), &[1, 2, 3]).silence(4);
    assert_eq!(down.reason(3), Reason::ElectionInProgress);
    assert_eq!(down.silence(2).reason(3), Reason::QuorumAtRisk, "also with the former leader");
}

/// The member raises its term for ever, and no read passes through it.
#[test]
fn cut_off_member_with_higher_term_blocks_no_deletion() {
    let cut_off = cluster(3).starve(2).restate(2, |status| (status.leader, status.term) = (None, 900));
    assert_eq!(cut_off.reason(2), Reason::SafeToDelete);
    assert_eq!(cut_off.reason(1), Reason::QuorumAtRisk);
    assert_eq!(verdict(&cut_off, 1).tally.unwrap().healthy, 2);
}

/// The reads of the others passed through the leader, which is about to be deleted.
#[test]
fn denies_while_the_leader_is_leaving() {
    for departure in [|pod: &mut MemberPod| pod.reserved = true, |pod: &mut MemberPod| pod.terminating = true]
    {
        let leaving = cluster(5).change(0, departure);
        assert_eq!(
            verdict(&leaving, 3).message.replace("approved a moment ago", "it is terminating"),
            "the leader of prod/etcd is on its way out: etcd-0 is being deleted (it is terminating); no probe proves that the \
             other voters can reach each other (member e7cd0003, term 7; 5 of 5 voters healthy, quorum 3). Wait until etcd-0 is \
             ready again, then retry: kubectl -n prod get pods -w"
        );
        assert_eq!(with_new_leader(leaving, &[0, 1, 2, 3, 4]).reason(3), Reason::SafeToDelete);
    }
}

#[test]
fn requires_transfer_only_for_leader_and_policy() {
    let transfer = Policy { leader: LeaderPolicy::Transfer, ..Policy::default() };
    let wants = |n: usize, policy: &Policy| {
        let snapshot = cluster(3);
        assess(&snapshot, &snapshot.pods[n], policy).wants_transfer(policy)
    };
    assert!(wants(0, &transfer));
    assert!(wants(0, &Policy::default().for_requester(Requester::Program)));
    assert!(!wants(0, &Policy::default().for_requester(Requester::Person)));
    assert!(!wants(0, &Policy::default()), "the requester is unknown");
    assert!(!wants(1, &transfer));
}

#[test]
fn eviction_from_two_voters_is_refused_for_good() {
    let code = |snapshot: &Snapshot, n: usize| {
        let verdict = verdict(snapshot, n);
        (verdict.reason, verdict.refusal(Operation::Evict).unwrap().code)
    };
    assert_eq!(code(&cluster(2), 1), (Reason::QuorumAtRisk, 403));
    assert_eq!(code(&cluster(2), 0), (Reason::QuorumAtRisk, 403), "a transfer does not help either");
    assert_eq!(code(&cluster(3).silence(2), 1), (Reason::QuorumAtRisk, 429));
    assert_eq!(code(&cluster(3), 0), (Reason::LeaderProtected, 429));
    assert_eq!(code(&cluster(1), 0), (Reason::SingleMember, 403));
}

#[test]
fn eviction_with_loss_is_retried_if_a_recovery_cures_it() {
    let code = |mut snapshot: Snapshot, n: usize| {
        snapshot.pods[n].storage = Storage::Ephemeral;
        let verdict = verdict(&snapshot, n);
        (verdict.reason, verdict.refusal(Operation::Evict).map(|refusal| refusal.code))
    };
    assert_eq!(code(cluster(3), 1), (Reason::PermanentLoss, Some(403)));
    assert_eq!(code(cluster(4), 1), (Reason::PermanentLoss, Some(403)));
    assert_eq!(code(cluster(5).silence(4), 1), (Reason::PermanentLoss, Some(429)));
    assert_eq!(code(cluster(5), 1), (Reason::SafeToDelete, None));
}

proptest! {
    /// The voters that remain after an approval agree on the highest term.
    #[test]
    fn approval_requires_a_quorum_of_one_term(terms in prop::collection::vec(1_u64..4, 3..8), pick in any::<prop::sample::Index>()) {
        let size = terms.len();
        let target = pick.index(size);
        let highest = *terms.iter().max().unwrap();
        let leader = terms.iter().position(|term| *term == highest).unwrap();
        let snapshot = terms.iter().enumerate().fold(cluster(size), |snapshot, (n, term)| {
            let leader = if *term == highest { id(leader) } else { id(size) };
            snapshot.restate(n, |status| (status.leader, status.term) = (Some(leader), *term))
        });
        let remaining = terms.iter().enumerate().filter(|(n, term)| *n != target && **term == highest).count();
        let is_expected = remaining > size / 2 && leader != target;
        prop_assert_eq!(snapshot.reason(target).allows(), is_expected, "{}", snapshot.text(target));
    }
}
