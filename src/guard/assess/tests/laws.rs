//! What holds for every cluster there could be: sizes, roles and faults at random.

use proptest::prelude::*;

use super::*;

/// What may be wrong with one member, and with its pod: each on its own, as in life.
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
    Silent,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Leaving {
    No,
    Terminating,
    Reserved,
}

fn fault() -> impl Strategy<Value = Fault> {
    let health = prop_oneof![5 => Just(Health::Serving), 1 => Just(Health::Starving), 1 => Just(Health::Silent),
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

/// The cluster with these faults, as honest members would show it.
fn broken(faults: &[Fault]) -> Snapshot {
    let mut snapshot = cluster(faults.len()).relist(|list| {
        for (member, fault) in list.iter_mut().zip(faults) {
            member.is_learner = fault.learner;
            if !fault.started {
                member.name.clear();
            }
        }
    });
    for (n, fault) in faults.iter().enumerate() {
        let health = if fault.started { fault.reply } else { Health::Refused };
        snapshot = match health {
            Health::Serving if fault.learner => {
                let status = Status { is_learner: true, ..status(n) };
                let reply = Reply::Answering { status, cause: Cause::Learner };
                snapshot.change(n, |pod| pod.reply = reply.clone())
            }
            Health::Serving => snapshot,
            Health::Starving => snapshot.starve(n),
            Health::Silent => snapshot.silence(n),
            Health::Refused => snapshot.refuse(n),
        };
        snapshot = snapshot.change(n, |pod| {
            pod.running = fault.running && fault.started;
            pod.terminating = fault.leaving == Leaving::Terminating;
            pod.reserved = fault.leaving == Leaving::Reserved;
            pod.storage = if fault.ephemeral { Storage::Ephemeral } else { Storage::Persistent };
        });
    }
    snapshot
}

/// Counted anew from the faults, without a line of the code under test.
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

    /// The law above all: after a yes that may cost a vote, those that stay are a quorum. A silent member may vote: what
    /// is not heard may live all the same, as long as somebody proves that there is a quorum.
    #[test]
    fn a_yes_never_costs_the_quorum(faults in faults(), pick in any::<prop::sample::Index>()) {
        let target = pick.index(faults.len());
        let reason = broken(&faults).reason(target);
        let fault = &faults[target];
        let is_proven = faults.iter().any(|fault| serves(fault) && !fault.learner);
        let votes = !fault.learner && fault.started && (is_proven || fault.reply != Health::Refused);
        if reason.allows() && votes {
            let mut staying = staying(&faults, target);
            if fault.reply == Health::Refused {
                // Who starts votes before it listens: unless enough others live that may be those who vote.
                staying += starving(&faults, target);
            }
            prop_assert!(staying > voters(&faults) / 2, "{reason}: {staying} of {} stay", voters(&faults));
        }
    }

    /// The second law: what gives nothing and keeps its data may always go.
    #[test]
    fn a_pod_that_gives_nothing_is_never_held(faults in faults(), pick in any::<prop::sample::Index>()) {
        let target = pick.index(faults.len());
        let snapshot = broken(&faults);
        let pod = &snapshot.pods[target];
        let refused = matches!(pod.reply, Reply::Silent { cause: Cause::Refused(_) });
        let is_proven = faults.iter().any(|fault| serves(fault) && !fault.learner);
        let is_needed = is_proven && staying(&faults, target) <= voters(&faults) / 2 && !faults[target].learner;
        if refused && !is_needed && !pod.running && pod.storage == Storage::Persistent {
            prop_assert!(snapshot.reason(target).allows(), "{}", snapshot.text(target));
        }
    }

    /// A follower that can be spared, of a cluster whose leader serves, is never held.
    #[test]
    fn a_follower_that_can_be_spared_is_never_held(faults in faults(), pick in any::<prop::sample::Index>()) {
        let target = pick.index(faults.len());
        let spare = staying(&faults, target) > voters(&faults) / 2 + usize::from(faults[target].ephemeral);
        if target != 0 && spare && serves(&faults[0]) && !faults[0].learner && voters(&faults) > 1 {
            let snapshot = broken(&faults);
            prop_assert!(snapshot.reason(target).allows(), "{}", snapshot.text(target));
        }
    }

    /// The leader goes by no yes of `assess`.
    #[test]
    fn a_serving_leader_is_never_let_go(faults in faults()) {
        if serves(&faults[0]) && !faults[0].learner {
            prop_assert!(!broken(&faults).reason(0).allows());
        }
    }

    /// A further fault elsewhere never turns a no into a yes, as long as somebody proves that there is a quorum.
    #[test]
    fn one_more_fault_elsewhere_never_turns_a_no_into_a_yes(
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

    /// The order in which the apiserver lists pods means nothing.
    #[test]
    fn the_order_of_pods_means_nothing(faults in faults(), pick in any::<prop::sample::Index>()) {
        let target = pick.index(faults.len());
        let snapshot = broken(&faults);
        let mut reversed = snapshot.clone();
        reversed.pods.reverse();
        let there = &reversed.pods[faults.len() - 1 - target];
        prop_assert_eq!(assess(&reversed, there, &Policy::default()).reason, snapshot.reason(target));
    }

    /// No text breaks the line or leaves out the reason's word.
    #[test]
    fn every_text_is_one_line_with_its_reason(faults in faults(), pick in any::<prop::sample::Index>()) {
        let target = pick.index(faults.len());
        let snapshot = broken(&faults);
        let text = snapshot.text(target);
        let word = format!("[{}]", snapshot.reason(target));
        prop_assert!(text.ends_with(&word), "{}", text);
        prop_assert!(!text.contains(char::is_control), "{}", text);
    }
}
