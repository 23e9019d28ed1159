//! Deterministic simulation: replicas of the shipped guard in one process under virtual time, with a simulated API server,
//! kubelets, controllers and raft clusters. A seed determines everything. See docs/decisions/0070-deterministic-simulation.md.

// Release builds contain no mistakes.
#![cfg(debug_assertions)]
// The compiler verifies that the nested futures of the guard's background tasks are `Send`.
#![recursion_limit = "256"]
// A test fails by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
// Independent circumstances and states of machines.
#![allow(clippy::struct_excessive_bools)]

mod api;
mod campaign;
mod controllers;
mod faults;
mod kubelet;
mod operator;
mod oracle;
mod policies;
mod protocol_traces;
mod raft;
mod recordings;
mod replicas;
mod run;
mod scenario;
mod workload;
mod world;

use etcd_guard_core::mistakes::Mistake;
use test_support::protocol_trace;

use crate::{
    campaign::{Campaign, first_violation, write_trace, write_violation},
    run::run,
};

/// The seeds of the test of determinism. Seed 2 replaces members, seed 3 requests dry runs, seed 4 executes deletions of StatefulSets, and
/// seed 5 moves leadership and deletes nodes. Seeds 11 and 19 change policies, and the cluster of seed 19 has one voter. Seed 1 has none
/// of these operations.
const REPEATED_SEEDS: [u64; 7] = [1, 2, 3, 4, 5, 11, 19];

/// The mistakes that violate the safety invariant in no run that [`write_violation`] searches.
const NOT_COMPARED: [Mistake; 4] = [
    Mistake::IgnoreForeignTerminating,
    Mistake::IgnoreWithoutClusterId,
    Mistake::BelieveMemberList,
    Mistake::ReserveNoNames,
];

/// The seeds within which each mistake must be found.
const MISTAKE_SEEDS: u64 = 100;

/// Replays the seed of `SIMULATION_SEED` and following ones: `SIMULATION_SEEDS` of them, or as many as fit into
/// `SIMULATION_SECONDS` of CPU time.
#[test]
fn approvals_keep_the_quorum_under_faults() {
    let campaign = Campaign::from_environment();
    let summary = campaign.run();
    println!("{summary}");
    assert!(summary.failures.is_empty(), "{} violations", summary.failures.len());
    assert!(summary.approvals > 0, "no deletion was approved");
}

#[test]
fn same_seed_has_same_trace() {
    for seed in REPEATED_SEEDS {
        let [first, second] = [(); 2].map(|()| run(seed, None, true));
        assert!(first.events > 100, "{} events", first.events);
        if first.hash != second.hash {
            let (a, b) = (first.text.unwrap(), second.text.unwrap());
            let line = a.lines().zip(b.lines()).enumerate().find(|(_, (a, b))| a != b);
            panic!("seed {seed} (scripts/simulate --seed {seed} --trace): {line:#?}");
        }
    }
}

/// Takes some minutes. `scripts/prove simulation` runs it. `SIMULATION_MISTAKE` selects one of the mistakes.
#[test]
#[ignore = "takes some minutes; scripts/simulate --mistakes runs it"]
fn finds_each_mistake() {
    let (mut missed, mut not_compared) = (Vec::new(), Vec::new());
    let selected = std::env::var("SIMULATION_MISTAKE").unwrap_or_default();
    let is_selected = |mistake: &Mistake| selected.is_empty() || format!("{mistake:?}") == selected;
    for mistake in Mistake::ALL.into_iter().filter(is_selected) {
        match first_violation(mistake, MISTAKE_SEEDS) {
            Some((seed, violation)) => {
                println!("{mistake:?} | seed {seed} | {violation}");
                run_without_mistake(seed);
            }
            None => missed.push(mistake),
        }
        if protocol_trace::folder().is_some() {
            match write_violation(mistake) {
                Some(seed) => {
                    assert!(!NOT_COMPARED.contains(&mistake), "{mistake:?}: remove it from NOT_COMPARED");
                    println!("{mistake:?} | compared with the model: seed {seed}");
                    let trace = run_without_mistake(seed);
                    write_trace(&format!("simulation-{seed}"), trace.as_deref());
                }
                None if NOT_COMPARED.contains(&mistake) => {
                    println!("{mistake:?} | compared with the model: no run");
                }
                None => not_compared.push(mistake),
            }
        }
    }
    assert!(
        missed.is_empty() && not_compared.is_empty(),
        "not found within {MISTAKE_SEEDS} seeds: {missed:?}; found in no run that the comparison covers: {not_compared:?}"
    );
}

/// Runs a seed, which must have no violation, and returns the trace for the comparison with the model.
fn run_without_mistake(seed: u64) -> Option<String> {
    let report = run(seed, None, false);
    assert!(report.violations.is_empty(), "seed {seed} without a mistake: {:?}", report.violations);
    report.protocol_trace
}
