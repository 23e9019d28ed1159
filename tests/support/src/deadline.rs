//! Checks that a wait has a limit, on machines that are too busy for a fixed time limit.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// The longest time that a verdict may wait for members that do not answer.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Time for the calls and the computation on an idle machine.
const MAX_WORK: Duration = Duration::from_millis(200);

/// The number of attempts, because a busy machine can delay some of them. A wait without a limit delays all of them.
pub const MAX_ATTEMPTS: usize = 20;

/// Processor time of the loop that measures how busy the machine is.
const SPIN: Duration = Duration::from_millis(30);

/// Above this slowness, the time limit would be too long to prove anything.
const SLOWEST: f64 = 10.0;

/// Repeats an operation and returns the result of the first attempt within the time limit of a verdict. A busy machine
/// delays some attempts and makes the computation slower, but not the wait; a wait without a limit delays every
/// attempt.
pub async fn within_deadline<T>(mut look: impl AsyncFnMut() -> T) -> T {
    let mut took = Vec::new();
    for _ in 0..MAX_ATTEMPTS {
        let before = slowness();
        let started = Instant::now();
        let seen = look().await;
        let elapsed = started.elapsed();
        let limit = MAX_WAIT + MAX_WORK.mul_f64(before.max(slowness()));
        if elapsed < limit {
            return seen;
        }
        took.push(format!("{elapsed:?} of {limit:?}"));
    }
    panic!("no attempt was in time: {took:?}");
}

/// Returns how many times slower than an idle machine this machine is now.
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
