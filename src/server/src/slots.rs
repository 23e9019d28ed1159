//! The slots for the connections of a port. At the limit, a new connection takes the slot of a connection that the API
//! server does not need.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};

/// Time since its last use before which no connection is closed. A new connection needs it for its TLS handshake and its
/// first review, and an open one for the rest of a request that has begun. Without it, connections would take the slots of
/// each other while reviews are in progress on all others.
///
/// A longer time for connections that carried reviews would help forgers of reviews: one valid review on each connection
/// would occupy the port for as long.
const MIN_IDLE: Duration = Duration::from_secs(1);

/// Pause before another connection is closed, if the first one still holds its slot.
const CLOSE_INTERVAL: Duration = Duration::from_millis(100);

/// The slots of a port.
pub(super) struct Slots {
    permits: Arc<Semaphore>,
    used: Mutex<BTreeMap<u64, Arc<Usage>>>,
    next: AtomicU64,
}

/// The slot of one connection. It is released when it is dropped.
pub(super) struct Slot {
    slots: Arc<Slots>,
    id: u64,
    usage: Arc<Usage>,
    _permit: OwnedSemaphorePermit,
}

/// The use of a connection, which decides whether the connection may be closed for another one.
pub(crate) struct Usage {
    state: Mutex<UsageState>,
    close: Notify,
}

struct UsageState {
    /// Whether the connection has carried a valid review.
    is_proven: bool,
    /// Number of valid reviews in progress.
    in_progress: usize,
    /// The latest of these times: the connection, the end of a review, and the start of a request after a review.
    last_used: Instant,
    /// Whether the connection was requested to close.
    is_closing: bool,
}

/// A valid review in progress on a connection.
pub(crate) struct ReviewInProgress(Arc<Usage>);

// === impl Slots ===

impl Slots {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(limit));
        Arc::new(Self { permits, used: Mutex::default(), next: AtomicU64::new(0) })
    }

    /// Returns a slot for a new connection. At the limit, other connections are closed, one at a time, until a slot is
    /// free. Waits while no connection may be closed. `None` if the slots no longer exist, which does not happen.
    pub(super) async fn take(self: &Arc<Self>) -> Option<Slot> {
        let permit = loop {
            if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
                break permit;
            }
            self.close_one(Instant::now());
            let free = Arc::clone(&self.permits).acquire_owned();
            if let Ok(permit) = timeout(CLOSE_INTERVAL, free).await {
                break permit.ok()?;
            }
        };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let usage = Arc::new(Usage::new());
        self.lock().insert(id, Arc::clone(&usage));
        Some(Slot { slots: Arc::clone(self), id, usage, _permit: permit })
    }

    /// Requests the close of the connection that is needed least: the oldest one without a valid review, else the one
    /// that is idle for the longest time. Only connections are closed that were not used within [`MIN_IDLE`].
    fn close_one(&self, now: Instant) {
        let used = self.lock();
        let candidates = used.iter().filter_map(|(id, usage)| Some((usage.precedence(now)?, *id, usage)));
        if let Some((_, _, usage)) = candidates.min_by_key(|(precedence, id, _)| (*precedence, *id)) {
            usage.lock().is_closing = true;
            usage.close.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Usage>>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Slot ===

impl Slot {
    pub(super) fn usage(&self) -> &Arc<Usage> {
        &self.usage
    }

    /// Waits until the connection must be closed. Must be polled by the task that serves the connection, so that no
    /// review starts after this returns.
    pub(super) async fn closed(&self) {
        loop {
            self.usage.close.notified().await;
            if self.usage.confirm_close(Instant::now()) {
                return;
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.lock().remove(&self.id);
    }
}

// === impl Usage ===

impl Usage {
    pub(super) fn new() -> Self {
        let state =
            UsageState { is_proven: false, in_progress: 0, last_used: Instant::now(), is_closing: false };
        Self { state: Mutex::new(state), close: Notify::new() }
    }

    /// Registers the head of a request, so that the connection is not closed before its body has arrived, if that takes
    /// at most [`MIN_IDLE`]. Before the first valid review, a request does not extend the life of a connection.
    pub(crate) fn start_request(&self) {
        let mut state = self.lock();
        if state.is_proven {
            state.last_used = Instant::now();
        }
    }

    /// Registers a valid review. The connection is not closed before the returned value is dropped.
    pub(crate) fn start_review(self: &Arc<Self>) -> ReviewInProgress {
        let mut state = self.lock();
        state.is_proven = true;
        state.in_progress += 1;
        drop(state);
        ReviewInProgress(Arc::clone(self))
    }

    /// Whether a valid review is in progress.
    #[cfg(test)]
    pub(crate) fn is_in_progress(&self) -> bool {
        self.lock().in_progress > 0
    }

    /// Returns the order in which connections are closed, or `None` for a connection that must not be closed or is
    /// closing.
    fn precedence(&self, now: Instant) -> Option<(bool, Option<Instant>)> {
        let state = self.lock();
        if state.is_closing || !state.may_close(now) {
            return None;
        }
        Some((state.is_proven, state.is_proven.then_some(state.last_used)))
    }

    /// Whether the connection may still be closed. Otherwise the request to close it is withdrawn.
    fn confirm_close(&self, now: Instant) -> bool {
        let mut state = self.lock();
        state.is_closing = state.may_close(now);
        state.is_closing
    }

    fn lock(&self) -> MutexGuard<'_, UsageState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl UsageState ===

impl UsageState {
    fn may_close(&self, now: Instant) -> bool {
        self.in_progress == 0 && now.saturating_duration_since(self.last_used) > MIN_IDLE
    }
}

// === impl ReviewInProgress ===

impl Drop for ReviewInProgress {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.in_progress = state.in_progress.saturating_sub(1);
        state.last_used = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use tokio::{task::JoinHandle, time::sleep};

    use super::*;

    /// Occupies a slot until the connection must be closed.
    async fn connect(slots: &Arc<Slots>) -> (Arc<Usage>, JoinHandle<()>) {
        let slot = slots.take().await.unwrap();
        (Arc::clone(slot.usage()), tokio::spawn(async move { slot.closed().await }))
    }

    /// Connects once more, and returns the indexes of the connections that were closed for it.
    async fn closed_for_another(
        slots: &Arc<Slots>,
        connections: &[(Arc<Usage>, JoinHandle<()>)],
    ) -> Vec<usize> {
        let waiting = timeout(Duration::from_secs(5), connect(slots)).await;
        // The new connection is the last one to be closed.
        if let Ok((usage, _)) = waiting {
            drop(usage.start_review());
        }
        (0..connections.len()).filter(|index| connections[*index].1.is_finished()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn closes_oldest_connection_without_valid_review_first() {
        let slots = Slots::new(4);
        let mut connections = Vec::new();
        for _ in 0..4 {
            connections.push(connect(&slots).await);
        }
        drop(connections[0].0.start_review());
        sleep(Duration::from_secs(200)).await;
        assert_eq!(closed_for_another(&slots, &connections).await, [1]);
        assert_eq!(closed_for_another(&slots, &connections).await, [1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn new_connections_have_time_for_their_first_review() {
        let slots = Slots::new(2);
        let started = Instant::now();
        let connections = [connect(&slots).await, connect(&slots).await];
        drop(connections[0].0.start_review());
        assert_eq!(closed_for_another(&slots, &connections).await, [1]);
        assert!(started.elapsed() > MIN_IDLE);
    }

    #[tokio::test(start_paused = true)]
    async fn closes_proven_connections_in_the_order_of_their_use() {
        let slots = Slots::new(3);
        let mut connections = Vec::new();
        for _ in 0..3 {
            connections.push(connect(&slots).await);
        }
        let in_progress = connections[0].0.start_review();
        for index in [2, 1] {
            drop(connections[index].0.start_review());
            sleep(MIN_IDLE * 2).await;
        }
        assert_eq!(closed_for_another(&slots, &connections).await, [2]);
        assert_eq!(closed_for_another(&slots, &connections).await, [1, 2]);
        drop(in_progress);
        assert!(!connections[0].1.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn request_that_has_begun_delays_the_close() {
        let slots = Slots::new(1);
        let (usage, connection) = connect(&slots).await;
        drop(usage.start_review());
        sleep(MIN_IDLE * 2).await;
        usage.start_request();
        let begun = Instant::now();
        let _other = slots.take().await.unwrap();
        assert!(connection.is_finished() && begun.elapsed() > MIN_IDLE);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_without_a_valid_review_delay_nothing() {
        let slots = Slots::new(1);
        let (usage, _connection) = connect(&slots).await;
        sleep(MIN_IDLE * 2).await;
        usage.start_request();
        let begun = Instant::now();
        let _other = slots.take().await.unwrap();
        assert!(begun.elapsed() < MIN_IDLE);
    }

    #[tokio::test(start_paused = true)]
    async fn review_that_starts_in_time_prevents_close() {
        let slots = Slots::new(1);
        let slot = slots.take().await.unwrap();
        slots.close_one(Instant::now());
        let review = slot.usage().start_review();
        assert!(timeout(Duration::from_secs(200), slot.closed()).await.is_err());
        drop(review);
        sleep(MIN_IDLE * 2).await;
        slots.close_one(Instant::now());
        slot.closed().await;
    }
}
