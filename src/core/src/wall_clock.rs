//! The wall clock.

use std::{fmt, sync::Arc};

use k8s_openapi::jiff::Timestamp;

/// Returns the time of day, for texts and for the end of a break-glass annotation. Lifetimes are measured on tokio's
/// monotonic clock instead, so that no clock adjustment changes them.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

// === impl WallClock ===

impl WallClock {
    /// Creates a clock that calls this function, for a simulation with a clock of its own.
    pub fn from_fn(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The time of day.
    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

/// The clock of the machine, for tests.
#[cfg(any(test, feature = "fixtures"))]
impl Default for WallClock {
    fn default() -> Self {
        Self::from_fn(|| {
            let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
            Timestamp::from_second(i64::try_from(now).unwrap_or_default()).unwrap_or_default()
        })
    }
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WallClock").field(&self.now()).finish()
    }
}
