//! The distance of two cores: how long a cache line needs from one to the other and back.
//!
//! Threads that share data are slower if their cores do not share a cache. A hypervisor can move virtual cores between
//! physical ones at any time, and does not show it to the machine.

use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Number of batches of one measurement, of which the median counts: the scheduler may move the new thread during the first ones.
const BATCHES: usize = 9;

/// Number of round trips of one batch.
const ROUND_TRIPS: u32 = 50_000;

/// The longest round trip between cores that share a cache. Measured on an AMD EPYC: 50 to 90 ns with a shared cache,
/// and 310 to 450 ns without one.
const MAX_SHARED: Duration = Duration::from_nanos(150);

/// Returns the duration of a round trip between two threads: the median of the means of all batches.
pub(crate) fn round_trip() -> Duration {
    // The other thread answers each odd number with the next even one.
    let turn = AtomicU64::new(0);
    let wait_for = |number: u64| {
        while turn.load(Ordering::Acquire) != number {
            spin_loop();
        }
    };
    let questions = || (1_u64..).step_by(2);
    let count = usize::try_from(ROUND_TRIPS).expect("a small number");
    thread::scope(|scope| {
        scope.spawn(|| {
            for question in questions().take(BATCHES * count) {
                wait_for(question);
                turn.store(question + 1, Ordering::Release);
            }
        });
        let mut questions = questions();
        let mut means: Vec<Duration> = (0..BATCHES)
            .map(|_| {
                let started = Instant::now();
                for question in questions.by_ref().take(count) {
                    turn.store(question, Ordering::Release);
                    wait_for(question + 1);
                }
                started.elapsed() / ROUND_TRIPS
            })
            .collect();
        means.sort_unstable();
        means[BATCHES / 2]
    })
}

/// Whether cores with this round trip share a cache.
pub(crate) fn share_a_cache(round_trip: Duration) -> bool {
    round_trip <= MAX_SHARED
}
