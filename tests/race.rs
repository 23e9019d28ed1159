//! Many deletions at once through several replicas of the guard, while members are killed, frozen and slowed, replicas and
//! the apiserver end and come back, and certificates are exchanged: at the moment of every yes, the voters that truly serve, less the target and less every pod that was allowed to go
//! and is not back, still make a quorum. And when all is well, a lone deletion is granted.
//!
//! The same against a guard that only looks at who leads must find losses, or these tests could not fail.

// A test says by a panic what is not as it should be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "race/askers.rs"]
mod askers;
#[path = "race/certificates.rs"]
mod certificates;
#[path = "race/doubles.rs"]
mod doubles;
#[path = "race/front.rs"]
mod front;
#[path = "race/harm.rs"]
mod harm;
#[path = "race/report.rs"]
mod report;
#[path = "race/scene.rs"]
mod scene;
#[path = "race/storm.rs"]
mod storm;
#[path = "race/truth.rs"]
mod truth;

#[allow(dead_code, unreachable_pub, reason = "shared with other tests, which use other parts of it")]
#[path = "support"]
mod support {
    pub mod api_client;
    pub mod child;
    pub mod control_plane;
    pub mod freeze;
    pub mod guard_process;
    pub mod http_client;
    pub mod kubectl;
    pub mod member;
    pub mod pods;
    pub mod process_node;
    pub mod testbed;
    pub mod wait;
    pub mod webhook;
    pub mod writer;
}

use std::{fmt::Debug, str::FromStr};

use harm::Harm;
use report::Report;
use storm::{Against, Storm};
use tokio::sync::Mutex;

/// Each storm is more than enough for two cores.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// Some 30 s each.
const SHORT: Storm =
    Storm { deletes: 50, members: 3, replicas: 3, seed: 1, against: Against::Guard, ends_with_loss: false };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_on_three_members_costs_no_quorum_and_blocks_no_lone_deletion() {
    hold(&SHORT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_on_five_members_costs_no_quorum_and_blocks_no_lone_deletion() {
    hold(&Storm { members: 5, ..SHORT }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_storm_finds_losses_of_a_guard_that_only_looks_at_who_leads() {
    let storm = Storm { deletes: 2000, against: Against::LeaderOnly, ends_with_loss: true, ..SHORT };
    let report = run(&storm).await;
    assert!(!report.losses.is_empty(), "{report}");
}

/// For people: `scripts/storm`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes; scripts/storm runs it"]
async fn storm_by_environment() {
    let report = run(&Storm {
        deletes: from_environment("STORM_DELETES").unwrap_or(500),
        members: from_environment("STORM_MEMBERS").unwrap_or(3),
        replicas: from_environment("STORM_REPLICAS").unwrap_or(3),
        seed: from_environment("STORM_SEED").unwrap_or(1),
        against: from_environment("STORM_AGAINST").unwrap_or(Against::Guard),
        ends_with_loss: false,
    })
    .await;
    assert!(report.losses.is_empty(), "the law was broken");
    assert_eq!(report.unjudged, 0, "what was not judged may have broken the law");
}

async fn hold(storm: &Storm) {
    let report = run(storm).await;
    assert!(report.losses.is_empty(), "{report}");
    assert_eq!(report.unjudged, 0, "{report}");
    assert!(report.let_go > 0, "{report}");
    assert_eq!(report.done.len(), Harm::against(storm.against).len(), "everything happened: {report}");
}

fn from_environment<T: FromStr<Err: Debug>>(name: &str) -> Option<T> {
    std::env::var(name).ok().map(|it| it.parse().expect(name))
}

async fn run(storm: &Storm) -> Report {
    let _turn = ONE_AT_A_TIME.lock().await;
    let report = storm.run().await;
    println!("{report}");
    report
}
