//! Polling with a timeout.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// The polling interval; short compared with every condition that tests wait for.
const PAUSE: Duration = Duration::from_millis(50);

/// Time that a poll has beyond the limit of its wait. A poll that never ends fails its test, which would otherwise never end.
const LAST_POLL: Duration = Duration::from_secs(60);

/// The longest pause after a poll that took time itself. A poll that starts a program would otherwise occupy a core.
const LONGEST_PAUSE: Duration = Duration::from_millis(300);

/// Polls until the condition holds.
pub async fn wait_until(condition: &str, limit: Duration, mut is_so: impl AsyncFnMut() -> bool) {
    wait_for(condition, limit, async || is_so().await.then_some(())).await;
}

/// Polls until there is a value.
pub async fn wait_for<T>(condition: &str, limit: Duration, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        let started = Instant::now();
        let polled = timeout_at(end + LAST_POLL, Box::pin(poll())).await;
        let value = polled.unwrap_or_else(|_| {
            panic!("a poll did not end {LAST_POLL:?} after the limit {limit:?}: {condition}")
        });
        if let Some(value) = value {
            return value;
        }
        assert!(Instant::now() < end, "not within {limit:?}: {condition}");
        sleep(started.elapsed().clamp(PAUSE, LONGEST_PAUSE)).await;
    }
}
