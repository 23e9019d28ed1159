//! The time that the apiserver gives for an answer, and how much of it is used.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, timeout_at};
use tracing::{Instrument, field::Empty, info_span};

use crate::traces::SPANS;

/// What is assumed where the request does not say: the default of `timeoutSeconds`.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// The most that `timeoutSeconds` may be; whoever says more is not the apiserver.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The apiserver rounds the time that it still waits up to whole seconds before it tells it.
const ROUNDED_UP_BY: Duration = Duration::from_secs(1);

/// When the answer must be ready.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
    limit: Duration,
}

/// The time ran out.
#[derive(Debug)]
pub(crate) struct TooLate {
    /// What took too long.
    pub(crate) what: &'static str,
    /// How long it was tried.
    pub(crate) limit: Duration,
}

// === impl Deadline ===

impl Deadline {
    /// From the `timeout` parameter of the request's URL, counted from now. Of a second or less, half is taken: an
    /// answer that comes too late is none.
    #[must_use]
    pub fn of(timeout: Option<Duration>) -> Self {
        let timeout = timeout.unwrap_or(DEFAULT_TIMEOUT).min(LONGEST_TIMEOUT);
        let limit = timeout.checked_sub(ROUNDED_UP_BY).filter(|rest| !rest.is_zero()).unwrap_or(timeout / 2);
        Self { at: Instant::now() + limit, limit }
    }

    /// Waits for `future` until the deadline; `what` names it to the person who waited, and in traces.
    pub(crate) async fn within<F: Future>(self, what: &'static str, future: F) -> Result<F::Output, TooLate> {
        let span = info_span!(target: SPANS, "step", otel.name = what, otel.status_code = Empty);
        timeout_at(self.at, future).instrument(span.clone()).await.map_err(|_| {
            span.record("otel.status_code", "ERROR");
            TooLate { what, limit: self.limit }
        })
    }

    /// Whether so much time is left, `share` for the rest not counted; `what` names what takes it.
    pub(super) fn leaves(self, least: Duration, share: Duration, what: &'static str) -> Result<(), TooLate> {
        let is_enough = self.earlier(share).saturating_duration_since(Instant::now()) >= least;
        is_enough.then_some(()).ok_or(TooLate { what, limit: self.limit })
    }

    /// A deadline for a part of the work, which leaves `share` for the rest.
    pub(super) fn earlier(self, share: Duration) -> Instant {
        self.at.checked_sub(share).unwrap_or(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_second_is_taken_off_because_the_apiserver_rounds_up() {
        let start = Instant::now();
        assert_eq!(Deadline::of(Some(Duration::from_secs(10))).at - start, Duration::from_secs(9));
        assert_eq!(Deadline::of(None).at - start, Duration::from_secs(9));
        assert_eq!(Deadline::of(Some(Duration::from_secs(1))).at - start, Duration::from_millis(500));
        assert_eq!(Deadline::of(Some(Duration::MAX)).at - start, Duration::from_secs(29));
    }

    #[tokio::test(start_paused = true)]
    async fn what_could_not_even_begin_is_too_late() {
        let (least, share) = (Duration::from_millis(250), Duration::from_millis(100));
        let deadline = Deadline::of(Some(Duration::from_secs(2)));
        tokio::time::advance(Duration::from_millis(650)).await;
        assert!(deadline.leaves(least, share, "a look").is_ok());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(deadline.leaves(least, share, "a look").unwrap_err().what, "a look");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_slow_is_named() {
        let deadline = Deadline::of(Some(Duration::from_secs(3)));
        let too_late = deadline.within("listing", std::future::pending::<()>()).await.unwrap_err();
        assert_eq!((too_late.what, too_late.limit), ("listing", Duration::from_secs(2)));
    }
}
