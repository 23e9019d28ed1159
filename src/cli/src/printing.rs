//! Output formats, errors and confirmations, in the forms that users of kubectl expect.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::bail;
use clap::ValueEnum;
use serde::Serialize;

use crate::terminal::{FAILURE, paint};
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

/// Prints `error: ERROR` to standard error.
pub fn print_error(error: &anyhow::Error) {
    // If standard error is closed, the exit status remains.
    let _ = write_error(error, &mut anstream::stderr().lock());
}

/// Writes `error: ERROR` with all causes on one line. Causes contain texts of other systems.
pub fn write_error(error: &anyhow::Error, out: &mut impl Write) -> io::Result<()> {
    let text = to_bounded_line(&format!("{error:#}"), MAX_TEXT_CHARS);
    writeln!(out, "{}: {text}", paint(FAILURE, "error"))
}

/// Prints a question to the terminal, and fails unless the answer is yes. The caller escapes the question.
pub fn confirm(question: &str) -> anyhow::Result<()> {
    if !io::stdin().is_terminal() {
        bail!("confirmation is required, and stdin is not a terminal; pass --yes");
    }
    anstream::eprint!("{question} Continue? [y/N] ");
    io::stderr().flush()?;
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
}
