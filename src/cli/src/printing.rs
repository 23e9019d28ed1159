//! Output formats, errors and confirmations, in the forms that users of kubectl expect.

use std::{
    fmt,
    io::{self, BufRead, IsTerminal, Write},
};

use anyhow::bail;
use clap::ValueEnum;
use serde::Serialize;

use crate::terminal::{FAILURE, WARNING, paint};
use etcd_guard_core::escape::{MAX_TEXT_CHARS, escape_json, escape_texts, to_bounded_line};

/// Output format
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Human-readable text
    Table,
    /// The table with further rows or columns
    Wide,
    /// Names, one per line
    Name,
    /// JSON
    Json,
    /// YAML
    Yaml,
}

/// A cell of a table without a value, as in kubectl.
pub const NONE: &str = "<none>";

/// Standard output. A write after the reader has gone fails with an error for which [`is_output_closed`] is true.
pub struct Stdout(anstream::AutoStream<io::StdoutLock<'static>>);

/// The reader of standard output has gone, as in `kubectl etcd-guard status | head -1`.
#[derive(Debug)]
struct OutputClosed;

/// Locks standard output. Colors are removed unless it is a terminal.
pub fn stdout() -> Stdout {
    Stdout(anstream::stdout().lock())
}

/// Whether a command failed only because the reader of its output has gone.
pub fn is_output_closed(error: &anyhow::Error) -> bool {
    let mut inner = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()?.get_ref());
    inner.any(<dyn std::error::Error + Send + Sync>::is::<OutputClosed>)
}

/// Marks the error of a pipe without a reader.
fn marked(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return io::Error::new(io::ErrorKind::BrokenPipe, OutputClosed);
    }
    error
}

// === impl Stdout ===

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(marked)
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes).map_err(marked)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(marked)
    }
}

// === impl OutputClosed ===

impl fmt::Display for OutputClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader of the output has gone")
    }
}

impl std::error::Error for OutputClosed {}

// === impl Output ===

impl Output {
    /// Writes `value` if this format is JSON or YAML, and returns whether it is.
    pub fn write_document(self, value: &impl Serialize, out: &mut impl Write) -> anyhow::Result<bool> {
        match self {
            Self::Json => writeln!(out, "{}", escape_json(&serde_json::to_string_pretty(value)?))?,
            Self::Yaml => write!(out, "{}", yaml(value)?)?,
            Self::Table | Self::Wide | Self::Name => return Ok(false),
        }
        Ok(true)
    }
}

/// Returns YAML in which each text has one line and is cut to the maximum length.
pub fn yaml(value: &impl Serialize) -> anyhow::Result<String> {
    let mut value = serde_json::to_value(value)?;
    escape_texts(&mut value, &|text| to_bounded_line(text, MAX_TEXT_CHARS));
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    Ok(serde_saphyr::to_string_with_options(&value, options)?)
}

/// Prints `Warning: TEXT` to standard error, as kubectl does.
pub fn print_warning(text: &str) {
    let text = to_bounded_line(text, MAX_TEXT_CHARS);
    // If standard error is closed, the exit status remains.
    let _ = writeln!(anstream::stderr().lock(), "{}: {text}", paint(WARNING, "Warning"));
}

/// Prints `error: ERROR` to standard error.
pub fn print_error(error: &anyhow::Error) {
    // If standard error is closed, the exit status remains.
    let _ = write_error(error, &mut anstream::stderr().lock());
}

/// Writes `error: ERROR` with all causes on one line. Causes contain texts of other systems.
pub fn write_error(error: &anyhow::Error, out: &mut impl Write) -> io::Result<()> {
    let text = to_bounded_line(&causes(error), MAX_TEXT_CHARS);
    writeln!(out, "{}: {text}", paint(FAILURE, "error"))
}

/// Returns an error with its causes, each once: many errors repeat the text of their cause.
pub fn causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(|cause| plain(&cause.to_string())) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Returns the text of an error without the numbers of the operating system and without Rust's quotes of paths.
pub fn plain(text: &str) -> String {
    let mut rest = text;
    let mut plain = String::new();
    while let Some((before, after)) = rest.split_once(" (os error ") {
        plain.push_str(before);
        rest = after.trim_start_matches(|letter: char| letter.is_ascii_digit());
        rest = rest.strip_prefix(')').unwrap_or(rest);
    }
    plain.push_str(rest);
    plain.replace("'\"", "").replace("\"'", "")
}

/// Prints a question to the terminal, and fails unless the answer is yes. The caller escapes the question.
pub fn confirm(question: &str) -> anyhow::Result<()> {
    if !io::stdin().is_terminal() {
        bail!("confirmation is required, and stdin is not a terminal; pass --yes");
    }
    let mut stderr = anstream::stderr().lock();
    write!(stderr, "{question} Continue? [y/N] ")?;
    stderr.flush()?;
    drop(stderr);
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    anyhow::ensure!(matches!(answer.trim(), "y" | "Y" | "yes"), "not confirmed; nothing was changed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn writes_documents_and_leaves_tables_to_the_caller() {
        let value = json!({"a": ["x\ny", 1]});
        let written = |output: Output| {
            let mut out = Vec::new();
            let is_document = output.write_document(&value, &mut out).unwrap();
            (is_document, String::from_utf8(out).unwrap())
        };
        assert_eq!(
            written(Output::Json),
            (true, String::from("{\n  \"a\": [\n    \"x\\ny\",\n    1\n  ]\n}\n"))
        );
        let (is_document, text) = written(Output::Yaml);
        assert!(is_document && text.starts_with("a:"), "{text}");
        let read: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(read, json!({"a": ["x\\ny", 1]}));
        assert_eq!(written(Output::Wide), (false, String::new()));
    }

    #[test]
    fn error_has_all_causes_on_one_line() {
        let error = anyhow::anyhow!("refused\nby the \u{1b}[2Jserver").context("failed to read pod x");
        let mut out = anstream::StripStream::new(Vec::new());
        write_error(&error, &mut out).unwrap();
        let text = String::from_utf8(out.into_inner()).unwrap();
        assert_eq!(text, "error: failed to read pod x: refused\\nby the \\u{1b}[2Jserver\n");
    }

    #[test]
    fn cause_is_printed_once_and_without_numbers() {
        let file = || io::Error::from_raw_os_error(2);
        let error = anyhow::Error::new(file()).context(format!("failed to read '\"/x\"': {}", file()));
        assert_eq!(causes(&error), "failed to read /x: No such file or directory");
        assert_eq!(plain("refused (os error 111), twice (os error 111)"), "refused, twice");
    }

    #[test]
    fn only_closed_outputs_are_closed_outputs() {
        let pipe = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_output_closed(&anyhow::Error::new(marked(pipe())).context("printing the report")));
        assert!(!is_output_closed(&anyhow::Error::new(pipe()).context("the guard")));
    }
}
