//! The cost of decisions and their behaviour under concurrency, with real clusters, a real API server and the guard's
//! own
//! program.
//!
//! Each part prints rows for the table of `scripts/bench`, each with a reference from the same run. A row states
//! whether it
//! meets its bar, if it has one. Assertions only check that the intended quantity was measured.

// A bench fails by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod approvals;
mod cascades;
mod concurrent_deletions;
mod deletions;
mod frozen_member;
mod mtls_cluster;
mod pinned_server;
mod reviews;
mod steps;
mod webhook;
mod wrk;

use std::{fmt::Debug, str::FromStr};

use test_support::{bench_table, guarded_cluster::GuardedCluster};

/// The variable that selects parts; they run in the order of `ALL`.
const PARTS: &str = "BENCH_PARTS";
const ALL_PARTS: &str = "allow cascades deletions frozen storm reviews";

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let parts: String = from_environment(PARTS).unwrap_or_else(|| ALL_PARTS.to_owned());
    let is_selected = |part: &str| parts.split_whitespace().any(|selected| selected == part);
    let guarded = GuardedCluster::start().await;
    if is_selected("allow") {
        approvals::plain(&guarded).await;
        Box::pin(approvals::mtls(&guarded)).await;
    }
    if is_selected("cascades") {
        bench_table::append(&cascades::compare(&guarded).await);
    }
    if is_selected("deletions") || is_selected("storm") {
        let unguarded = GuardedCluster::start().await;
        deletions::remove_guard(&unguarded).await;
        if is_selected("deletions") {
            bench_table::append(&[deletions::compare(&guarded, &unguarded).await]);
        }
        if is_selected("storm") {
            bench_table::append(&concurrent_deletions::compare(&guarded, &unguarded).await);
        }
    }
    if is_selected("frozen") {
        bench_table::append(&[Box::pin(frozen_member::compare(&guarded)).await]);
    }
    if is_selected("reviews") {
        bench_table::append(&reviews::all(&guarded).await);
    }
}

/// Parses an optional environment variable.
fn from_environment<T: FromStr<Err: Debug>>(name: &str) -> Option<T> {
    std::env::var(name).ok().map(|text| text.parse().expect(name))
}
