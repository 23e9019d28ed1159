//! Invariants that hold for clusters with random sizes, roles and faults.

use proptest::prelude::*;

use super::*;
use crate::snapshot::silence::CONFIRMATION_TIME;

/// Faults of one member and its pod, which occur independently of each other.
#[allow(clippy::struct_excessive_bools)]
#[derive(Clone, Debug)]
struct Fault {
    reply: Health,
    leaving: Leaving,
    running: bool,
    ephemeral: bool,
    learner: bool,
    started: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Health {
    Serving,
    Starving,
    NoReply,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Leaving {
    No,
    Terminating,
    Reserved,
}

fn fault() -> impl Strategy<Value = Fault> {
    let health = prop_oneof![5 => Just(Health::Serving), 1 => Just(Health::Starving), 1 => Just(Health::NoReply),
            1 => Just(Health::Refused)];
    let leaving =
        prop_oneof![6 => Just(Leaving::No), 1 => Just(Leaving::Terminating), 1 => Just(Leaving::Reserved)];
    let weighted = prop::bool::weighted;
    (health, leaving, weighted(0.8), weighted(0.1), weighted(0.1), weighted(0.95)).prop_map(
        |(reply, leaving, running, ephemeral, learner, started)| Fault {
            reply,
            leaving,
            running,
            ephemeral,
            learner,
            started,
        },
    )
}

fn faults() -> impl Strategy<Value = Vec<Fault>> {
    prop::collection::vec(fault(), 1..8)
}

/// The cluster with these faults, as its members report it.
fn broken(faults: &[Fault]) -> Snapshot {
    let mut snapshot = cluster(faults.len()).relist(|list| {
        for (member, fault) in list.iter_mut().zip(faults) {
            member.is_learner = fault.learner;
            if !fault.started {
                member.name.clear();
            }
        }
    });
    let taken_at = snapshot.taken_at;
    for (n, fault) in faults.iter().enumerate() {
        let health = if fault.started { fault.reply } else { Health::Refused };
        snapshot = match health {
            Health::Serving if fault.learner => {
                let status = Status { is_learner: true, ..status(n) };
                let reply = ProbeResult::StatusOnly { status, cause: MemberError::Learner };
                snapshot.change(n, |pod| pod.reply = reply.clone())
            }
            Health::Serving => snapshot,
            Health::Starving => snapshot.starve(n),
            Health::NoReply => snapshot.silence(n),
            Health::Refused => snapshot.refuse(n),
        };
        snapshot = snapshot.change(n, |pod| {
            let is_running = fault.running && fault.started;
            pod.report.container = ContainerState::of_started(is_running);
            pod.silent_since = taken_at.checked_sub(CONFIRMATION_TIME);
            pod.terminating = fault.leaving == Leaving::Terminating;
            pod.reserved = fault.leaving == Leaving::Reserved;
            pod.storage = if fault.ephemeral { Storage::Ephemeral } else { Storage::Persistent };
        });
    }
    snapshot
}

/// Counts the voters from the faults, independently of the code under test.
fn voters(faults: &[Fault]) -> usize {
    faults.iter().filter(|fault| !fault.learner).count()
}

fn staying(faults: &[Fault], target: usize) -> usize {
    let stays = |fault: &Fault| serves(fault) && !fault.learner && fault.leaving == Leaving::No;
    faults.iter().enumerate().filter(|(n, fault)| *n != target && stays(fault)).count()
}

fn starving(faults: &[Fault], target: usize) -> usize {
    let starves = |fault: &Fault| {
        fault.started && fault.reply == Health::Starving && !fault.learner && fault.leaving == Leaving::No
    };
    faults.iter().enumerate().filter(|(n, fault)| *n != target && starves(fault)).count()
}

fn serves(fault: &Fault) -> bool {
    fault.started && fault.reply == Health::Serving
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// Safety: after an approval that may remove a voter, the remaining voters are a quorum. A silent member may still
    /// vote, as long as another member proves a quorum.
    #[test]
    fn approval_never_costs_the_quorum(faults in faults(), pick in any::<prop::sample::Index>()) {
        let target = pick.index(faults.len());
        let reason = broken(&faults).reason(target);
        let fault = &faults[target];
        let is_proven = faults.iter().any(|fault| serves(fault) && !fault.learner);
        let votes = !fault.learner && fault.started && (is_proven || fault.reply != Health::Refused);
        if reason.allows() && votes {
            let mut staying = staying(&faults, target);
            if fault.reply == Health::Refused {
                // A starting member votes before it listens, unless enough others that may vote respond.
                staying += starving(&faults, target);
            }
            prop_assert!(staying > voters(&faults) / 2, "{reason}: {staying} of {} stay", voters(&faults));
        }
    }

    /// Liveness: the deletion of a pod that serves nothing and whose data remains is always approved, unless a read passes with
    /// too few listed voters, or through a leader that is listed as a learner.
    #[test]
    fn idle_pod_with_data_is_always_approved(faults in faults(), pick in any::<prop::sample::Index>()) {
        let target = pick.index(faults.len());
        let snapshot = broken(&faults);
        let pod = &snapshot.pods[target];
        let refused = matches!(pod.reply, ProbeResult::NoStatus { cause: MemberError::Refused(_) });
        let is_proven = faults.iter().any(|fault| serves(fault) && !fault.learner);
        let is_needed = is_proven && (staying(&faults, target) <= voters(&faults) / 2 || faults[0].learner);
        if refused && !is_needed && !pod.is_running() && pod.storage == Storage::Persistent {
            prop_assert!(snapshot.reason(target).allows(), "{}", snapshot.text(target));
        }
    }

    /// The deletion of a follower that the quorum does not need is always approved if the leader serves and remains.
    #[test]
    fn spare_follower_is_always_approved(faults in faults(), pick in any::<prop::sample::Index>()) {
        let target = pick.index(faults.len());
        let spare = staying(&faults, target) > voters(&faults) / 2 + usize::from(faults[target].ephemeral);
        let leads = serves(&faults[0]) && !faults[0].learner && faults[0].leaving == Leaving::No;
        if target != 0 && spare && leads && voters(&faults) > 1 {
            let snapshot = broken(&faults);
            prop_assert!(snapshot.reason(target).allows(), "{}", snapshot.text(target));
        }
    }

    /// `assess` does not approve the deletion of a serving leader.
    #[test]
    fn serving_leader_is_never_approved(faults in faults()) {
        if serves(&faults[0]) && !faults[0].learner {
            prop_assert!(!broken(&faults).reason(0).allows());
        }
    }

    /// One more fault of another member does not turn a denial into an approval, as long as a member proves a quorum.
    #[test]
    fn additional_fault_never_turns_denial_into_approval(
        faults in faults(),
        pick in any::<prop::sample::Index>(),
        worse in any::<prop::sample::Index>(),
    ) {
        let (target, other) = (pick.index(faults.len()), worse.index(faults.len()));
        let proves = |(n, fault): (usize, &Fault)| n != other && serves(fault) && !fault.learner;
        let is_proven = faults.iter().enumerate().any(proves);
        if target != other && is_proven && !broken(&faults).reason(target).allows() {
            let after = broken(&faults).silence(other);
            prop_assert!(!after.reason(target).allows(), "{}", after.text(target));
        }
    }

    /// The result does not depend on the order in which the API server lists pods.
    #[test]
    fn order_of_pods_does_not_matter(faults in faults(), pick in any::<prop::sample::Index>()) {
        let target = pick.index(faults.len());
        let snapshot = broken(&faults);
        let mut reversed = snapshot.clone();
        reversed.pods.reverse();
        let there = &reversed.pods[faults.len() - 1 - target];
        prop_assert_eq!(assess(&reversed, there, &Policy::default()).reason, snapshot.reason(target));
    }

    /// Each text starts with the reason code, and has one line for each way to continue.
    #[test]
    fn text_starts_with_reason_code_and_has_no_empty_line(faults in faults(), pick in any::<prop::sample::Index>()) {
        let target = pick.index(faults.len());
        let snapshot = broken(&faults);
        let text = snapshot.text(target);
        let code = format!("{}: ", snapshot.reason(target));
        prop_assert!(text.starts_with(&code), "{}", text);
        let is_plain = |line: &str| !line.trim().is_empty() && !line.contains(char::is_control);
        prop_assert!(text.split('\n').all(is_plain), "{}", text);
    }
}
