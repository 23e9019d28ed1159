//! The reference program (`tests/programs/src/bin/reference.rs`): the calls of an approval without the guard.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use crate::bench_table::{Times, ms};

/// The variable with the path of the program.
const PROGRAM: &str = "BENCH_REFERENCE";

/// Durations of the calls of an approval.
#[derive(Clone, Debug)]
pub struct Calls {
    /// Concurrent reads of the Lease and the pods.
    pub reads: Times,
    /// The probe round.
    pub round: Times,
    /// The write of the Lease.
    pub write: Times,
}

impl Calls {
    /// Measures the calls of `count` approvals, one cluster after another. `urls` contains the URLs of the members of each
    /// cluster, in the order of `namespaces`. `pods` are the names of the pods of each cluster.
    ///
    /// # Panics
    ///
    /// Panics if a call fails, or if the clusters differ in the number of their members.
    #[must_use]
    pub fn measure(
        count: usize,
        kubeconfig: &Path,
        namespaces: &[String],
        pods: &[String],
        urls: &[Vec<String>],
    ) -> Self {
        let members = urls[0].len();
        assert!(urls.iter().all(|cluster| cluster.len() == members), "the clusters have the same size");
        let size = [String::from("--members"), members.to_string()];
        let round = rounds(count, &[&size[..], &urls.concat()].concat());
        let arguments = [kubeconfig.to_string_lossy().into_owned(), namespaces.join(",")];
        let lines = run("calls", count, &[&arguments[..], pods].concat());
        let (reads, writes) = lines
            .iter()
            .map(|line| {
                let (reads, write) = line.split_once(' ').expect("two durations");
                (micros(reads), micros(write))
            })
            .unzip();
        Self { reads: Times::new(reads), round, write: Times::new(writes) }
    }

    /// Returns the sum of the medians.
    #[must_use]
    pub fn median(&self) -> Duration {
        [&self.reads, &self.round, &self.write].map(|times| times.percentile(50)).into_iter().sum()
    }

    /// Formats this percentile of each part.
    #[must_use]
    pub fn parts(&self, percent: usize) -> String {
        let [reads, round, write] =
            [&self.reads, &self.round, &self.write].map(|times| ms(times.percentile(percent)));
        format!("reads {reads}, round {round}, write {write}")
    }
}

/// Returns the path of the program.
///
/// # Panics
///
/// Panics if `BENCH_REFERENCE` is not set.
#[must_use]
pub fn program() -> PathBuf {
    std::env::var_os(PROGRAM).unwrap_or_else(|| panic!("{PROGRAM} is not set: scripts/bench sets it")).into()
}

/// Runs bare probe rounds: the same client with the same build settings, and no evaluation.
#[must_use]
pub fn rounds(count: usize, arguments: &[String]) -> Times {
    Times::new(run("rounds", count, arguments).iter().map(|line| micros(line)).collect())
}

/// Runs a mode of the program. Returns its lines.
fn run(mode: &str, count: usize, arguments: &[String]) -> Vec<String> {
    let output = Command::new(program())
        .args([mode, &count.to_string()])
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("the reference program starts");
    assert!(output.status.success(), "reference {mode}: {}", output.status);
    String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect()
}

fn micros(text: &str) -> Duration {
    Duration::from_micros(text.parse().expect("microseconds"))
}
