//! Escaping of text that other systems wrote, before it is shown in terminals, logs and API warnings.

/// Returns `text` on one line and without characters that a terminal interprets. Such characters are written as Rust
/// escape sequences.
pub(crate) fn to_single_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            // `escape_debug` escapes these printable characters as well.
            '"' | '\'' | '\\' => line.push(letter),
            _ => line.extend(letter.escape_debug()),
        }
    }
    line
}
