//! Rows of the table that `scripts/bench` prints: each figure beside its reference, both measured in the same run.

use std::{fmt, fs::File, io::Write, time::Duration};

/// Names the file that rows are added to; without it they are printed.
const FILE: &str = "BENCH_ROWS";

/// One line of the table.
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) figure: String,
    /// What it is measured against, and its figure.
    pub(crate) reference: String,
    pub(crate) reference_figure: String,
    /// What is promised, if anything is, and whether it is kept.
    pub(crate) bar: Option<(String, bool)>,
}

/// Whether there is a table to add to.
pub(crate) fn are_wanted() -> bool {
    std::env::var_os(FILE).is_some()
}

/// Adds rows to the table.
pub(crate) fn add(rows: &[Row]) {
    let text: Vec<String> = rows.iter().map(Row::to_string).collect();
    let text = text.join("\n") + "\n";
    match std::env::var_os(FILE) {
        Some(file) => {
            let mut file = File::options().append(true).create(true).open(file).expect("the table");
            file.write_all(text.as_bytes()).expect("the table");
        }
        None => print!("{text}"),
    }
}

impl fmt::Display for Row {
    /// Fields with tabs between them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, figure, reference, reference_figure, bar } = self;
        let (bar, kept) = match bar {
            Some((bar, kept)) => (bar.as_str(), if *kept { "kept" } else { "MISSED" }),
            None => ("", ""),
        };
        write!(f, "{what}\t{figure}\t{reference}\t{reference_figure}\t{bar}\t{kept}")
    }
}

/// Times of one kind.
pub(crate) struct Times(Vec<Duration>);

impl Times {
    pub(crate) fn new(mut times: Vec<Duration>) -> Self {
        assert!(!times.is_empty(), "nothing was measured");
        times.sort();
        Self(times)
    }

    /// So many of a hundred took no longer.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        self.0[(self.0.len() * percent).div_ceil(100).saturating_sub(1)]
    }

    pub(crate) fn longest(&self) -> Duration {
        self.percentile(100)
    }
}

/// Milliseconds, as the table shows them.
pub(crate) fn ms(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1000.0;
    if ms < 10.0 { format!("{ms:.2} ms") } else { format!("{ms:.1} ms") }
}

/// Median and p99.
pub(crate) fn median_and_p99(times: &Times) -> String {
    format!("{}, p99 {}", ms(times.percentile(50)), ms(times.percentile(99)))
}
