//! Escaping of log lines. Names, messages of members and texts of libraries must neither start a new line nor control the
//! terminal that shows the log. `tracing-subscriber` escapes the sequences of terminals, but in its text format neither
//! line breaks nor formatting characters for bidirectional text.

use std::{
    borrow::Cow,
    io::{self, Write},
};

use clap::ValueEnum;
use serde_json::json;
use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

use etcd_guard_core::escape::{MAX_TEXT_CHARS, escape_json, is_plain, to_bounded_line};

/// Maximum length of a line in JSON, in bytes. The lines of this program are shorter, because verdicts and errors are cut
/// to [`MAX_TEXT_CHARS`].
const MAX_JSON_BYTES: usize = 16 * MAX_TEXT_CHARS;

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "the documentation of a variant would become help text of each command")]
pub enum LogFormat {
    Text,
    Json,
}

/// Escapes the lines for another writer.
#[derive(Clone, Copy, Debug)]
pub(super) struct EscapingWriter<M> {
    lines: M,
    format: LogFormat,
}

/// Escapes one line.
#[derive(Debug)]
pub(super) struct LineEscaper<W> {
    line: W,
    format: LogFormat,
}

/// Returns a line without characters that a terminal interprets. In a text, they become Rust escape sequences, and the line
/// is cut to [`MAX_TEXT_CHARS`]. In JSON they become `\uXXXX`, so that programs read the same values.
fn escaped(line: &[u8], format: LogFormat) -> Cow<'_, [u8]> {
    let content = line.strip_suffix(b"\n").unwrap_or(line);
    let max_length = match format {
        LogFormat::Text => MAX_TEXT_CHARS,
        LogFormat::Json => MAX_JSON_BYTES,
    };
    if content.len() <= max_length && is_plain(content) {
        return Cow::Borrowed(line);
    }
    let content = String::from_utf8_lossy(content);
    let escaped = match format {
        LogFormat::Text => to_bounded_line(&content, MAX_TEXT_CHARS),
        LogFormat::Json if content.len() <= MAX_JSON_BYTES => escape_json(&content).into_owned(),
        // Only a library writes such a line.
        LogFormat::Json => json!({"cut": to_bounded_line(&content, MAX_TEXT_CHARS)}).to_string(),
    };
    Cow::Owned((escaped + "\n").into_bytes())
}

// === impl EscapingWriter ===

impl<M> EscapingWriter<M> {
    pub(super) fn new(lines: M, format: LogFormat) -> Self {
        Self { lines, format }
    }
}

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for EscapingWriter<M> {
    type Writer = LineEscaper<M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        LineEscaper { line: self.lines.make_writer(), format: self.format }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Self::Writer {
        LineEscaper { line: self.lines.make_writer_for(metadata), format: self.format }
    }
}

// === impl LineEscaper ===

impl<W: Write> Write for LineEscaper<W> {
    /// Writes one line: `tracing-subscriber` passes each line as a whole.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.line.write_all(&escaped(line, self.format))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.line.flush()
    }
}
