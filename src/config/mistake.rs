//! What is wrong with a configuration, and where.

use std::fmt;

use json_patch::jsonptr::{Pointer, PointerBuf, Token};

use crate::one_line::one_line;

/// One mistake in a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mistake {
    /// Counted from one; absent where the text could not be read that far.
    pub line: Option<u64>,
    /// For instance `sidecars.templates[0].name`; empty for the file as a whole.
    pub place: String,
    /// What is wrong, as the end of a sentence that begins with the place.
    pub text: String,
}

/// Collects mistakes of one part of a configuration.
pub struct Check<'a> {
    found: &'a mut Vec<(PointerBuf, String)>,
    place: PointerBuf,
}

// === impl Mistake ===

impl Mistake {
    pub(super) fn new(line: Option<u64>, place: &str, text: &str) -> Self {
        Self { line, place: one_line(place), text: one_line(text) }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, place, text } = self;
        if let Some(line) = line {
            write!(f, "line {line}: ")?;
        }
        if place.is_empty() { f.write_str(text) } else { write!(f, "{place}: {text}") }
    }
}

// === impl Check ===

impl<'a> Check<'a> {
    /// A check of the whole.
    pub(super) fn new(found: &'a mut Vec<(PointerBuf, String)>) -> Self {
        Self { found, place: PointerBuf::new() }
    }

    /// A check of a part: a key, or the index of an item.
    pub fn at(&mut self, step: impl Into<Token<'static>>) -> Check<'_> {
        let place = self.place.with_trailing_token(step);
        Check { found: self.found, place }
    }

    /// A check of what is further down.
    pub(super) fn at_place(&mut self, below: &Pointer) -> Check<'_> {
        let mut place = self.place.clone();
        place.append(below);
        Check { found: self.found, place }
    }

    /// Notes a mistake of this part.
    pub fn say(&mut self, text: impl Into<String>) {
        self.found.push((self.place.clone(), text.into()));
    }
}

/// A pointer as people write places: `a.b[0].c`. A key that holds a dot is put in quotes.
pub(super) fn in_words(place: &Pointer) -> String {
    let mut words = String::new();
    for token in place.tokens() {
        let key = token.decoded();
        if key.bytes().all(|byte| byte.is_ascii_digit()) && !key.is_empty() {
            words.extend(["[", &key, "]"]);
        } else if key.contains('.') {
            words.extend(["[\"", &key, "\"]"]);
        } else {
            if !words.is_empty() {
                words.push('.');
            }
            words += &key;
        }
    }
    words
}
