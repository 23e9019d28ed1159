//! That a wait has its limit, told apart from a machine that is busy.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// Longest that a verdict may wait for members that do not answer.
const WAIT_LIMIT: Duration = Duration::from_secs(1);

/// Time to ask and to put the answer together, on a machine that has nothing else to do.
const WORK_LIMIT: Duration = Duration::from_millis(200);

/// How often a busy machine may be the reason.
pub const TRIES: usize = 3;

/// Of processor time, by which it is told how busy the machine is.
const SPIN: Duration = Duration::from_millis(30);

/// Beyond this a machine is no place to tell a limit from its absence.
const SLOWEST: f64 = 10.0;

/// What the first of some tries that took no longer than a verdict may has seen. A busy machine delays one or the other, and
/// makes the work take longer, but no wait; a wait without a limit delays all.
pub async fn in_time<T>(mut look: impl AsyncFnMut() -> T) -> T {
    let mut took = Vec::new();
    for _ in 0..TRIES {
        let before = slowness();
        let started = Instant::now();
        let seen = look().await;
        let elapsed = started.elapsed();
        let limit = WAIT_LIMIT + WORK_LIMIT.mul_f64(before.max(slowness()));
        if elapsed < limit {
            return seen;
        }
        took.push(format!("{elapsed:?} of {limit:?}"));
    }
    panic!("no try was in time: {took:?}");
}

/// How many times as long as on an idle machine work takes now.
fn slowness() -> f64 {
    let (started, end) = (Instant::now(), processor_time() + SPIN);
    while processor_time() < end {
        std::hint::spin_loop();
    }
    (started.elapsed().as_secs_f64() / SPIN.as_secs_f64()).clamp(1.0, SLOWEST)
}

fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}
