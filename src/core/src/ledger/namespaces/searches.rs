//! The searches: the correct guard has no violation, and each rule that is left out has one.

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use super::{Action, Counts, Defect, Home, PROGRESS, SAFETY, World};

/// Searches all runs.
#[track_caller]
fn assert_holds(world: World) {
    let started = Instant::now();
    let searched = world.checker().symmetry().spawn_dfs().join();
    println!("{} states in {:?}", searched.unique_state_count(), started.elapsed());
    if let Some(found) = searched.discovery(SAFETY) {
        panic!("{:?}\n{:?}", found.last_state().clone(), found.into_actions());
    }
    searched.assert_any_discovery(PROGRESS);
}

/// Searches for a run that violates the invariant.
#[track_caller]
fn assert_finds(defect: Defect, mut world: World) {
    world.defect = Some(defect);
    let started = Instant::now();
    let found = HasDiscoveries::AllOf([SAFETY].into());
    let searched = world.checker().finish_when(found).symmetry().spawn_dfs().join();
    println!("{} states in {:?}", searched.unique_state_count(), started.elapsed());
    println!("{:?}", searched.assert_any_discovery(SAFETY).into_actions());
}

const fn voter(namespace: u8, cluster: u8) -> Home {
    Home { namespace, cluster, votes: true }
}

const NO_FAULTS: Counts = Counts {
    requests: 2,
    repeated_requests: 0,
    other_writes: 0,
    evictions_by_name: 0,
    crashes: 0,
    restarts: 0,
    promotions: 0,
    restores: 0,
    forced: 0,
    replaced: 0,
    deleted_leases: 0,
};

/// Returns a world of two replicas and two requests without faults.
fn world(pods: &[Home], targets: &[u8]) -> World {
    World {
        pods: pods.to_vec(),
        targets: targets.to_vec(),
        replicas: 2,
        limits: NO_FAULTS,
        starts_down: false,
        keeps_address: false,
        hidden_namespace: None,
        defect: None,
    }
}

/// Three voters in one namespace.
fn one_cluster() -> World {
    world(&[voter(0, 0); 3], &[0, 1])
}

/// A cluster whose members are down at first, so that nobody reports its id.
fn unknown_id() -> World {
    World { starts_down: true, ..one_cluster() }
}

/// Three voters, and another cluster in the same namespace.
fn two_clusters() -> World {
    World {
        limits: Counts { requests: 3, ..NO_FAULTS },
        ..world(&[voter(0, 0), voter(0, 0), voter(0, 0), Home { votes: false, ..voter(0, 1) }], &[0, 1, 3])
    }
}

/// The second cluster has crashed.
fn two_sets() -> World {
    World {
        limits: Counts { requests: 3, ..NO_FAULTS },
        starts_down: true,
        ..world(&[voter(0, 0), voter(0, 0), voter(0, 0), voter(0, 1)], &[0, 1, 3])
    }
}

fn restored() -> World {
    World { limits: Counts { restores: 1, ..NO_FAULTS }, ..one_cluster() }
}

fn two_namespaces() -> World {
    world(&[voter(0, 0), voter(0, 0), voter(1, 0)], &[0, 2])
}

/// The first round finds voters in two namespaces, and a third one has a learner.
fn joining() -> World {
    World {
        limits: Counts { promotions: 1, ..NO_FAULTS },
        starts_down: true,
        ..world(&[voter(0, 0), voter(0, 0), voter(1, 0), Home { votes: false, ..voter(2, 0) }], &[0, 3])
    }
}

/// A deletion that only the ledger of the namespace approves is requested again after a voter joins in another namespace.
fn requested_again() -> World {
    World {
        replicas: 1,
        limits: Counts {
            requests: 3,
            repeated_requests: 1,
            other_writes: 1,
            promotions: 1,
            restarts: 1,
            ..NO_FAULTS
        },
        ..world(&[voter(0, 0), voter(0, 0), voter(0, 0), Home { votes: false, ..voter(1, 0) }], &[0, 1])
    }
}

fn hidden() -> World {
    World { hidden_namespace: Some(1), ..two_namespaces() }
}

/// A Lease is deleted while one replica knows it.
fn deleted_lease() -> World {
    World { replicas: 1, limits: Counts { deleted_leases: 1, ..NO_FAULTS }, ..one_cluster() }
}

fn by_name() -> World {
    World { limits: Counts { evictions_by_name: 1, replaced: 1, ..NO_FAULTS }, ..one_cluster() }
}

/// A pod is deleted, and then evicted by its name.
fn by_name_of_deleted() -> World {
    World {
        replicas: 1,
        limits: Counts { evictions_by_name: 1, repeated_requests: 1, requests: 3, ..NO_FAULTS },
        ..one_cluster()
    }
}

fn forced() -> World {
    World { limits: Counts { forced: 1, ..NO_FAULTS }, keeps_address: true, ..one_cluster() }
}

fn kept_address() -> World {
    World { limits: Counts { replaced: 1, ..NO_FAULTS }, keeps_address: true, ..one_cluster() }
}

#[test]
fn one_cluster_never_loses_its_quorum() {
    assert_holds(World { limits: Counts { crashes: 1, ..NO_FAULTS }, ..one_cluster() });
    assert_holds(World { limits: Counts { restarts: 1, ..NO_FAULTS }, ..one_cluster() });
}

#[test]
fn cluster_without_known_id_never_loses_its_quorum() {
    assert_holds(unknown_id());
}

#[test]
#[ignore = "long; scripts/prove model runs it"]
fn two_clusters_of_one_namespace_never_lose_their_quorum() {
    assert_holds(two_clusters());
}

#[test]
#[ignore = "long; scripts/prove model runs it"]
fn crashed_members_of_two_sets_never_cost_a_quorum() {
    assert_holds(two_sets());
}

#[test]
fn two_deletions_beside_another_cluster_never_cost_a_quorum() {
    assert_holds(World { limits: NO_FAULTS, ..two_clusters() });
    assert_holds(World { limits: NO_FAULTS, ..two_sets() });
}

#[test]
fn restored_cluster_never_loses_its_quorum() {
    assert_holds(restored());
}

#[test]
fn cluster_over_two_namespaces_never_loses_its_quorum() {
    assert_holds(two_namespaces());
}

#[test]
#[ignore = "long; scripts/prove model runs it"]
fn cluster_over_two_namespaces_without_known_id_never_loses_its_quorum() {
    assert_holds(World { starts_down: true, ..two_namespaces() });
}

#[test]
#[ignore = "long; scripts/prove model runs it"]
fn cluster_with_joining_voter_never_loses_its_quorum() {
    assert_holds(joining());
}

#[test]
#[ignore = "long; scripts/prove model runs it"]
fn second_request_for_a_pod_never_costs_the_quorum() {
    assert_holds(requested_again());
}

#[test]
fn cluster_with_hidden_voter_never_loses_its_quorum() {
    assert_holds(hidden());
}

#[test]
fn deleted_lease_never_costs_the_quorum() {
    assert_holds(deleted_lease());
}

#[test]
fn evictions_by_name_never_cost_the_quorum() {
    assert_holds(by_name());
    assert_holds(by_name_of_deleted());
}

#[test]
fn forced_deletions_never_cost_the_quorum() {
    assert_holds(forced());
}

#[test]
fn successors_at_the_same_address_never_cost_the_quorum() {
    assert_holds(kept_address());
}

/// A known limit: nobody reports the id of the cluster, and the other members cannot find the pod.
#[test]
fn finds_limit_of_hidden_pods_without_id() {
    let world = World { starts_down: true, ..hidden() };
    world.checker().symmetry().spawn_dfs().join().assert_any_discovery(SAFETY);
}

/// A known limit: two replicas, of which one has not read the deleted Lease.
#[test]
fn finds_limit_of_deleted_leases() {
    let world = World { replicas: 2, limits: Counts { deleted_leases: 1, ..NO_FAULTS }, ..one_cluster() };
    world.checker().symmetry().spawn_dfs().join().assert_any_discovery(SAFETY);
}

/// Two other deletions are approved, so that five voters are needed.
#[test]
#[ignore = "long; scripts/prove model runs it"]
fn finds_removed_name() {
    assert_finds(
        Defect::RemovesNames,
        World {
            pods: vec![voter(0, 0); 5],
            targets: vec![0, 1, 2],
            replicas: 1,
            limits: Counts { evictions_by_name: 1, replaced: 1, requests: 3, ..NO_FAULTS },
            ..by_name()
        },
    );
}

/// One run: the search finds another one after 444,000 states.
#[test]
fn finds_withdrawal_of_an_earlier_approval() {
    let evaluate = |pod| Action::Evaluate { pod, replica: 0, by_name: false };
    let run = [
        vec![evaluate(0), Action::Read(0), Action::Probe(0), Action::Write(0), Action::Promote(3)],
        // The second request reserves in one namespace and fails in the other.
        vec![
            evaluate(0),
            Action::Read(1),
            Action::Probe(1),
            Action::Read(1),
            Action::Read(1),
            Action::Probe(1),
        ],
        vec![Action::Write(1), Action::WriteOther(1), Action::Write(1), Action::Restart(0)],
        vec![
            evaluate(1),
            Action::Read(1),
            Action::Probe(1),
            Action::Read(1),
            Action::Read(1),
            Action::Probe(1),
        ],
        vec![Action::Write(1), Action::Write(1)],
    ]
    .concat();
    for defect in [None, Some(Defect::WithdrawsEarlierEntries)] {
        let world = World { defect, ..requested_again() };
        let mut state = world.init_states().remove(0);
        let mut possible = Vec::new();
        let is_complete = run.iter().all(|action| {
            possible.clear();
            world.actions(&state, &mut possible);
            let is_possible = possible.contains(action);
            if is_possible {
                state = world.next_state(&state, *action).unwrap();
            }
            is_possible
        });
        assert_eq!((is_complete, state.violated), (defect.is_some(), defect.is_some()), "{state:?}");
    }
}

macro_rules! finds {
    ($($name:ident: $defect:ident in $world:expr;)*) => {
        $(#[test] fn $name() { assert_finds(Defect::$defect, $world); })*
    };
}

finds! {
    finds_lost_update: OverwritesConflicts in one_cluster();
    finds_repeated_write_of_old_content: RepeatsWithOldContent in two_clusters();
    finds_repeated_write_without_own_id: RepeatsWithoutOwnId in unknown_id();
    finds_repeated_write_of_same_cluster: RepeatsForOwnPods in one_cluster();
    finds_repeated_write_beside_unknown_id: RepeatsForOwnPods in unknown_id();
    finds_repeated_write_of_restored_cluster: RepeatsForOwnPods in restored();
    finds_reservations_counted_by_id: CountsOwnIdOnly in restored();
    finds_ledger_of_one_namespace_read: ReadsOwnNamespaceOnly in two_namespaces();
    finds_ledger_of_one_namespace_written: WritesOwnNamespaceOnly in two_namespaces();
    finds_ignored_voter: IgnoresNewVoters in World { replicas: 1, ..joining() };
    finds_ledger_read_after_the_probe: SkipsSecondProbe in two_namespaces();
    finds_approval_after_partial_write: ApprovesAfterPartialWrite in World { starts_down: true, ..two_namespaces() };
    finds_missing_ledger_of_cluster: SkipsClusterLease in hidden();
    finds_forgotten_ledger: ForgetsDeletedLease in deleted_lease();
    finds_forgotten_name: ForgetsNames in by_name();
    finds_forgotten_name_of_a_terminating_pod: ForgetsEndedNames in by_name_of_deleted();
    finds_silent_successor: IgnoresSilentSuccessors in forced();
    finds_removal_before_the_successor_serves: RemovesSilentSuccessors in World {
        limits: Counts { forced: 1, requests: 3, ..NO_FAULTS },
        keeps_address: true,
        replicas: 1,
        ..two_clusters()
    };
    finds_old_list: SkipsRelist in kept_address();
    finds_early_expiry: ExpiresEarly in one_cluster();
    finds_expiry_during_evaluation: ExpiresDuringEvaluation in one_cluster();
    finds_missing_reservation_without_id: SkipsReservationWithoutId in unknown_id();
}
