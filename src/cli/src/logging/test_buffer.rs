//! A log in memory, for tests.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "values for tests: a failure is a panic"
)]

use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
};

/// A writer with clones that append to the same text.
#[derive(Clone, Default)]
pub struct TestBuffer(Arc<Mutex<Vec<u8>>>);

// === impl TestBuffer ===

impl TestBuffer {
    /// Returns the written text.
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for TestBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
