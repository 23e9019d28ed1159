//! What decisions cost, and that they hold against many at once: real clusters, a real apiserver and the guard's own program.
//!
//! Each part prints rows for the table of `scripts/bench`, every figure beside a reference of the same run. It judges a bar
//! where one is promised, and asserts nothing but that what was measured is what was meant.

// What is written for tests says by a panic what is not as it should be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "decisions/allow.rs"]
mod allow;
#[path = "decisions/crowd.rs"]
mod crowd;
#[path = "decisions/deletions.rs"]
mod deletions;
#[path = "decisions/frozen.rs"]
mod frozen;
#[path = "decisions/mtls.rs"]
mod mtls;
#[path = "decisions/pinned.rs"]
mod pinned;
#[path = "decisions/reviews.rs"]
mod reviews;
#[allow(dead_code, reason = "shared with another bench, which uses other parts of it")]
#[path = "shared/rows.rs"]
mod rows;
#[path = "decisions/wrk.rs"]
mod wrk;

#[allow(dead_code, unreachable_pub, reason = "shared with tests, which use other parts of it")]
#[path = "../tests/support"]
mod support {
    pub mod api_client;
    pub mod child;
    pub mod control_plane;
    pub mod freeze;
    pub mod guard_process;
    pub mod guarded_cluster;
    pub mod http_client;
    pub mod kubectl;
    pub mod member;
    pub mod pods;
    pub mod process_node;
    pub mod review;
    pub mod testbed;
    pub mod wait;
    pub mod webhook;
}

use std::{fmt::Debug, path::PathBuf, str::FromStr};

use support::guarded_cluster::GuardedCluster;

/// What is done, in this order; the variable names those that are wanted.
const PARTS: &str = "BENCH_PARTS";
const ALL: &str = "allow deletions frozen storm reviews";

/// The variable that names the program of `decisions/reference.rs`.
const REFERENCE: &str = "BENCH_REFERENCE";

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let parts: String = from_environment(PARTS).unwrap_or_else(|| ALL.to_owned());
    let wants = |part: &str| parts.split_whitespace().any(|it| it == part);
    let guarded = GuardedCluster::start().await;
    if wants("allow") {
        rows::add(&[allow::plain(&guarded).await, allow::mtls(&guarded).await]);
    }
    if wants("deletions") || wants("storm") {
        let unguarded = GuardedCluster::start().await;
        deletions::leave_unguarded(&unguarded).await;
        if wants("deletions") {
            rows::add(&[deletions::compare(&guarded, &unguarded).await]);
        }
        if wants("storm") {
            rows::add(&crowd::storm(&guarded, &unguarded).await);
        }
    }
    if wants("frozen") {
        rows::add(&[Box::pin(frozen::one(&guarded)).await]);
    }
    if wants("reviews") {
        rows::add(&reviews::all(&guarded).await);
    }
}

/// The program that the guard is measured against.
fn reference() -> PathBuf {
    from_environment(REFERENCE).unwrap_or_else(|| panic!("{REFERENCE} is not set: scripts/bench sets it"))
}

/// A number or a name that somebody wants to be otherwise.
fn from_environment<T: FromStr<Err: Debug>>(name: &str) -> Option<T> {
    std::env::var(name).ok().map(|it| it.parse().expect(name))
}
