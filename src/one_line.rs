//! Texts that repeat what somebody else wrote, for people.

/// A text on one line, without anything that a terminal acts on: such letters are escaped as in Rust.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            // Only these are escaped though they can be shown.
            '"' | '\'' | '\\' => line.push(letter),
            _ => line.extend(letter.escape_debug()),
        }
    }
    line
}
