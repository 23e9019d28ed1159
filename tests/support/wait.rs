//! Waiting, never without a limit.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Short against everything that is waited for.
const PAUSE: Duration = Duration::from_millis(50);

/// Asks until the answer is yes.
pub async fn until(what: &str, limit: Duration, mut is_so: impl AsyncFnMut() -> bool) {
    some(what, limit, async || is_so().await.then_some(())).await;
}

/// Asks until there is an answer.
pub async fn some<T>(what: &str, limit: Duration, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        sleep(PAUSE).await;
    }
}
