//! Rows of the table that `scripts/bench` prints, and figures as text.
//!
//! `tests/support/src/bench_table.rs` appends to the same file.

use std::{env, fs::File, io::Write as _};

use anyhow::{Context, Result};

/// Environment variable with the file of the table; without it no table was requested.
const FILE: &str = "BENCH_ROWS";

/// A promised limit and whether a figure meets it.
pub(super) struct Target {
    pub(super) text: String,
    pub(super) is_met: bool,
}

/// One figure beside its reference, both measured in the same run.
pub(super) struct Row {
    pub(super) subject: String,
    pub(super) figure: String,
    pub(super) reference: String,
    pub(super) reference_figure: String,
    pub(super) target: Option<Target>,
}

/// Appends rows to the table, if one was requested.
pub(super) fn append(rows: &[Row]) -> Result<()> {
    let Some(path) = env::var_os(FILE).filter(|path| !path.is_empty()) else { return Ok(()) };
    let mut file = File::options().append(true).create(true).open(&path).context("cannot write the table")?;
    for row in rows {
        writeln!(file, "{}", row.line())?;
    }
    Ok(())
}

impl Row {
    /// The fields with tabs between them.
    fn line(&self) -> String {
        let (text, state) = match &self.target {
            Some(target) => (target.text.as_str(), if target.is_met { "kept" } else { "MISSED" }),
            None => ("", ""),
        };
        [&self.subject, &self.figure, &self.reference, &self.reference_figure, text, state].join("\t")
    }
}

/// The middle of the values, the smaller one of two.
pub(super) fn median(values: &[u64]) -> Result<u64> {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied().context("there are no measurements")
}

/// Microseconds as milliseconds with two digits.
pub(super) fn milliseconds(microseconds: u64) -> String {
    format!("{}.{:02}", microseconds / 1000, microseconds % 1000 / 10)
}

/// Bytes as megabytes with one digit.
pub(super) fn megabytes(bytes: u64) -> String {
    format!("{}.{} MB", bytes / 1_000_000, bytes % 1_000_000 / 100_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle_of_the_sorted_values() {
        assert_eq!(median(&[9, 1, 5]).unwrap(), 5);
        assert_eq!(median(&[4, 1, 3, 2]).unwrap(), 2);
        assert!(median(&[]).is_err());
    }

    #[test]
    fn figures_have_fixed_digits() {
        assert_eq!(milliseconds(12_345), "12.34");
        assert_eq!(milliseconds(5), "0.00");
        assert_eq!(megabytes(14_990_000), "14.9 MB");
    }

    #[test]
    fn missed_target_is_marked() {
        let mut row = Row {
            subject: String::from("rate"),
            figure: String::from("1"),
            reference: String::from("other"),
            reference_figure: String::from("2"),
            target: None,
        };
        assert_eq!(row.line(), "rate\t1\tother\t2\t\t");
        row.target = Some(Target { text: String::from(">= 3"), is_met: false });
        assert_eq!(row.line(), "rate\t1\tother\t2\t>= 3\tMISSED");
    }
}
