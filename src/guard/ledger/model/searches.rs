//! The searches: without a mistake nothing is found, and each mistake is.

use std::{collections::HashSet, time::Instant};

use stateright::{Checker, HasDiscoveries, Model, Representative};

use super::{
    Mistake, State, World,
    law::{LAW, LONE},
};

/// Searches every run.
#[track_caller]
fn assert_holds(world: World) {
    let started = Instant::now();
    let searched = world.checker().symmetry().spawn_dfs().join();
    let (unique, all) = (searched.unique_state_count(), searched.state_count());
    println!("{unique} states by {all} steps in {:?}", started.elapsed());
    searched.assert_properties();
}

/// Searches for a run in which this does not hold.
#[track_caller]
fn assert_finds(mistake: Mistake, property: &'static str, mut world: World) {
    world.mistake = Some(mistake);
    let searched = world.checker().finish_when(HasDiscoveries::AnyFailures).symmetry().spawn_dfs().join();
    println!("{:?}", searched.assert_any_discovery(property).into_actions());
}

/// So many voters and deletions, two replicas, and nothing that dies or restarts.
fn world(voters: u8, calls: u8) -> World {
    World { voters, learners: 0, replicas: 2, calls, deaths: 0, restarts: 0, mistake: None }
}

/// What can follow a state, but for names.
fn followers(world: &World, state: &State) -> HashSet<State> {
    world.next_states(state).iter().map(State::representative).collect()
}

/// So that no run is left out where one state is searched for all that differ in names alone.
#[test]
fn the_same_follows_a_state_under_other_names() {
    let world = world(3, 2);
    let mut open = world.init_states();
    let mut seen = HashSet::new();
    while let Some(state) = open.pop() {
        let renamed = state.representative();
        if seen.insert(renamed.clone()) {
            assert_eq!(followers(&world, &state), followers(&world, &renamed), "{state:?}");
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
fn two_deletions_never_cost_the_quorum_where_a_member_dies() {
    assert_holds(World { deaths: 1, ..world(3, 2) });
}

#[test]
fn two_deletions_never_cost_the_quorum_where_a_replica_restarts() {
    assert_holds(World { restarts: 1, ..world(3, 2) });
}

/// The learner may be asked for as well.
#[test]
fn two_deletions_never_cost_the_quorum_where_there_is_a_learner() {
    assert_holds(World { learners: 1, ..world(3, 2) });
}

/// One deletion cannot reach all that two can.
#[test]
fn a_member_that_can_be_spared_may_go_while_one_of_five_is_down() {
    let searched = World { deaths: 1, ..world(5, 1) }.checker().symmetry().spawn_dfs().join();
    searched.assert_no_discovery(LAW);
    searched.assert_no_discovery(LONE);
}

#[test]
#[ignore = "long; docs/proof.md tells how long"]
fn three_deletions_of_three_members_never_cost_the_quorum() {
    assert_holds(World { deaths: 1, restarts: 1, ..world(3, 3) });
}

#[test]
#[ignore = "long; docs/proof.md tells how long"]
fn three_deletions_never_cost_the_quorum_where_there_is_a_learner() {
    assert_holds(World { learners: 1, ..world(3, 3) });
}

#[test]
#[ignore = "long; docs/proof.md tells how long"]
fn three_deletions_of_five_members_never_cost_the_quorum() {
    assert_holds(World { deaths: 1, restarts: 1, ..world(5, 3) });
}

#[test]
#[ignore = "long; docs/proof.md tells how long"]
fn four_deletions_of_three_members_never_cost_the_quorum() {
    assert_holds(world(3, 4));
}

#[test]
fn a_guard_that_writes_over_what_others_wrote_is_found_out() {
    assert_finds(Mistake::IgnoresConflicts, LAW, world(3, 2));
}

#[test]
fn a_guard_that_says_yes_by_its_last_look_is_found_out() {
    assert_finds(Mistake::CachesYes, LAW, world(3, 3));
}

#[test]
fn a_guard_that_counts_terminating_pods_is_found_out() {
    assert_finds(Mistake::CountsTerminating, LAW, world(3, 2));
}

#[test]
fn a_guard_whose_reservations_end_before_the_apiserver_gives_up_is_found_out() {
    assert_finds(Mistake::ForgetsEarly, LAW, world(3, 2));
}

#[test]
fn a_guard_that_counts_learners_is_found_out() {
    assert_finds(Mistake::CountsLearners, LAW, World { learners: 1, ..world(2, 1) });
}

#[test]
fn a_guard_that_lets_a_crashed_pod_go_unreserved_is_found_out() {
    assert_finds(Mistake::LetsIdleGoUnreserved, LAW, World { deaths: 1, ..world(3, 2) });
}

#[test]
fn a_guard_that_counts_lives_anew_is_found_out() {
    assert_finds(Mistake::CountsAnew, LONE, world(3, 1));
}

#[test]
fn a_guard_whose_reads_lie_any_time_apart_is_found_out() {
    assert_finds(Mistake::ReadsForLong, LAW, world(3, 2));
}
