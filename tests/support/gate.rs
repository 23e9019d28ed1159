//! A gate on a test's proxy: what comes to it waits there until the test lets it go.

use std::sync::{Arc, Mutex};

use tokio::sync::watch;

/// The gates that everything passes.
pub struct Gates<T>(Arc<Mutex<Vec<Gate<T>>>>);

struct Gate<T> {
    stops: Box<dyn Fn(&T) -> bool + Send>,
    waiting: watch::Sender<usize>,
    open: watch::Receiver<bool>,
}

/// A closed gate; when it is dropped, it opens.
pub struct Held {
    waiting: watch::Receiver<usize>,
    open: watch::Sender<bool>,
}

/// Somebody who waits at a gate, until this is dropped.
struct Waiter {
    waiting: watch::Sender<usize>,
    open: watch::Receiver<bool>,
}

impl<T> Gates<T> {
    /// Closes a gate for what this says yes to.
    pub fn hold(&self, stops: impl Fn(&T) -> bool + Send + 'static) -> Held {
        let (waiting, are_waiting) = watch::channel(0);
        let (open, is_open) = watch::channel(false);
        let gate = Gate { stops: Box::new(stops), waiting, open: is_open };
        self.0.lock().expect("nobody panics here").push(gate);
        Held { waiting: are_waiting, open }
    }

    /// Returns when every gate that stops this is open.
    pub async fn pass(&self, item: &T) {
        let waiters: Vec<Waiter> = {
            let gates = self.0.lock().expect("nobody panics here");
            gates.iter().filter(|gate| (gate.stops)(item)).map(Waiter::at).collect()
        };
        for mut waiter in waiters {
            // An error: the test has let go of the gate.
            let _ = waiter.open.wait_for(|open| *open).await;
        }
    }
}

impl Waiter {
    fn at<T>(gate: &Gate<T>) -> Self {
        gate.waiting.send_modify(|count| *count += 1);
        Self { waiting: gate.waiting.clone(), open: gate.open.clone() }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.waiting.send_modify(|count| *count -= 1);
    }
}

impl<T> Clone for Gates<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Gates<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl Held {
    /// Whether somebody waits here at this moment. Who gave up waits no more.
    pub fn is_waited_at(&self) -> bool {
        *self.waiting.borrow() > 0
    }

    /// Opens the gate for good.
    pub fn release(self) {
        self.open.send_replace(true);
    }
}
