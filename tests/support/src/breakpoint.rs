//! Breakpoints in the proxies of a test: a matching call waits until the test releases it.

use std::sync::{Arc, Mutex};

use tokio::sync::watch;

/// The breakpoints that every call passes.
pub struct Breakpoints<T>(Arc<Mutex<Vec<Breakpoint<T>>>>);

struct Breakpoint<T> {
    matches: Box<dyn Fn(&T) -> bool + Send>,
    waiting: watch::Sender<usize>,
    open: watch::Receiver<bool>,
}

/// An active breakpoint. Dropping it releases the waiting calls.
pub struct ActiveBreakpoint {
    waiting: watch::Receiver<usize>,
    open: watch::Sender<bool>,
}

/// Counts a call as waiting until it is dropped.
struct Waiter {
    waiting: watch::Sender<usize>,
    open: watch::Receiver<bool>,
}

impl<T> Breakpoints<T> {
    /// Adds a breakpoint for the items that match.
    pub fn hold(&self, matches: impl Fn(&T) -> bool + Send + 'static) -> ActiveBreakpoint {
        let (waiting, are_waiting) = watch::channel(0);
        let (open, is_schedulable) = watch::channel(false);
        let gate = Breakpoint { matches: Box::new(matches), waiting, open: is_schedulable };
        self.0.lock().expect("the lock is not poisoned").push(gate);
        ActiveBreakpoint { waiting: are_waiting, open }
    }

    /// Returns when every breakpoint that matches this item is released.
    pub async fn pass(&self, item: &T) {
        let waiters: Vec<Waiter> = {
            let breakpoints = self.0.lock().expect("the lock is not poisoned");
            breakpoints.iter().filter(|gate| (gate.matches)(item)).map(Waiter::at).collect()
        };
        for mut waiter in waiters {
            // An error means that the test dropped the breakpoint.
            let _ = waiter.open.wait_for(|open| *open).await;
        }
    }
}

impl Waiter {
    fn at<T>(gate: &Breakpoint<T>) -> Self {
        gate.waiting.send_modify(|count| *count += 1);
        Self { waiting: gate.waiting.clone(), open: gate.open.clone() }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.waiting.send_modify(|count| *count -= 1);
    }
}

impl<T> Clone for Breakpoints<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Breakpoints<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl ActiveBreakpoint {
    /// Whether a call waits here now. Cancelled calls do not count.
    pub fn has_waiting_calls(&self) -> bool {
        *self.waiting.borrow() > 0
    }

    /// Releases all current and later calls.
    pub fn release(self) {
        self.open.send_replace(true);
    }
}
