//! The table of all parts of `scripts/bench`.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::Args;

const HEADER: &str = "subject\tfigure\treference\tits figure\ttarget\t";

/// Prints the rows of a file as a table; fails if a row has a missed target.
#[derive(Args)]
pub(crate) struct Options {
    rows: PathBuf,
}

impl Options {
    /// Prints the table.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let text = fs::read_to_string(&self.rows);
        let text = text.with_context(|| format!("cannot read {}", self.rows.display()))?;
        print!("{}", table(&text));
        let is_missed = text.lines().any(|line| line.split('\t').nth(5) == Some("MISSED"));
        Ok(if is_missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// Aligns the columns; the last one has no width of its own.
fn table(text: &str) -> String {
    let rows: Vec<Vec<&str>> =
        std::iter::once(HEADER).chain(text.lines()).map(|line| line.split('\t').collect()).collect();
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|field| field.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..5).map(width).collect();
    let mut table = String::new();
    for row in &rows {
        let columns: Vec<String> =
            row.iter().zip(&widths).map(|(field, width)| format!("{field:<width$}  ")).collect();
        let line = columns.concat() + row.get(5).unwrap_or(&"");
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let table =
            table("start\t12.0 ms\tversion\t3.0 ms\t<= 100 ms\tkept\nsize\t14.9 MB\tother\t9.0 MB\t\t\n");
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], "subject  figure   reference  its figure  target");
        assert_eq!(lines[1], "start    12.0 ms  version    3.0 ms      <= 100 ms  kept");
        assert_eq!(lines[2], "size     14.9 MB  other      9.0 MB");
    }
}
