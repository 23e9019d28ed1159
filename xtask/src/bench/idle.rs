//! The report of `scripts/bench idle`.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};
use clap::Args;

use super::rows::{Row, Target, append, median, megabytes};

/// Microseconds from the start to serving.
const MAX_START: u64 = 100_000;

/// Resident bytes of an idle server.
const MAX_RESIDENT: u64 = 20_000_000;

/// Bytes of the program.
const MAX_PROGRAM: u64 = 25_000_000;

/// Prints the medians of all starts and the memory of an idle server.
#[derive(Args)]
pub(crate) struct Options {
    /// Lines `NAME NUMBER`: `version`, `serving` and `ready` in microseconds, several times; `resident`, `anonymous`
    /// and `reference-resident` in kB; `program` and `reference-program` in bytes.
    measurements: PathBuf,
    /// Title of the table.
    #[arg(long)]
    title: String,
}

impl Options {
    /// Prints the figures, and adds rows to the table of all benches.
    pub(crate) fn run(self) -> Result<()> {
        let text = fs::read_to_string(&self.measurements)
            .with_context(|| format!("cannot read {}", self.measurements.display()))?;
        let middle = |name: &str| {
            let values: Vec<u64> = values(&text, name).collect();
            median(&values).with_context(|| format!("no measurement of {name}"))
        };
        let (version, serving, ready) = (middle("version")?, middle("serving")?, middle("ready")?);
        let resident = middle("resident")? * 1024;
        let program = middle("program")?;
        println!("{:<46} {:>10}", self.title, "median");
        for (label, time) in [
            ("reference: start that prints its version", version),
            ("start to serving", serving),
            ("then the first Kubernetes call, to ready", ready),
        ] {
            println!("{label:<46} {:>10}", ms(time));
        }
        for (label, bytes) in [
            ("resident when idle", resident),
            ("  of it anonymous", middle("anonymous")? * 1024),
            ("program", program),
        ] {
            println!("{label:<46} {:>10}", megabytes(bytes));
        }
        let target = |text: &str, is_met| Some(Target { text: text.to_owned(), is_met });
        let row = |subject: &str, figure, reference: &str, reference_figure, target| Row {
            subject: subject.to_owned(),
            figure,
            reference: reference.to_owned(),
            reference_figure,
            target,
        };
        append(&[
            row(
                "start to serving",
                ms(serving),
                "start that prints its version",
                ms(version),
                target("<= 100 ms", serving <= MAX_START),
            ),
            row(
                "start to ready, with an API server",
                ms(serving + ready),
                "start that prints its version",
                ms(version),
                None,
            ),
            row(
                "resident when idle",
                megabytes(resident),
                "no-op server",
                megabytes(middle("reference-resident")? * 1024),
                target("<= 20 MB", resident <= MAX_RESIDENT),
            ),
            row(
                "size of the program",
                megabytes(program),
                "the reference, built alike",
                megabytes(middle("reference-program")?),
                target("<= 25 MB", program <= MAX_PROGRAM),
            ),
        ])
    }
}

/// Values of a name.
fn values<'text>(text: &'text str, name: &str) -> impl Iterator<Item = u64> + use<'text> {
    let prefix = format!("{name} ");
    text.lines().filter_map(move |line| line.strip_prefix(&prefix)?.trim().parse().ok())
}

/// Microseconds as milliseconds with one digit.
fn ms(microseconds: u64) -> String {
    format!("{}.{} ms", microseconds / 1000, microseconds % 1000 / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_name() {
        let text = "ready 5\nserving 7\nready 9\nready-later 3\n";
        assert_eq!(values(text, "ready").collect::<Vec<_>>(), [5, 9]);
    }

    #[test]
    fn milliseconds_have_one_digit() {
        assert_eq!(ms(12_345), "12.3 ms");
    }
}
