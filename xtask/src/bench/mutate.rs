//! The report of `scripts/bench mutate`.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::rows::{Row, Target, append, median, milliseconds};
use crate::log;

/// Requests per second that one core must reach: more new pods than any API server admits.
const MIN_RATE: u64 = 2_000;

/// Microseconds that 99 of 100 requests must not exceed.
const MAX_P99: u64 = 5_000;

/// The same for a pod of 100 KiB.
const MAX_LARGE_P99: u64 = 10_000;

/// The reference: a review of the same size that names another resource, sent to the same server.
const REFERENCE: &str = "read and let through";

/// Cases in the order of the table: file name of the measurements, and description.
const CASES: [(&str, &str); 8] = [
    ("reference", "reference: other resource, read and let through"),
    ("unchanged", "a pod that gets nothing"),
    ("mutated", "a pod that gets lxcfs and a sidecar"),
    ("alone", "the same, one connection"),
    ("large-alone-reference", "reference: 100 KiB, let through, one connection"),
    ("large-alone", "a pod of 100 KiB that gets both, one connection"),
    ("large-reference", "reference: 100 KiB, let through"),
    ("large", "a pod of 100 KiB that gets both"),
];

/// Prints the medians of all rounds; fails if a target is missed.
#[derive(Args)]
pub(crate) struct Options {
    /// Directory with a file CASE.rounds for each case. A line has the figures of one round: bytes, connections,
    /// requests per second, median and p99 of the latency, and CPU time per request, the times in microseconds.
    directory: PathBuf,
    /// Title of the table.
    #[arg(long)]
    title: String,
}

/// Medians of one case.
#[derive(Debug, PartialEq)]
struct Figures {
    bytes: u64,
    connections: u64,
    rate: u64,
    p50: u64,
    p99: u64,
    cpu: u64,
}

impl Options {
    /// Prints the table and the missed targets, and adds rows to the table of all benches.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let read = |case: &str| -> Result<Figures> {
            let file = self.directory.join(format!("{case}.rounds"));
            let text =
                fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            Figures::from_rounds(&text).with_context(|| format!("cannot evaluate {}", file.display()))
        };
        println!(
            "{:<52} {:>8} {:>6} {:>8} {:>9} {:>9} {:>9}",
            self.title, "bytes", "conn.", "req/s", "p50", "p99", "CPU"
        );
        for (case, description) in CASES {
            let Figures { bytes, connections, rate, p50, p99, cpu } = read(case)?;
            println!(
                "{description:<52} {bytes:>8} {connections:>6} {rate:>8} {:>6} ms {:>6} ms {cpu:>6} us",
                milliseconds(p50),
                milliseconds(p99)
            );
        }
        let (reference, mutated) = (read("reference")?, read("mutated")?);
        let rows = [
            rate_row(&mutated, &reference),
            latency_row("mutate: the same, 16 connections", &mutated, &reference, MAX_P99),
            latency_row(
                "mutate: a pod of 100 KiB, one connection",
                &read("large-alone")?,
                &read("large-alone-reference")?,
                MAX_LARGE_P99,
            ),
            latency_row(
                "mutate: a pod of 100 KiB, 16 connections",
                &read("large")?,
                &read("large-reference")?,
                MAX_LARGE_P99,
            ),
        ];
        append(&rows)?;
        let mut status = ExitCode::SUCCESS;
        for row in &rows {
            if let Some(target) = row.target.as_ref().filter(|target| !target.is_met) {
                log::info(format_args!(
                    "missed target: {}: {}, measured {}",
                    row.subject, target.text, row.figure
                ));
                status = ExitCode::FAILURE;
            }
        }
        Ok(status)
    }
}

impl Figures {
    fn from_rounds(text: &str) -> Result<Self> {
        let rounds = text.lines().map(|line| {
            let figures: Result<Vec<u64>, _> = line.split_whitespace().map(str::parse).collect();
            figures.with_context(|| format!("not a list of numbers: {line}"))
        });
        let rounds: Vec<Vec<u64>> = rounds.collect::<Result<_>>()?;
        ensure!(rounds.iter().all(|figures| figures.len() == 6), "a round does not have six figures");
        let column = |number: usize| {
            let values: Vec<u64> = rounds.iter().filter_map(|figures| figures.get(number).copied()).collect();
            median(&values)
        };
        Ok(Self {
            bytes: column(0)?,
            connections: column(1)?,
            rate: column(2)?,
            p50: column(3)?,
            p99: column(4)?,
            cpu: column(5)?,
        })
    }

    fn latency(&self) -> String {
        format!("{} ms, p99 {} ms", milliseconds(self.p50), milliseconds(self.p99))
    }
}

fn rate_row(figures: &Figures, reference: &Figures) -> Row {
    Row {
        subject: String::from("mutate: lxcfs and a sidecar, rate"),
        figure: format!("{}/s", figures.rate),
        reference: REFERENCE.to_owned(),
        reference_figure: format!("{}/s", reference.rate),
        target: Some(Target { text: format!(">= {MIN_RATE}/s"), is_met: figures.rate >= MIN_RATE }),
    }
}

fn latency_row(subject: &str, figures: &Figures, reference: &Figures, limit: u64) -> Row {
    Row {
        subject: subject.to_owned(),
        figure: figures.latency(),
        reference: REFERENCE.to_owned(),
        reference_figure: reference.latency(),
        target: Some(Target { text: format!("p99 <= {} ms", limit / 1000), is_met: figures.p99 <= limit }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_medians_of_the_rounds() {
        let figures =
            Figures::from_rounds("10 16 7000 100 900 20\n10 16 5000 300 700 40\n10 16 6000 200 800 30\n");
        let expected = Figures { bytes: 10, connections: 16, rate: 6000, p50: 200, p99: 800, cpu: 30 };
        assert_eq!(figures.unwrap(), expected);
        assert!(Figures::from_rounds("1 2 3\n").is_err());
        assert!(Figures::from_rounds("").is_err());
    }

    #[test]
    fn targets_include_their_limit() {
        let figures = |rate, p99| Figures { bytes: 1, connections: 1, rate, p50: 1, p99, cpu: 1 };
        let is_met = |row: Row| row.target.unwrap().is_met;
        assert!(is_met(rate_row(&figures(MIN_RATE, 1), &figures(1, 1))));
        assert!(!is_met(rate_row(&figures(MIN_RATE - 1, 1), &figures(1, 1))));
        assert!(is_met(latency_row("", &figures(1, MAX_P99), &figures(1, 1), MAX_P99)));
        assert!(!is_met(latency_row("", &figures(1, MAX_P99 + 1), &figures(1, 1), MAX_P99)));
    }
}
