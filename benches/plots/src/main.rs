//! Draws figures: `etcd-guard-plots DATA FOLDER` reads each file `NAME.json` of the folder DATA, and writes `FOLDER/NAME.svg`.
//!
//! `tests/support/src/plot_data.rs` writes the files, and describes the kinds of figures.

mod chart;

use std::{env, fs, path::Path};

use anyhow::{Context as _, bail};
use serde::Deserialize;

/// The measured values of a figure.
#[derive(Debug, Deserialize)]
struct Figure {
    kind: Kind,
    title: String,
    x: String,
    y: String,
    series: Vec<Series>,
}

/// The form of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    /// The share of values up to each value, on a logarithmic axis. The points have no second coordinate.
    Distribution,
    /// Points that lines connect, on logarithmic axes.
    Sizes,
    /// The values of each series beside each other. The points have no second coordinate.
    Strips,
    /// Points, on linear axes.
    Points,
}

#[derive(Debug, Deserialize)]
struct Series {
    name: String,
    points: Vec<(f64, f64)>,
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [data, folder] = arguments.as_slice() else { bail!("usage: etcd-guard-plots DATA FOLDER") };
    fs::create_dir_all(folder).with_context(|| format!("cannot create {folder}"))?;
    let mut drawn = 0;
    for entry in fs::read_dir(data).with_context(|| format!("cannot read {data}"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let file = Path::new(folder).join(path.with_extension("svg").file_name().unwrap_or_default());
            draw(&path, &file).with_context(|| format!("cannot draw {}", path.display()))?;
            println!("{}", file.display());
            drawn += 1;
        }
    }
    if drawn == 0 {
        bail!("{data} contains no figure");
    }
    Ok(())
}

fn draw(data: &Path, file: &Path) -> anyhow::Result<()> {
    let figure: Figure = serde_json::from_slice(&fs::read(data)?)?;
    fs::write(file, chart::svg(&figure)?)?;
    Ok(())
}
