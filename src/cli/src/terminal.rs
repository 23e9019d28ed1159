//! Text styles for terminals, and notices for users who wait. `anstream` removes styles from other outputs, and if `NO_COLOR` is set.

pub mod waiting;

use anstyle::{AnsiColor, Style};

/// A good state.
pub const SUCCESS: Style = AnsiColor::Green.on_default().bold();

/// A bad state, or an error.
pub const FAILURE: Style = AnsiColor::Red.on_default().bold();

/// A state that needs attention.
pub const WARNING: Style = AnsiColor::Yellow.on_default().bold();

/// Titles and other emphasized text.
pub const EMPHASIS: Style = Style::new().bold();

/// Returns `text` in this style.
pub fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}
