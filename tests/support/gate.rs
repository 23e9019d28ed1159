//! A gate on a test's proxy: what comes to it waits there until the test lets it go.

use std::sync::{Arc, Mutex};

use tokio::sync::watch;

/// The gates that everything passes.
pub struct Gates<T>(Arc<Mutex<Vec<Gate<T>>>>);

struct Gate<T> {
    stops: Box<dyn Fn(&T) -> bool + Send>,
    arrived: watch::Sender<bool>,
    open: watch::Receiver<bool>,
}

/// A closed gate; when it is dropped, it opens.
pub struct Held {
    arrived: watch::Receiver<bool>,
    open: watch::Sender<bool>,
}

impl<T> Gates<T> {
    /// Closes a gate for what this says yes to.
    pub fn hold(&self, stops: impl Fn(&T) -> bool + Send + 'static) -> Held {
        let (arrived, has_arrived) = watch::channel(false);
        let (open, is_open) = watch::channel(false);
        let gate = Gate { stops: Box::new(stops), arrived, open: is_open };
        self.0.lock().expect("nobody panics here").push(gate);
        Held { arrived: has_arrived, open }
    }

    /// Returns when every gate that stops this is open.
    pub async fn pass(&self, item: &T) {
        let closed: Vec<watch::Receiver<bool>> = {
            let gates = self.0.lock().expect("nobody panics here");
            let stopping = gates.iter().filter(|gate| (gate.stops)(item));
            stopping.map(|gate| (gate.arrived.send_replace(true), gate.open.clone()).1).collect()
        };
        for mut gate in closed {
            // An error: the test has let go of it.
            let _ = gate.wait_for(|open| *open).await;
        }
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
    /// Whether something waits here, or has passed since.
    pub fn has_arrived(&self) -> bool {
        *self.arrived.borrow()
    }

    /// Opens the gate for good.
    pub fn release(self) {
        self.open.send_replace(true);
    }
}
