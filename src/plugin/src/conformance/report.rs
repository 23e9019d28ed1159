//! The report: each request with the expected and the actual response.

use std::io::Write;

use anstyle::Style;
use serde::Serialize;
use tabwriter::TabWriter;

use etcd_guard_cli::terminal::{FAILURE, SUCCESS, WARNING, paint};
use etcd_guard_core::escape::{MAX_TEXT_CHARS, to_bounded_line};

/// The results of all cases, in the order in which they ran.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    /// The namespace of the run.
    pub(super) namespace: String,
    /// The version of the API server, for instance `v1.34.3`.
    pub(super) server: String,
    pub(crate) rows: Vec<Row>,
}

/// The result of one case.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    pub(super) request: String,
    /// The expected response.
    pub(super) expected: String,
    /// The reason for the expectation.
    pub(super) why: &'static str,
    /// The actual response, or the reason why the case was skipped.
    pub(super) answered: String,
    /// The complete text of the denial or error.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) message: String,
    pub(super) result: Outcome,
}

/// The result of comparing the actual with the expected response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Outcome {
    Passed,
    Failed,
    /// The case cannot run in this cluster; [`Row::answered`] holds the reason.
    Skipped,
}

/// Returns a text of the API server or of the guard for the terminal.
fn escaped(text: &str) -> String {
    to_bounded_line(text, MAX_TEXT_CHARS)
}

// === impl Report ===

impl Report {
    /// The number of rows with this outcome.
    pub(crate) fn count(&self, outcome: Outcome) -> usize {
        self.rows.iter().filter(|row| row.result == outcome).count()
    }

    /// A report with this text in each field.
    #[cfg(any(test, feature = "fixtures"))]
    pub(crate) fn with_texts(text: &str) -> Self {
        let text = || text.to_owned();
        let row = Row {
            request: text(),
            expected: text(),
            why: "why",
            answered: text(),
            message: text(),
            result: Outcome::Failed,
        };
        Self { namespace: text(), server: text(), rows: vec![row] }
    }

    /// Writes the request of each row.
    pub(crate) fn write_names(&self, out: &mut impl Write) -> anyhow::Result<()> {
        Ok(self.rows.iter().try_for_each(|row| writeln!(out, "{}", escaped(&row.request)))?)
    }

    /// Writes a table of all rows, followed by the complete messages of the failed ones.
    pub(crate) fn write_text(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let mut table = TabWriter::new(Vec::new()).padding(3);
        writeln!(table, "RESULT\tREQUEST\tEXPECTED\tANSWERED\tWHY")?;
        for row in &self.rows {
            let Row { request, expected, why, answered, result, .. } = row;
            let [request, expected, answered] = [request, expected, answered].map(|text| escaped(text));
            writeln!(table, "{}\t{request}\t{expected}\t{answered}\t{why}", result.label())?;
        }
        let table = String::from_utf8(table.into_inner()?)?;
        let rows = std::iter::once(None).chain(self.rows.iter().map(Some));
        for (line, row) in table.lines().zip(rows) {
            // Colours are added to the finished table, because the table writer counts escape sequences as characters.
            match row.map(|row| (row.result.label(), row.result.style())) {
                Some((label, style)) => {
                    let rest = line.strip_prefix(label).unwrap_or(line);
                    writeln!(out, "{}{rest}", paint(style, label))?;
                }
                None => writeln!(out, "{line}")?,
            }
        }
        for row in self.rows.iter().filter(|row| row.result == Outcome::Failed && !row.message.is_empty()) {
            writeln!(out, "\n{}: {}", escaped(&row.request), escaped(&row.message))?;
        }
        let [passed, failed, skipped] =
            [Outcome::Passed, Outcome::Failed, Outcome::Skipped].map(|outcome| self.count(outcome));
        writeln!(
            out,
            "\n{passed} passed, {failed} failed, {skipped} skipped on Kubernetes {}",
            escaped(&self.server)
        )?;
        Ok(())
    }
}

// === impl Outcome ===

impl Outcome {
    fn label(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::Skipped => "skipped",
        }
    }

    fn style(self) -> Style {
        match self {
            Self::Passed => SUCCESS,
            Self::Failed => FAILURE,
            Self::Skipped => WARNING,
        }
    }
}
