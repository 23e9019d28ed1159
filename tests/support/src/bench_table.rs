//! Rows of the table that `scripts/bench` prints: each figure beside its reference, both measured in the same run.

use std::{ffi::OsString, fmt, fs::File, io::Write, time::Duration};

/// Names the file that rows are appended to. If the variable is not set or empty, rows are printed.
const FILE: &str = "BENCH_ROWS";

/// One line of the table.
pub struct Row {
    /// The measured quantity.
    pub quantity: String,
    /// The measured value with its unit.
    pub figure: String,
    /// The name of the reference.
    pub reference: String,
    /// The value of the reference in the same run.
    pub reference_figure: String,
    /// The promised bar, if there is one, and whether the figure meets it.
    pub bar: Option<(String, bool)>,
}

/// Whether a table collects the rows of this run.
pub fn is_requested() -> bool {
    file().is_some()
}

/// Returns the path of the table.
fn file() -> Option<OsString> {
    std::env::var_os(FILE).filter(|path| !path.is_empty())
}

/// Appends rows to the table.
pub fn append(rows: &[Row]) {
    let text: Vec<String> = rows.iter().map(Row::to_string).collect();
    let text = text.join("\n") + "\n";
    match file() {
        Some(file) => {
            let mut file = File::options().append(true).create(true).open(file).expect("the table");
            file.write_all(text.as_bytes()).expect("the table");
        }
        None => print!("{text}"),
    }
}

impl fmt::Display for Row {
    /// Tab-separated fields.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quantity, figure, reference, reference_figure, bar } = self;
        let (bar, kept) = match bar {
            Some((bar, kept)) => (bar.as_str(), if *kept { "kept" } else { "MISSED" }),
            None => ("", ""),
        };
        write!(f, "{quantity}\t{figure}\t{reference}\t{reference_figure}\t{bar}\t{kept}")
    }
}

/// Measured times of one kind, sorted.
#[derive(Clone, Debug)]
pub struct Times(Vec<Duration>);

impl Times {
    /// Sorts the times.
    pub fn new(mut times: Vec<Duration>) -> Self {
        assert!(!times.is_empty(), "nothing was measured");
        times.sort();
        Self(times)
    }

    /// Returns the time that this percentage of all times does not exceed.
    pub fn percentile(&self, percent: usize) -> Duration {
        self.0[(self.0.len() * percent).div_ceil(100).saturating_sub(1)]
    }

    /// Returns all times in ascending order.
    pub fn sorted(&self) -> &[Duration] {
        &self.0
    }

    /// Returns the longest time.
    pub fn longest(&self) -> Duration {
        self.percentile(100)
    }
}

/// Formats a time in milliseconds for the table.
pub fn ms(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1000.0;
    if ms < 10.0 { format!("{ms:.2} ms") } else { format!("{ms:.1} ms") }
}

/// Formats the median and the 99th percentile.
pub fn median_and_p99(times: &Times) -> String {
    format!("{}, p99 {}", ms(times.percentile(50)), ms(times.percentile(99)))
}
