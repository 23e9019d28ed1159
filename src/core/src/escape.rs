//! Escaping of text that other systems wrote, before it is shown in terminals, logs, events and responses.
//!
//! A text is escaped where it enters the program, where a verdict is created, and where it leaves the program. Escaping a
//! second time changes nothing, so that no step depends on another one.

use std::{borrow::Cow, fmt::Write};

use serde_json::Value;

/// Maximum length of any text in an output, in characters: more than the longest verdict. It bounds texts that no other
/// limit bounds.
pub const MAX_TEXT_CHARS: usize = 16 << 10;

/// Maximum length of a name in an output, in characters, as in Kubernetes.
pub const MAX_NAME_CHARS: usize = 253;

/// Maximum length of the description of an error in an output, in characters.
pub const MAX_ERROR_CHARS: usize = 512;

/// The end of a text that was cut.
const ELLIPSIS: char = '…';

/// Returns `text` on one line and without characters that a terminal interprets or that are invisible. Such characters
/// are written as Rust escape sequences.
pub fn to_single_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for letter in text.chars() {
        push_escaped(letter, &mut line);
    }
    line
}

/// Returns `text` as [`to_single_line`] does, cut to at most `max_chars` characters. No escape sequence is cut.
pub fn to_bounded_line(text: &str, max_chars: usize) -> String {
    into_bounded_line(Cow::Borrowed(text), max_chars)
}

/// Returns `text` as [`to_bounded_line`] does. A text that needs no change is not copied.
pub fn into_bounded_line<'a>(text: impl Into<Cow<'a, str>>, max_chars: usize) -> String {
    let text = text.into();
    if text.len() <= max_chars && is_plain(text.as_bytes()) {
        return text.into_owned();
    }
    let mut line = String::new();
    let (mut length, mut end) = (0, 0);
    for letter in text.chars() {
        length += push_escaped(letter, &mut line);
        if length > max_chars {
            line.truncate(end);
            line.push(ELLIPSIS);
            return line;
        }
        // The text can be cut here, because the ellipsis still fits.
        if length < max_chars {
            end = line.len();
        }
    }
    line
}

/// Escapes and cuts every text in a JSON value.
pub fn escape_texts(value: &mut Value, escape: &impl Fn(&str) -> String) {
    match value {
        Value::String(text) => *text = escape(text),
        Value::Array(items) => items.iter_mut().for_each(|item| escape_texts(item, escape)),
        Value::Object(members) => members.values_mut().for_each(|member| escape_texts(member, escape)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns serialized JSON in which the characters that [`to_single_line`] escapes are written as `\uXXXX`. JSON contains
/// these characters only in texts, and parsers read the same value as before. Line breaks between values are preserved.
pub fn escape_json(json: &str) -> Cow<'_, str> {
    let is_kept = |letter: char| letter == '\n' || is_printable(letter);
    if is_plain(json.as_bytes()) || json.chars().all(is_kept) {
        return Cow::Borrowed(json);
    }
    let mut escaped = String::with_capacity(json.len());
    for letter in json.chars() {
        if is_kept(letter) {
            escaped.push(letter);
        } else {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                // Writing to a String does not fail.
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        }
    }
    Cow::Owned(escaped)
}

/// Returns `text` as one word of a POSIX shell. Characters that [`to_single_line`] escapes are left out, and the word is
/// cut to [`MAX_NAME_CHARS`] characters before it is quoted.
pub fn to_shell_word(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._:-,@%+=".contains(letter);
    let word: String = text.chars().filter(|letter| is_printable(*letter)).take(MAX_NAME_CHARS).collect();
    if !word.is_empty() && word.chars().all(is_plain) {
        return word;
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Whether a text consists of printable ASCII characters.
pub fn is_plain(text: &[u8]) -> bool {
    text.iter().all(|byte| matches!(byte, b' '..=b'~'))
}

/// Appends a character or its escape sequence and returns the number of appended characters.
fn push_escaped(letter: char, line: &mut String) -> usize {
    if is_printable(letter) {
        line.push(letter);
        1
    } else {
        let sequence = letter.escape_debug();
        line.extend(sequence.clone());
        sequence.len()
    }
}

/// Whether a character is shown as it is. Characters that `escape_debug` escapes include all control characters, the
/// formatting characters for bidirectional text and the separators of lines and paragraphs.
fn is_printable(letter: char) -> bool {
    // `escape_debug` escapes these printable characters as well.
    matches!(letter, '"' | '\'' | '\\') || letter.escape_debug().len() == 1
}
