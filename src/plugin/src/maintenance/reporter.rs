//! The output of maintenance commands: plans, and one line per event, for terminals and for logs alike.

use std::{
    io::{self, Write},
    time::{Duration, Instant},
};

use serde::Serialize;

use etcd_guard_cli::{
    printing::stdout,
    terminal::{EMPHASIS, FAILURE, SUCCESS, WARNING, paint},
};
use etcd_guard_core::escape::{MAX_TEXT_CHARS, escape_json, to_bounded_line};

/// Interval in which the same cause of a wait is printed again, so that a long wait is visible.
const REPEAT_INTERVAL: Duration = Duration::from_secs(15);

/// Width of the progress bar in characters.
const BAR_WIDTH: usize = 10;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    /// A step began or was completed.
    Progress,
    /// The command waits for this condition.
    Waiting,
    /// A finding that does not end the command.
    Warning,
    /// The command is complete.
    Complete,
    /// The command ended early.
    Aborted,
}

/// One event.
#[derive(Debug, Serialize)]
struct Line<'a> {
    done: usize,
    total: usize,
    state: State,
    message: &'a str,
}

/// Where plans and events are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Destination {
    Text,
    Json,
    /// Another module reports the result.
    Discard,
}

/// Prints plans and events.
pub(crate) struct Reporter {
    destination: Destination,
    /// The message of the last event.
    last: String,
    done: usize,
    total: usize,
    /// The last printed cause of a wait.
    waiting: Option<(String, Instant)>,
}

// === impl Reporter ===

impl Reporter {
    pub(crate) fn new(is_json: bool) -> Self {
        Self::with_destination(if is_json { Destination::Json } else { Destination::Text })
    }

    /// Returns a reporter that prints nothing.
    pub(crate) fn silent() -> Self {
        Self::with_destination(Destination::Discard)
    }

    fn with_destination(destination: Destination) -> Self {
        Self { destination, last: String::new(), done: 0, total: 0, waiting: None }
    }

    /// Returns the message of the last event.
    pub(crate) fn last(&self) -> &str {
        &self.last
    }

    /// Sets the progress of the following events.
    pub(crate) fn set_progress(&mut self, done: usize, total: usize) {
        (self.done, self.total) = (done, total);
    }

    /// Prints a plan as text, or as one line of JSON.
    pub(crate) fn plan(&self, text: &str, json: &impl Serialize) -> anyhow::Result<()> {
        let mut out = stdout();
        match self.destination {
            Destination::Text => write_plan(&mut out, text)?,
            Destination::Json => write_json(&mut out, json)?,
            Destination::Discard => {}
        }
        Ok(())
    }

    pub(crate) fn progress(&mut self, message: &str) {
        self.waiting = None;
        self.print(State::Progress, message);
    }

    pub(crate) fn warn(&mut self, message: &str) {
        self.print(State::Warning, message);
    }

    pub(crate) fn complete(&mut self, message: &str) {
        self.print(State::Complete, message);
    }

    /// Prints the result of a command as text, or as one line of JSON.
    pub(crate) fn complete_with(&mut self, message: &str, json: &impl Serialize) -> anyhow::Result<()> {
        if self.destination != Destination::Json {
            self.complete(message);
            return Ok(());
        }
        Ok(write_json(&mut stdout(), json)?)
    }

    pub(crate) fn aborted(&mut self, message: &str) {
        self.print(State::Aborted, message);
    }

    /// Prints the cause of a wait, if the cause is new or was printed some time ago.
    pub(crate) fn waiting(&mut self, message: &str) {
        let is_recent = |(last, at): &(String, Instant)| last == message && at.elapsed() < REPEAT_INTERVAL;
        if !self.waiting.as_ref().is_some_and(is_recent) {
            self.waiting = Some((message.to_owned(), Instant::now()));
            self.print(State::Waiting, message);
        }
    }

    /// Prints an event. An error is ignored: the command continues without a terminal.
    fn print(&mut self, state: State, message: &str) {
        self.last = to_bounded_line(message, MAX_TEXT_CHARS);
        if self.destination != Destination::Discard {
            let line = Line { done: self.done, total: self.total, state, message: &self.last };
            let _ = line.write(self.destination == Destination::Json, &mut anstream::stdout().lock());
        }
    }
}

// === impl Line ===

impl Line<'_> {
    fn write(&self, is_json: bool, out: &mut impl Write) -> io::Result<()> {
        if is_json {
            return write_json(out, self);
        }
        let Self { done, total, state, message } = self;
        let bar = bar(*done, *total);
        match state {
            State::Progress => writeln!(out, "{bar}{message}"),
            State::Waiting => writeln!(out, "{bar}waiting: {message}"),
            State::Warning => writeln!(out, "{bar}{}: {message}", paint(WARNING, "warning")),
            State::Complete => writeln!(out, "{bar}{}: {message}", paint(SUCCESS, "complete")),
            State::Aborted => writeln!(out, "{bar}{}: {message}", paint(FAILURE, "aborted")),
        }?;
        out.flush()
    }
}

/// Writes one line of JSON.
fn write_json(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    writeln!(out, "{}", escape_json(&serde_json::to_string(value)?))?;
    out.flush()
}

/// Writes a plan, with each line escaped. The first line is the title.
pub(crate) fn write_plan(out: &mut impl Write, text: &str) -> io::Result<()> {
    for (index, line) in text.lines().enumerate() {
        let line = to_bounded_line(line, MAX_TEXT_CHARS);
        if index == 0 {
            writeln!(out, "{}", paint(EMPHASIS, &line))?;
        } else {
            writeln!(out, "{line}")?;
        }
    }
    out.flush()
}

/// Returns a progress bar, such as `[###-------] 1/3 `.
fn bar(done: usize, total: usize) -> String {
    if total == 0 {
        return String::new();
    }
    let filled = (done * BAR_WIDTH / total).min(BAR_WIDTH);
    format!("[{}{}] {done}/{total} ", "#".repeat(filled), "-".repeat(BAR_WIDTH - filled))
}

/// Returns the output of the reporter for this text as an event of each kind and as a line of a plan.
#[cfg(any(test, feature = "fixtures"))]
#[allow(clippy::unwrap_used, reason = "values for tests: a failure is a panic")]
pub(crate) fn texts(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let message = to_bounded_line(text, MAX_TEXT_CHARS);
    for state in [State::Progress, State::Waiting, State::Warning, State::Complete, State::Aborted] {
        for is_json in [false, true] {
            let line = Line { done: 1, total: 3, state, message: &message };
            line.write(is_json, &mut out).unwrap();
        }
    }
    write_plan(&mut out, &text.replace('\n', " ")).unwrap();
    write_json(&mut out, &message).unwrap();
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_shows_share_of_completed_steps() {
        assert_eq!(bar(0, 0), "");
        assert_eq!(bar(0, 3), "[----------] 0/3 ");
        assert_eq!(bar(1, 3), "[###-------] 1/3 ");
        assert_eq!(bar(3, 3), "[##########] 3/3 ");
    }

    #[test]
    fn same_cause_of_a_wait_is_printed_once() {
        let mut reporter = Reporter::silent();
        reporter.waiting("etcd-1 is not ready");
        let first = reporter.waiting.clone();
        assert_eq!(reporter.last(), "etcd-1 is not ready");
        reporter.waiting("etcd-1 is not ready");
        assert_eq!(reporter.waiting, first);
        reporter.waiting("etcd-2 is not ready");
        assert_ne!(reporter.waiting, first);
    }
}
