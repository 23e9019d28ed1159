//! The searches: the correct guard has no violation, and each seeded defect has one.

use std::{collections::HashSet, time::Instant};

use stateright::{Checker, HasDiscoveries, Model, Representative};

use crate::ledger::protocol::{
    Defect, State, World,
    properties::{LEADERSHIP, LIVENESS, SAFETY},
};

/// Searches all runs.
#[track_caller]
fn assert_holds(world: World) {
    let started = Instant::now();
    let searched = world.checker().symmetry().spawn_dfs().join();
    let (unique, all) = (searched.unique_state_count(), searched.state_count());
    println!("{unique} states by {all} steps in {:?}", started.elapsed());
    searched.assert_properties();
}

/// Searches all runs, in which some deletions are not possible.
#[track_caller]
fn assert_safe(world: World) {
    let started = Instant::now();
    let searched = world.checker().symmetry().spawn_dfs().join();
    let (unique, all) = (searched.unique_state_count(), searched.state_count());
    println!("{unique} states by {all} steps in {:?}", started.elapsed());
    for property in [SAFETY, LEADERSHIP, LIVENESS] {
        searched.assert_no_discovery(property);
    }
}

/// Searches for a run that violates the property.
#[track_caller]
fn assert_finds(defect: Defect, property: &'static str, mut world: World) {
    world.defect = Some(defect);
    let found = HasDiscoveries::AllOf([property].into());
    let searched = world.checker().finish_when(found).symmetry().spawn_dfs().join();
    println!("{:?}", searched.assert_any_discovery(property).into_actions());
}

/// Returns parameters with two replicas and without faults.
fn world(voters: u8, requests: u8) -> World {
    World {
        voters,
        learners: 0,
        replicas: 2,
        requests,
        crashes: 0,
        restarts: 0,
        leadership: false,
        cut: false,
        cascades: 0,
        defect: None,
    }
}

/// Returns the representatives of the successor states.
fn successors(world: &World, state: &State) -> HashSet<State> {
    world.next_states(state).iter().map(State::representative).collect()
}

/// Returns parameters in which a voter leads, and two replicas without faults.
fn led_world(voters: u8, requests: u8) -> World {
    World { leadership: true, ..world(voters, requests) }
}

/// Symmetry reduction must not omit a run.
#[test]
fn representatives_have_the_same_successors() {
    assert_represented(&world(3, 2));
}

/// With a leader, a transferee, voters that cannot reach each other, and a cascade.
#[test]
fn representatives_with_leadership_have_the_same_successors() {
    assert_represented(&World { cut: true, cascades: 1, ..led_world(3, 2) });
}

#[track_caller]
fn assert_represented(world: &World) {
    let mut open = world.init_states();
    let mut seen = HashSet::new();
    while let Some(state) = open.pop() {
        let renumbered = state.representative();
        if seen.insert(renumbered.clone()) {
            assert_eq!(successors(world, &state), successors(world, &renumbered), "{state:?}");
            open.extend(world.next_states(&state));
        }
    }
    assert!(seen.len() > 1000, "only {} states", seen.len());
}

#[test]
fn two_deletions_of_three_members_never_cost_the_quorum() {
    assert_holds(world(3, 2));
}

#[test]
fn two_deletions_and_a_crash_never_cost_the_quorum() {
    assert_holds(World { crashes: 1, ..world(3, 2) });
}

#[test]
fn two_deletions_and_a_restart_never_cost_the_quorum() {
    assert_holds(World { restarts: 1, ..world(3, 2) });
}

/// The requests can include the learner.
#[test]
fn two_deletions_with_a_learner_never_cost_the_quorum() {
    assert_holds(World { learners: 1, ..world(3, 2) });
}

/// One deletion cannot reach the state in which both spare voters are approved.
#[test]
fn approves_a_spare_member_while_one_of_five_is_down() {
    let searched = World { crashes: 1, ..world(5, 1) }.checker().symmetry().spawn_dfs().join();
    searched.assert_no_discovery(SAFETY);
    searched.assert_no_discovery(LIVENESS);
}

#[test]
#[ignore = "long; scripts/prove model runs it"]
fn three_deletions_of_three_members_never_cost_the_quorum() {
    assert_holds(World { crashes: 1, restarts: 1, ..world(3, 3) });
}

#[test]
#[ignore = "long; scripts/prove model runs it"]
fn three_deletions_with_a_learner_never_cost_the_quorum() {
    assert_holds(World { learners: 1, ..world(3, 3) });
}

#[test]
#[ignore = "long; scripts/prove model runs it"]
fn three_deletions_of_five_members_never_cost_the_quorum() {
    assert_holds(World { crashes: 1, restarts: 1, ..world(5, 3) });
}

#[test]
#[ignore = "long; scripts/prove model runs it"]
fn four_deletions_of_three_members_never_cost_the_quorum() {
    assert_holds(world(3, 4));
}

#[test]
fn two_deletions_with_a_leader_never_cost_the_quorum() {
    assert_holds(led_world(3, 2));
}

/// The voters that remain after the deletion of a leader may not reach each other.
#[test]
fn two_deletions_with_a_cut_link_never_cost_the_quorum() {
    assert_safe(World { cut: true, ..led_world(3, 2) });
}

/// One of the deletions may follow from the accepted deletion of an owner.
#[test]
fn deletion_beside_a_cascade_never_costs_the_quorum() {
    assert_safe(World { cascades: 1, ..world(3, 2) });
}

#[test]
#[ignore = "long; it has not been run to its end"]
fn two_deletions_with_a_leader_of_five_never_cost_the_quorum() {
    assert_holds(led_world(5, 2));
}

#[test]
#[ignore = "long; it has not been run to its end"]
fn two_deletions_with_a_leader_and_all_faults_never_cost_the_quorum() {
    assert_safe(World { crashes: 1, restarts: 1, cut: true, cascades: 1, ..led_world(3, 2) });
}

#[test]
#[ignore = "long; it has not been run to its end"]
fn three_deletions_with_a_leader_never_cost_the_quorum() {
    assert_holds(led_world(3, 3));
}

#[test]
fn finds_guard_that_deletes_a_leader_without_transfer() {
    assert_finds(Defect::SkipsTransfer, LEADERSHIP, led_world(3, 1));
    assert_finds(Defect::SkipsTransfer, SAFETY, World { cut: true, ..led_world(3, 1) });
}

#[test]
fn finds_guard_that_skips_the_probe_after_a_transfer() {
    assert_finds(Defect::SkipsSecondProbe, SAFETY, World { cut: true, ..led_world(3, 1) });
}

/// With three voters, the quorum alone requires that the leader stays.
#[test]
fn finds_guard_that_accepts_a_leaving_leader() {
    assert_finds(Defect::AcceptsLeavingLeader, LEADERSHIP, led_world(5, 2));
}

#[test]
fn finds_guard_that_does_not_reserve_cascades() {
    assert_finds(Defect::SkipsReservationOfCascades, SAFETY, World { cascades: 1, ..world(3, 2) });
}

#[test]
fn finds_guard_that_overwrites_concurrent_changes() {
    assert_finds(Defect::IgnoresConflicts, SAFETY, world(3, 2));
}

#[test]
fn finds_guard_that_approves_from_its_cache() {
    assert_finds(Defect::ApprovesFromCache, SAFETY, world(3, 3));
}

#[test]
fn finds_guard_that_counts_terminating_pods() {
    assert_finds(Defect::CountsTerminating, SAFETY, world(3, 2));
}

#[test]
fn finds_guard_whose_reservations_expire_early() {
    assert_finds(Defect::ExpiresEarly, SAFETY, world(3, 2));
}

#[test]
fn finds_guard_that_counts_learners() {
    assert_finds(Defect::CountsLearners, SAFETY, World { learners: 1, ..world(2, 1) });
}

#[test]
fn finds_guard_that_does_not_reserve_crashed_pods() {
    assert_finds(Defect::SkipsReservationOfIdlePods, SAFETY, World { crashes: 1, ..world(3, 2) });
}

#[test]
fn finds_guard_that_restarts_lifetimes() {
    assert_finds(Defect::RestartsLifetimes, LIVENESS, world(3, 1));
}

#[test]
fn finds_guard_whose_reads_are_far_apart() {
    assert_finds(Defect::ReadsFarApart, SAFETY, world(3, 2));
}
