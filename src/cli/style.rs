//! Colours, for terminals only: `anstream` takes them away from everything else, and where `NO_COLOR` is set.

use anstyle::{AnsiColor, Style};

/// What is well.
pub(super) const GOOD: Style = AnsiColor::Green.on_default().bold();

/// What is not.
pub(super) const BAD: Style = AnsiColor::Red.on_default().bold();

/// What to have an eye on.
pub(super) const ODD: Style = AnsiColor::Yellow.on_default().bold();

/// What to see first.
pub(super) const STRONG: Style = Style::new().bold();

/// A text in a style.
pub(super) fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}
