//! That a wait has its limit, told apart from a machine that is busy.

use std::time::{Duration, Instant};

/// Longest that a verdict may wait for members that do not answer: their limit, and time to put the answer together.
const VERDICT_LIMIT: Duration = Duration::from_millis(1200);

/// How often a busy machine may be the reason.
pub const TRIES: usize = 3;

/// What the first of some tries that took no longer than a verdict may has seen. A busy machine delays one or the other;
/// a wait without a limit delays all.
pub async fn in_time<T>(mut look: impl AsyncFnMut() -> T) -> T {
    let mut took = Vec::new();
    for _ in 0..TRIES {
        let started = Instant::now();
        let seen = look().await;
        took.push(started.elapsed());
        if started.elapsed() < VERDICT_LIMIT {
            return seen;
        }
    }
    panic!("not one of {took:?} within {VERDICT_LIMIT:?}");
}
