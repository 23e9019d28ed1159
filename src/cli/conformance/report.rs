//! What was asked, what was expected and why, and what was answered.

use std::io::Write;

use serde::Serialize;
use tabwriter::TabWriter;

use super::super::style::{BAD, GOOD, ODD, paint};

/// All that was tried, in its order.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// The namespace that it was tried in.
    pub(super) namespace: String,
    /// The release of the apiserver, `v1.34.3` say.
    pub(super) server: String,
    pub(super) rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    /// Who asks, and for what.
    pub(super) request: String,
    pub(super) expected: String,
    /// Why that is right.
    pub(super) why: &'static str,
    /// What happened, in a few words.
    pub(super) answered: String,
    /// The whole refusal, or what went wrong.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) message: String,
    pub(super) result: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Outcome {
    Passed,
    Failed,
    /// It cannot be tried here; the answer says why.
    Skipped,
}

// === impl Report ===

impl Report {
    pub(super) fn count(&self, outcome: Outcome) -> usize {
        self.rows.iter().filter(|row| row.result == outcome).count()
    }

    /// A table for people, and below it the words of what did not go as expected.
    pub(super) fn write_text(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let mut table = TabWriter::new(Vec::new()).padding(2);
        writeln!(table, "RESULT\tREQUEST\tEXPECTED\tANSWERED\tWHY")?;
        for row in &self.rows {
            let Row { request, expected, why, answered, result, .. } = row;
            writeln!(table, "{}\t{request}\t{expected}\t{answered}\t{why}", result.word())?;
        }
        let table = String::from_utf8(table.into_inner()?)?;
        let rows = std::iter::once(None).chain(self.rows.iter().map(Some));
        for (line, row) in table.lines().zip(rows) {
            // Without colours in the table, which would count as letters.
            match row.map(|row| (row.result.word(), row.result.style())) {
                Some((word, style)) => {
                    let rest = line.strip_prefix(word).unwrap_or(line);
                    writeln!(out, "{}{rest}", paint(style, word))?;
                }
                None => writeln!(out, "{line}")?,
            }
        }
        for row in self.rows.iter().filter(|row| row.result == Outcome::Failed && !row.message.is_empty()) {
            writeln!(out, "\n{}: {}", row.request, row.message)?;
        }
        let [passed, failed, skipped] =
            [Outcome::Passed, Outcome::Failed, Outcome::Skipped].map(|it| self.count(it));
        writeln!(
            out,
            "\n{passed} as expected, {failed} not, {skipped} not tried, on Kubernetes {}",
            self.server
        )?;
        Ok(())
    }
}

// === impl Outcome ===

impl Outcome {
    fn word(self) -> &'static str {
        match self {
            Self::Passed => "ok",
            Self::Failed => "WRONG",
            Self::Skipped => "skipped",
        }
    }

    fn style(self) -> anstyle::Style {
        match self {
            Self::Passed => GOOD,
            Self::Failed => BAD,
            Self::Skipped => ODD,
        }
    }
}
