//! Diagnostics of a configuration file, with path and line.

use std::{fmt, path::Path};

use json_patch::jsonptr::{Pointer, PointerBuf, Token};
use serde::Serialize;

use crate::escape::to_single_line;

/// One error in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Diagnostic {
    /// The line, counted from one. `None` if the YAML parser reports no position.
    pub line: Option<u64>,
    /// The path of the value, for instance `sidecars.templates[0].name`. Empty for the file as a whole.
    pub path: String,
    /// The error. Together with the path it forms a sentence.
    pub message: String,
}

/// Collects the diagnostics of one part of a configuration.
pub struct Validator<'a> {
    found: &'a mut Vec<(PointerBuf, String)>,
    path: PointerBuf,
}

// === impl Diagnostic ===

impl Diagnostic {
    /// Creates a diagnostic. Control characters of the file are escaped.
    pub fn new(line: Option<u64>, path: &str, message: &str) -> Self {
        Self { line, path: to_single_line(path), message: to_single_line(message) }
    }

    /// Returns the diagnostic after the name of its file, in the format of compilers: `FILE:LINE: PATH: MESSAGE`.
    pub fn in_file(&self, file: &Path) -> String {
        let Self { line, path, message } = self;
        let line = line.map(|line| format!("{line}:")).unwrap_or_default();
        let colon = if path.is_empty() { "" } else { ": " };
        format!("{}:{line} {path}{colon}{message}", file.display())
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, path, message } = self;
        if let Some(line) = line {
            write!(f, "line {line}: ")?;
        }
        if path.is_empty() { f.write_str(message) } else { write!(f, "{path}: {message}") }
    }
}

// === impl Validator ===

impl<'a> Validator<'a> {
    /// Creates a validator of the whole file.
    pub fn new(found: &'a mut Vec<(PointerBuf, String)>) -> Self {
        Self { found, path: PointerBuf::new() }
    }

    /// Returns a validator of the value of a key or of the item at an index.
    pub fn at(&mut self, step: impl Into<Token<'static>>) -> Validator<'_> {
        let path = self.path.with_trailing_token(step);
        Validator { found: self.found, path }
    }

    /// Returns a validator of a value several levels below this part.
    pub fn at_pointer(&mut self, pointer: &Pointer) -> Validator<'_> {
        let mut path = self.path.clone();
        path.append(pointer);
        Validator { found: self.found, path }
    }

    /// Adds a diagnostic at the path of this part.
    pub fn report(&mut self, message: impl Into<String>) {
        self.found.push((self.path.clone(), message.into()));
    }
}

/// Formats a pointer as a readable path: `a.b[0].c`. A key that contains a dot is quoted.
pub fn display_path(pointer: &Pointer) -> String {
    let mut path = String::new();
    for token in pointer.tokens() {
        let key = token.decoded();
        if key.bytes().all(|byte| byte.is_ascii_digit()) && !key.is_empty() {
            path.extend(["[", &key, "]"]);
        } else if key.contains('.') {
            path.extend(["[\"", &key, "\"]"]);
        } else {
            if !path.is_empty() {
                path.push('.');
            }
            path += &key;
        }
    }
    path
}
