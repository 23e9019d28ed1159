//! Progress and errors on stderr, so that stdout carries only output that other programs read.

use std::{fmt::Display, fs, path::Path};

/// Lines of a log that an error shows.
const TAIL_LINES: usize = 20;

/// The name that precedes each line, set by the calling script.
fn prefix() -> String {
    std::env::var("LOG_PREFIX").unwrap_or_else(|_| String::from("xtask"))
}

/// Prints one line of progress.
pub(crate) fn info(message: impl Display) {
    eprintln!("{}: {message}", prefix());
}

/// Prints an error.
pub(crate) fn error(message: impl Display) {
    eprintln!("{}: error: {message}", prefix());
}

/// Prints the last lines of a log file.
pub(crate) fn tail(file: &Path) {
    let text = fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    if text.is_empty() {
        info(format_args!("{} is empty", file.display()));
        return;
    }
    let lines: Vec<&str> = text.lines().collect();
    eprintln!("--- last lines of {}", file.display());
    for line in lines.iter().skip(lines.len().saturating_sub(TAIL_LINES)) {
        eprintln!("{line}");
    }
    eprintln!("---");
}
