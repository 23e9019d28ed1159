//! Values for the figures that `benches/plots` draws: a file in JSON per figure, in the folder that the environment names.

use std::{env, fs, path::PathBuf, time::Duration};

use serde::Serialize;

use crate::bench_table::Times;

/// The environment variable with the folder.
const FOLDER: &str = "PLOT_DATA";

/// The values of a figure.
#[derive(Debug, Serialize)]
pub struct Figure {
    kind: Kind,
    title: String,
    x: String,
    y: String,
    series: Vec<Series>,
}

/// The form of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Distribution,
    Sizes,
    Strips,
    Points,
}

#[derive(Debug, Serialize)]
struct Series {
    name: String,
    points: Vec<(f64, f64)>,
}

// === impl Figure ===

impl Figure {
    /// Creates a cumulative distribution of times in milliseconds.
    pub fn distribution(title: &str) -> Self {
        Self::new(Kind::Distribution, title, "ms", "% of all values")
    }

    /// Creates a figure of values over sizes, such as a number of clusters.
    pub fn sizes(title: &str, x: &str, y: &str) -> Self {
        Self::new(Kind::Sizes, title, x, y)
    }

    /// Creates a figure with all times of each series beside each other, in milliseconds.
    pub fn strips(title: &str) -> Self {
        Self::new(Kind::Strips, title, "", "ms")
    }

    /// Creates a figure of points.
    pub fn points(title: &str, x: &str, y: &str) -> Self {
        Self::new(Kind::Points, title, x, y)
    }

    fn new(kind: Kind, title: &str, x: &str, y: &str) -> Self {
        let [title, x, y] = [title, x, y].map(str::to_owned);
        Self { kind, title, x, y, series: Vec::new() }
    }

    /// Adds a series of times.
    #[must_use]
    pub fn times(self, name: &str, times: &Times) -> Self {
        let points = times.sorted().iter().map(|time| (millis(*time), 0.0)).collect();
        self.series(name, points)
    }

    /// Adds a series of points.
    #[must_use]
    pub fn series(mut self, name: &str, points: Vec<(f64, f64)>) -> Self {
        self.series.push(Series { name: name.to_owned(), points });
        self
    }

    /// Writes the values, if the environment names a folder.
    pub fn write(&self, name: &str) {
        let Some(folder) = env::var_os(FOLDER).filter(|folder| !folder.is_empty()).map(PathBuf::from) else {
            return;
        };
        fs::create_dir_all(&folder).expect("the folder in PLOT_DATA is created");
        let text = serde_json::to_vec(self).expect("the values are JSON");
        fs::write(folder.join(format!("{name}.json")), text).expect("the values are written");
    }
}

/// Returns a time in milliseconds.
pub fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
