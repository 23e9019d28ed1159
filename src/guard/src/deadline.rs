//! Time that the API server, or another client, allows for a response.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, timeout_at};
use tracing::{Instrument, field::Empty, info_span};

use etcd_guard_core::spans::SPAN_TARGET;

/// Timeout of a request without a `timeout` parameter: the default of `timeoutSeconds`.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum of `timeoutSeconds`. A longer timeout does not originate from the API server.
const MAX_TIMEOUT: Duration = Duration::from_secs(30);

/// The API server rounds the remaining time up to whole seconds before it sends it.
const ROUNDING: Duration = Duration::from_secs(1);

/// Time that is reserved for returning the response to the API server.
pub(crate) const ANSWER_RESERVE: Duration = Duration::from_millis(100);

/// Instant at which the response must be ready.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
    limit: Duration,
}

/// The deadline passed before a step was complete, or too little time remained to start it.
#[derive(Debug, thiserror::Error)]
#[error("{} (limit {})", self.cause(), humantime::format_duration(self.limit))]
pub struct DeadlineExceeded {
    /// The step: `probing the members` if it took too long, `to probe the members` if it could not start.
    pub step: &'static str,
    /// Whether the step was started.
    pub is_started: bool,
    /// Time that was available for the whole request.
    pub limit: Duration,
}

// === impl Deadline ===

impl Deadline {
    /// Starts a deadline now, from the `timeout` parameter of the request's URL. Of a timeout of one second or less, half
    /// is used: the API server discards a late response.
    pub fn from_timeout(timeout: Option<Duration>) -> Self {
        let timeout = timeout.unwrap_or(DEFAULT_TIMEOUT).min(MAX_TIMEOUT);
        let limit = timeout.checked_sub(ROUNDING).filter(|rest| !rest.is_zero()).unwrap_or(timeout / 2);
        Self::after(limit)
    }

    /// Starts a deadline now, for a client other than the API server.
    pub fn after(limit: Duration) -> Self {
        Self { at: Instant::now() + limit, limit }
    }

    /// Waits for `future` until the deadline. `step` names the future in error messages and traces.
    pub async fn within<F: Future>(
        self,
        step: &'static str,
        future: F,
    ) -> Result<F::Output, DeadlineExceeded> {
        let span = info_span!(target: SPAN_TARGET, "step", otel.name = step, otel.status_code = Empty);
        timeout_at(self.at, future).instrument(span.clone()).await.map_err(|_| {
            span.record("otel.status_code", "ERROR");
            DeadlineExceeded { step, is_started: true, limit: self.limit }
        })
    }

    /// Fails unless at least `min` remains before the deadline minus `reserve`. `step` is the work for which the time is
    /// required, in the form `to probe the members`.
    pub(crate) fn ensure_remaining(
        self,
        min: Duration,
        reserve: Duration,
        step: &'static str,
    ) -> Result<(), DeadlineExceeded> {
        let is_enough = self.minus(reserve).saturating_duration_since(Instant::now()) >= min;
        is_enough.then_some(()).ok_or(DeadlineExceeded { step, is_started: false, limit: self.limit })
    }

    /// An earlier instant for one part of the work, which leaves `reserve` for the rest.
    pub(crate) fn minus(self, reserve: Duration) -> Instant {
        self.at.checked_sub(reserve).unwrap_or(self.at)
    }
}

// === impl DeadlineExceeded ===

impl DeadlineExceeded {
    /// Returns the step and its problem, for example `probing the members took too long`.
    pub(crate) fn cause(&self) -> String {
        let Self { step, is_started, .. } = self;
        if *is_started { format!("{step} took too long") } else { format!("no time left {step}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn subtracts_the_second_that_the_api_server_rounds_up() {
        let start = Instant::now();
        assert_eq!(Deadline::from_timeout(Some(Duration::from_secs(10))).at - start, Duration::from_secs(9));
        assert_eq!(Deadline::from_timeout(None).at - start, Duration::from_secs(9));
        assert_eq!(
            Deadline::from_timeout(Some(Duration::from_secs(1))).at - start,
            Duration::from_millis(500)
        );
        assert_eq!(Deadline::from_timeout(Some(Duration::MAX)).at - start, Duration::from_secs(29));
    }

    #[tokio::test(start_paused = true)]
    async fn rejects_a_step_that_cannot_start_in_time() {
        let (min, reserve) = (Duration::from_millis(250), Duration::from_millis(100));
        let deadline = Deadline::from_timeout(Some(Duration::from_secs(2)));
        tokio::time::advance(Duration::from_millis(650)).await;
        assert!(deadline.ensure_remaining(min, reserve, "to probe").is_ok());
        tokio::time::advance(Duration::from_millis(1)).await;
        let exceeded = deadline.ensure_remaining(min, reserve, "to probe").unwrap_err();
        assert_eq!(exceeded.to_string(), "no time left to probe (limit 1s)");
    }

    #[tokio::test(start_paused = true)]
    async fn names_the_step_that_was_slow() {
        let deadline = Deadline::from_timeout(Some(Duration::from_secs(3)));
        let exceeded = deadline.within("listing", std::future::pending::<()>()).await.unwrap_err();
        assert_eq!((exceeded.step, exceeded.limit), ("listing", Duration::from_secs(2)));
        assert_eq!(exceeded.cause(), "listing took too long");
    }
}
