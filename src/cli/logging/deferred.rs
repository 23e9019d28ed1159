//! Log lines whose writing is deferred until a worker thread of the runtime is idle. Under load a dozen lines are
//! written with one system call. A call for each would cost as much as the rest of the line.
//!
//! Only lines about answers that do not depend on an etcd member are deferred, see [`DEFERRABLE_EVENT`]. Lines are
//! written in the order of their events, from any thread. Each other line, such as a verdict on a member or an error,
//! flushes the deferred ones first. A process that exits or is terminated by a signal that it handles has written all
//! lines. A process that is killed loses the lines since its workers were last idle: some milliseconds, and at most
//! [`MAX_DEFERRED_SIZE`] bytes.

use std::{
    io::{self, Write},
    sync::{Mutex, MutexGuard, PoisonError, TryLockError},
};

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use crate::traces::DEFERRABLE_EVENT;

/// Maximum size of deferred lines in bytes, about 20 lines. More are written at once.
const MAX_DEFERRED_SIZE: usize = 8 << 10;

/// The deferred lines of the process.
static DEFERRED: Mutex<DeferredLines> = Mutex::new(DeferredLines(Vec::new()));

/// Deferred lines in the order of their events.
struct DeferredLines(Vec<u8>);

/// Writes lines to standard error, some of them deferred.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeferringWriter;

/// Writes one line.
#[derive(Clone, Copy, Debug)]
pub(super) struct LineWriter {
    is_deferrable: bool,
}

/// Writes the deferred lines. Must be called when a thread of the runtime stops, and before the process exits.
pub(in crate::cli) fn flush_deferred_lines() {
    // An error cannot be reported, because standard error is the only output.
    let _ = lock().write_to(&mut io::stderr());
}

/// Writes the deferred lines when a thread becomes idle. Returns at once if another thread holds the lock: that thread
/// either writes the lines or becomes idle later.
pub(in crate::cli) fn try_flush_deferred_lines() {
    let mut deferred = match DEFERRED.try_lock() {
        Ok(deferred) => deferred,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return,
    };
    let _ = deferred.write_to(&mut io::stderr());
}

fn lock() -> MutexGuard<'static, DeferredLines> {
    DEFERRED.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl DeferredLines ===

impl DeferredLines {
    fn add(&mut self, line: &[u8], is_deferrable: bool, out: &mut impl Write) -> io::Result<()> {
        if !is_deferrable {
            // The new line is written even if writing the deferred ones fails.
            let _ = self.write_to(out);
            return out.write_all(line);
        }
        self.0.extend_from_slice(line);
        if self.0.len() <= MAX_DEFERRED_SIZE { Ok(()) } else { self.write_to(out) }
    }

    fn write_to(&mut self, out: &mut impl Write) -> io::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let written = out.write_all(&self.0);
        self.0.clear();
        written
    }
}

// === impl DeferringWriter ===

impl MakeWriter<'_> for DeferringWriter {
    type Writer = LineWriter;

    fn make_writer(&self) -> LineWriter {
        LineWriter { is_deferrable: false }
    }

    fn make_writer_for(&self, metadata: &Metadata<'_>) -> LineWriter {
        // Only these events are known to come from a worker thread, which flushes them when it becomes idle.
        let is_deferrable = *metadata.level() == Level::INFO && metadata.name() == DEFERRABLE_EVENT;
        LineWriter { is_deferrable }
    }
}

// === impl LineWriter ===

impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        lock().add(line, self.is_deferrable, &mut io::stderr())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        lock().write_to(&mut io::stderr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records each write separately.
    #[derive(Default)]
    struct Writes(Vec<Vec<u8>>);

    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.push(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn other_line_flushes_deferred_lines_first() {
        let (mut deferred, mut out) = (DeferredLines(Vec::new()), Writes::default());
        deferred.add(b"one\n", true, &mut out).unwrap();
        deferred.add(b"two\n", true, &mut out).unwrap();
        assert!(out.0.is_empty());
        deferred.add(b"three\n", false, &mut out).unwrap();
        deferred.write_to(&mut out).unwrap();
        assert_eq!(out.0, [b"one\ntwo\n".as_slice(), b"three\n"]);
    }

    #[test]
    fn defers_up_to_maximum_size() {
        let (mut deferred, mut out) = (DeferredLines(Vec::new()), Writes::default());
        let line = [b'x'; 400];
        for _ in 0..100 {
            deferred.add(&line, true, &mut out).unwrap();
            assert!(deferred.0.len() <= MAX_DEFERRED_SIZE);
        }
        deferred.write_to(&mut out).unwrap();
        assert_eq!(out.0.iter().map(Vec::len).sum::<usize>(), 100 * line.len());
        assert_eq!(out.0.len(), 5);
    }
}
