//! The report of `scripts/compare`.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::rows::{median, megabytes, milliseconds};

/// Name of the reference: the handler that reads a review and approves it.
const NO_OP: &str = "no-op";

/// Name of the reference for requests to the API server: no webhook and no policy.
const UNREGISTERED: &str = "unregistered";

/// Reviews, each sent on one connection and on several: name of the case, and title.
const REVIEWS: [(&str, &str); 2] = [
    ("delete", "DELETE of a pod out of scope"),
    ("create", "CREATE of a pod that gets a sidecar and mounts"),
];

/// Fields of a line of `rounds`.
const ROUND_FIELDS: usize = 9;

/// Prints the medians of all rounds as Markdown tables.
#[derive(Args)]
pub(crate) struct Options {
    /// Directory with the files `rounds` and `facts`. A line of `rounds` has: subject, path (direct or api), case,
    /// connections, requests per second, p50, p99 and p99.9 of the latency, and CPU time per request, the times in
    /// microseconds. A line of `facts` has: subject, name of the fact, number.
    directory: PathBuf,
    /// Subjects in the order of the tables, each as NAME=DESCRIPTION.
    #[arg(required = true)]
    subjects: Vec<String>,
}

/// Figures of one round.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Round {
    subject: String,
    path: String,
    case: String,
    figures: Figures,
}

/// Requests per second, and times in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Figures {
    connections: u64,
    rate: u64,
    p50: u64,
    p99: u64,
    p999: u64,
    cpu: u64,
}

/// Size, memory and start of one subject.
struct Fact {
    subject: String,
    name: String,
    number: u64,
}

impl Options {
    /// Prints the tables.
    pub(crate) fn run(self) -> Result<()> {
        let rounds = read_lines(&self.directory.join("rounds"), Round::from_line)?;
        let facts = read_lines(&self.directory.join("facts"), Fact::from_line)?;
        let subjects: Vec<(&str, &str)> = self
            .subjects
            .iter()
            .map(|subject| subject.split_once('=').context("a subject is not NAME=DESCRIPTION"))
            .collect::<Result<_>>()?;
        print!("{}", programs(&subjects, &facts)?);
        print!("{}", latencies("direct", NO_OP, &subjects, &rounds)?);
        print!("{}", latencies("api", UNREGISTERED, &subjects, &rounds)?);
        Ok(())
    }
}

/// Reads a file with one item per line.
fn read_lines<T>(file: &Path, parse: fn(&str) -> Result<T>) -> Result<Vec<T>> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    text.lines()
        .map(parse)
        .collect::<Result<_>>()
        .with_context(|| format!("cannot evaluate {}", file.display()))
}

impl Round {
    fn from_line(line: &str) -> Result<Self> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        ensure!(fields.len() == ROUND_FIELDS, "not {ROUND_FIELDS} fields: {line}");
        let word = |number: usize| fields.get(number).copied().unwrap_or_default().to_owned();
        let number = |field: usize| -> Result<u64> {
            word(field).parse().with_context(|| format!("field {} is not a number: {line}", field + 1))
        };
        Ok(Self {
            subject: word(0),
            path: word(1),
            case: word(2),
            figures: Figures {
                connections: number(3)?,
                rate: number(4)?,
                p50: number(5)?,
                p99: number(6)?,
                p999: number(7)?,
                cpu: number(8)?,
            },
        })
    }
}

impl Fact {
    fn from_line(line: &str) -> Result<Self> {
        let mut words = line.split_whitespace();
        let (Some(subject), Some(name), Some(number), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            anyhow::bail!("not a subject, a name and a number: {line}");
        };
        let number = number.parse().with_context(|| format!("not a number: {line}"))?;
        Ok(Self { subject: subject.to_owned(), name: name.to_owned(), number })
    }
}

/// Size, start and memory of each subject that is a program.
fn programs(subjects: &[(&str, &str)], facts: &[Fact]) -> Result<String> {
    let mut table = String::from(
        "\n## Programs\n\n| subject | program | start to first correct response | resident, idle | resident, after the load |\n\
         | --- | --: | --: | --: | --: |\n",
    );
    for (subject, description) in subjects {
        let fact = |name: &str| {
            let values: Vec<u64> = facts
                .iter()
                .filter(|fact| fact.subject == *subject && fact.name == name)
                .map(|fact| fact.number)
                .collect();
            (!values.is_empty()).then(|| median(&values)).transpose()
        };
        let Some(program) = fact("program")? else { continue };
        let memory = |kilobytes: Option<u64>| cell(kilobytes.map(|kilobytes| megabytes(kilobytes * 1024)));
        writeln!(
            table,
            "| {description} | {} | {} | {} | {} |",
            megabytes(program),
            cell(fact("start")?.map(|start| format!("{} ms", milliseconds(start)))),
            memory(fact("idle")?),
            memory(fact("loaded")?),
        )?;
    }
    Ok(table)
}

fn cell(text: Option<String>) -> String {
    text.unwrap_or_else(|| String::from("-"))
}

/// Rate, latency and CPU time of one path, beside the reference that was measured with the same subject.
fn latencies(path: &str, reference: &str, subjects: &[(&str, &str)], rounds: &[Round]) -> Result<String> {
    let mut table = String::new();
    let recipient = if path == "direct" { "Direct" } else { "Through the API server" };
    for (review, title) in REVIEWS {
        write!(
            table,
            "\n## {recipient}: {title}\n\n\
             | subject | connections | requests/s | p50 | p99 | p99.9 | CPU | {reference}: requests/s, p50, CPU | CPU, ratio |\n\
             | --- | --: | --: | --: | --: | --: | --: | --: | --: |\n"
        )?;
        let reference_case =
            if path == "direct" { reference.to_owned() } else { format!("{review}-{reference}") };
        for (subject, description) in subjects {
            for connections in connections_of(subject, path, review, rounds) {
                let figures = |case: &str| medians(subject, path, case, connections, rounds);
                let (Some(own), Some(beside)) = (figures(review)?, figures(&reference_case)?) else {
                    continue;
                };
                writeln!(
                    table,
                    "| {description} | {connections} | {} | {} ms | {} ms | {} ms | {} us | {}, {} ms, {} us | {} |",
                    own.rate,
                    milliseconds(own.p50),
                    milliseconds(own.p99),
                    milliseconds(own.p999),
                    own.cpu,
                    beside.rate,
                    milliseconds(beside.p50),
                    beside.cpu,
                    ratio(own.cpu, beside.cpu),
                )?;
            }
        }
    }
    Ok(table)
}

/// Numbers of connections that a case was measured with, in the order of measurement.
fn connections_of(subject: &str, path: &str, case: &str, rounds: &[Round]) -> Vec<u64> {
    let mut numbers = Vec::new();
    for round in rounds {
        let connections = round.figures.connections;
        if round.is_of(subject, path, case) && !numbers.contains(&connections) {
            numbers.push(connections);
        }
    }
    numbers
}

impl Round {
    fn is_of(&self, subject: &str, path: &str, case: &str) -> bool {
        self.subject == subject && self.path == path && self.case == case
    }
}

/// Medians of the rounds of a case; `None` if it was not measured.
fn medians(
    subject: &str,
    path: &str,
    case: &str,
    connections: u64,
    rounds: &[Round],
) -> Result<Option<Figures>> {
    let rounds: Vec<Figures> = rounds
        .iter()
        .filter(|round| round.is_of(subject, path, case) && round.figures.connections == connections)
        .map(|round| round.figures)
        .collect();
    if rounds.is_empty() {
        return Ok(None);
    }
    let column = |value: fn(&Figures) -> u64| median(&rounds.iter().map(value).collect::<Vec<_>>());
    Ok(Some(Figures {
        connections,
        rate: column(|figures| figures.rate)?,
        p50: column(|figures| figures.p50)?,
        p99: column(|figures| figures.p99)?,
        p999: column(|figures| figures.p999)?,
        cpu: column(|figures| figures.cpu)?,
    }))
}

/// A quotient with one digit.
fn ratio(numerator: u64, denominator: u64) -> String {
    if denominator == 0 {
        return String::from("-");
    }
    let tenths = (numerator * 10 + denominator / 2) / denominator;
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(lines: &[&str]) -> Vec<Round> {
        lines.iter().map(|line| Round::from_line(line).unwrap()).collect()
    }

    #[test]
    fn figures_are_medians_of_one_case() {
        let rounds = rounds(&[
            "go direct delete 16 7000 100 900 950 20",
            "go direct delete 16 5000 300 700 990 40",
            "go direct delete 16 6000 200 800 970 30",
            "go direct delete 1 1 1 1 1 1",
            "guard direct delete 16 1 1 1 1 1",
        ]);
        let expected = Figures { connections: 16, rate: 6000, p50: 200, p99: 800, p999: 970, cpu: 30 };
        assert_eq!(medians("go", "direct", "delete", 16, &rounds).unwrap(), Some(expected));
        assert_eq!(medians("go", "api", "delete", 16, &rounds).unwrap(), None);
        assert_eq!(connections_of("go", "direct", "delete", &rounds), [16, 1]);
    }

    #[test]
    fn malformed_lines_are_rejected() {
        assert!(Round::from_line("go direct delete 16 7000 100 900 950").is_err());
        assert!(Round::from_line("go direct delete 16 7000 100 900 950 fast").is_err());
        assert!(Fact::from_line("go idle").is_err());
        assert!(Fact::from_line("go idle many").is_err());
        assert!(Fact::from_line("go idle 1 2").is_err());
    }

    #[test]
    fn row_has_the_reference_of_the_same_subject() {
        let rounds = rounds(&[
            "go direct delete 1 6000 200 800 970 30",
            "go direct no-op 1 9000 100 300 400 10",
            "guard direct no-op 1 8000 100 300 400 10",
        ]);
        let table = latencies("direct", NO_OP, &[("go", "Go"), ("guard", "guard")], &rounds).unwrap();
        let row = "| Go | 1 | 6000 | 0.20 ms | 0.80 ms | 0.97 ms | 30 us | 9000, 0.10 ms, 10 us | 3.0 |";
        assert!(table.contains(row) && !table.contains("| guard |"), "{table}");
    }

    #[test]
    fn subject_without_a_program_has_no_row() {
        let facts =
            [Fact::from_line("go program 14990000").unwrap(), Fact::from_line("go idle 1000").unwrap()];
        let table = programs(&[("go", "Go"), ("policies", "policies")], &facts).unwrap();
        assert!(table.contains("| Go | 14.9 MB | - | 1.0 MB | - |"), "{table}");
        assert!(!table.contains("| policies |"));
    }

    #[test]
    fn ratio_is_rounded_to_one_digit() {
        assert_eq!([ratio(30, 20), ratio(33, 20), ratio(1, 0)], ["1.5", "1.7", "-"]);
    }
}
