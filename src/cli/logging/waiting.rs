//! Lines of answers that no member hangs on, which wait until a worker of the runtime has nothing else to do: under load a
//! dozen of them are written at once, where each by itself would cost as much as all the rest of a line.
//!
//! Lines are written in the order in which they were told, from whichever thread, and any other line (a verdict on a
//! member, an error) takes those that wait along. A process that ends by itself, or is told to, has written them all. One that is
//! killed has not written what was told since its workers last came to rest: within milliseconds, and at most [`MOST_WAITING`]
//! bytes.

use std::{
    io::{self, Write},
    sync::{Mutex, MutexGuard, PoisonError, TryLockError},
};

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use crate::server::HARMLESS;

/// More is written at once: about 20 lines.
const MOST_WAITING: usize = 8 << 10;

/// What is told and not written yet.
static WAITING: Mutex<Waiting> = Mutex::new(Waiting(Vec::new()));

/// Lines in the order in which they were told.
struct Waiting(Vec<u8>);

/// Standard error, for lines of which some wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines;

/// One line on its way there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    waits: bool,
}

/// Writes what waits. A runtime whose tasks tell such lines is to call it when one of its threads ends; so is whoever ends the
/// process.
pub(in crate::cli) fn write_out() {
    // Nobody is left to tell of an error.
    let _ = waiting().write_to(&mut io::stderr());
}

/// The same for a thread that comes to rest. It does not wait for another that is at it: that one writes what was told before, or
/// comes to rest as well.
pub(in crate::cli) fn write_out_at_rest() {
    let mut waiting = match WAITING.try_lock() {
        Ok(waiting) => waiting,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return,
    };
    let _ = waiting.write_to(&mut io::stderr());
}

fn waiting() -> MutexGuard<'static, Waiting> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Waiting ===

impl Waiting {
    fn add(&mut self, line: &[u8], waits: bool, out: &mut impl Write) -> io::Result<()> {
        if !waits {
            // If what waits cannot be written, this may be.
            let _ = self.write_to(out);
            return out.write_all(line);
        }
        self.0.extend_from_slice(line);
        if self.0.len() <= MOST_WAITING { Ok(()) } else { self.write_to(out) }
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

// === impl Lines ===

impl MakeWriter<'_> for Lines {
    type Writer = Line;

    fn make_writer(&self) -> Line {
        Line { waits: false }
    }

    fn make_writer_for(&self, metadata: &Metadata<'_>) -> Line {
        // Of these alone it is known that a worker tells them, and comes to rest after that.
        Line { waits: *metadata.level() == Level::INFO && metadata.name() == HARMLESS }
    }
}

// === impl Line ===

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        waiting().add(line, self.waits, &mut io::stderr())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        waiting().write_to(&mut io::stderr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each write by itself.
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
    fn a_line_that_does_not_wait_takes_those_along_that_were_told_before() {
        let (mut waiting, mut out) = (Waiting(Vec::new()), Writes::default());
        waiting.add(b"one\n", true, &mut out).unwrap();
        waiting.add(b"two\n", true, &mut out).unwrap();
        assert!(out.0.is_empty());
        waiting.add(b"three\n", false, &mut out).unwrap();
        waiting.write_to(&mut out).unwrap();
        assert_eq!(out.0, [b"one\ntwo\n".as_slice(), b"three\n"]);
    }

    #[test]
    fn no_more_waits_than_may() {
        let (mut waiting, mut out) = (Waiting(Vec::new()), Writes::default());
        let line = [b'x'; 400];
        for _ in 0..100 {
            waiting.add(&line, true, &mut out).unwrap();
            assert!(waiting.0.len() <= MOST_WAITING);
        }
        waiting.write_to(&mut out).unwrap();
        assert_eq!(out.0.iter().map(Vec::len).sum::<usize>(), 100 * line.len());
        assert_eq!(out.0.len(), 5);
    }
}
