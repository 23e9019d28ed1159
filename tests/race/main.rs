//! Concurrent deletions through several replicas of the guard, while members are killed, frozen and slowed, terminate
//! slowly and get owners that do not exist, replicas and the API server are restarted, and certificates are rotated.
//! Safety invariant: at the moment of each approval, the voters that actually serve, without the target and without
//! every pod that was approved earlier or is terminating and has not been replaced, form a quorum. Afterwards, a single
//! deletion in a healthy cluster is approved.
//!
//! As a control, the same test against a naive guard that only protects the leader must find violations.

// A test function fails by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod certificates;
mod clients;
mod disruptions;
mod environment;
mod naive_guards;
mod oracle;
mod recorder;
mod report;
mod review_proxy;
mod stress;
mod topology;
mod x_pdb;

use std::{fmt::Debug, str::FromStr, time::Duration};

use disruptions::Disruption;
use report::Report;
use stress::{Requests, StressTest, Subject};
use test_support::layout::Topology;
use tokio::sync::{Mutex, Semaphore};
use topology::Owners;

/// Two stress tests run at the same time: during a slow termination, a test waits for most of its time.
static PERMITS: Semaphore = Semaphore::const_new(2);

/// Held while the shared API server is down, and during the single deletions of a test, whose waits are measured.
static API_SERVER: Mutex<()> = Mutex::const_new(());

/// The longest time until a harmless deletion is approved after the faults have ended: an unused reservation lives for
/// 60 s from its first read, and one attempt takes up to two.
const MAX_HARMLESS_WAIT: Duration = Duration::from_secs(62);

/// Takes about 30 s.
const SHORT: StressTest = StressTest {
    deletes: 50,
    members: 3,
    replicas: 3,
    seed: 1,
    subject: Subject::Guard,
    owners: Owners(Topology::OneSet),
    max_pause: 1000,
    slow: Duration::from_secs(5),
    limit: Duration::MAX,
    stops_at_violation: false,
    requests: Requests::All,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keeps_quorum_of_three_members_under_stress() {
    check(&SHORT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keeps_quorum_of_members_with_sets_of_their_own() {
    // The slow termination lasts longer than a reservation.
    let slow = Duration::from_secs(65);
    check(&StressTest { owners: Owners(Topology::SetPerMember), slow, ..SHORT }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keeps_quorum_of_pods_without_owner() {
    check(&StressTest { owners: Owners(Topology::BarePods), deletes: 30, ..SHORT }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keeps_quorum_of_five_members_in_two_sets() {
    check(&StressTest { owners: Owners(Topology::TwoSets), members: 5, ..SHORT }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finds_violations_of_a_guard_that_protects_only_the_leader() {
    let test = StressTest { deletes: 2000, subject: Subject::LeaderOnly, stops_at_violation: true, ..SHORT };
    let report = run(&test).await;
    assert!(!report.violations.is_empty(), "{report}");
}

/// `scripts/storm` runs this with variables from its options.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes; scripts/storm runs it"]
async fn stress_test_by_environment() {
    let report = run(&StressTest {
        deletes: from_environment("STORM_DELETES").unwrap_or(500),
        members: from_environment("STORM_MEMBERS").unwrap_or(3),
        replicas: from_environment("STORM_REPLICAS").unwrap_or(3),
        seed: from_environment("STORM_SEED").unwrap_or(1),
        subject: from_environment("STORM_AGAINST").unwrap_or(Subject::Guard),
        owners: from_environment("STORM_OWNERS").unwrap_or(SHORT.owners),
        max_pause: from_environment("STORM_PAUSE").unwrap_or(SHORT.max_pause),
        slow: Duration::from_secs(from_environment("STORM_SLOW").unwrap_or(75)),
        limit: from_environment("STORM_MINUTES").map_or(Duration::MAX, |n: u64| Duration::from_secs(60 * n)),
        stops_at_violation: false,
        requests: from_environment("STORM_REQUESTS").unwrap_or(SHORT.requests),
    })
    .await;
    assert!(report.violations.is_empty(), "the safety invariant was violated");
    assert_eq!(report.unchecked, 0, "an approval that was not checked may have violated the invariant");
    assert!(
        report.longest_wait <= MAX_HARMLESS_WAIT,
        "a harmless deletion waited for {:?}",
        report.longest_wait
    );
}

async fn check(test: &StressTest) {
    let report = run(test).await;
    assert!(report.violations.is_empty(), "{report}");
    assert_eq!(report.unchecked, 0, "{report}");
    assert!(report.approved > 0, "{report}");
    assert!(report.longest_wait <= MAX_HARMLESS_WAIT, "{report}");
    assert_eq!(report.slow_terminations > 0, test.slow_grace().is_some(), "{report}");
    assert_eq!(report.completed.len(), Disruption::of(test).len(), "every disruption happened: {report}");
}

fn from_environment<T: FromStr<Err: Debug>>(name: &str) -> Option<T> {
    std::env::var(name).ok().map(|text| text.parse().expect(name))
}

async fn run(test: &StressTest) -> Report {
    let _permit = PERMITS.acquire().await.expect("the semaphore is never closed");
    // On the heap, because the future is large.
    let report = Box::pin(test.run()).await;
    println!("{report}");
    report
}
