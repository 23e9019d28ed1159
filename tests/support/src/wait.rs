//! Polling with a timeout.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The polling interval; short compared with every condition that tests wait for.
const PAUSE: Duration = Duration::from_millis(50);

/// Polls until the condition holds.
pub async fn wait_until(condition: &str, limit: Duration, mut is_so: impl AsyncFnMut() -> bool) {
    wait_for(condition, limit, async || is_so().await.then_some(())).await;
}

/// Polls until there is a value.
pub async fn wait_for<T>(condition: &str, limit: Duration, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = poll().await {
            return value;
        }
        assert!(Instant::now() < end, "not within {limit:?}: {condition}");
        sleep(PAUSE).await;
    }
}
