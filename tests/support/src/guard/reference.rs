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
    /// The sum of the three, for each approval.
    pub all: Times,
}

impl Calls {
    /// Measures the calls of `count` approvals, one cluster after another. `urls` contains the URLs of the members of each
    /// cluster, in the order of `namespaces`. `pods` are the names of the pods of each cluster. `client_files` are the files of the
    /// certificate authority, the client certificate and its key, if the members require them.
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
        client_files: Option<&[PathBuf; 3]>,
    ) -> Self {
        let members = urls[0].len();
        assert!(urls.iter().all(|cluster| cluster.len() == members), "the clusters have the same size");
        let mut arguments =
            vec![kubeconfig.to_string_lossy().into_owned(), namespaces.join(","), pods.join(",")];
        if let Some(files) = client_files {
            arguments.push(String::from("--tls"));
            arguments.extend(files.iter().map(|file| file.to_string_lossy().into_owned()));
        }
        arguments.extend([String::from("--members"), members.to_string()]);
        let urls = urls.iter().flatten();
        arguments
            .extend(urls.map(|url| if client_files.is_some() { with_server_name(url) } else { url.clone() }));
        let lines = run("calls", count, &arguments);
        let calls: Vec<Vec<Duration>> =
            lines.iter().map(|line| line.split(' ').map(micros).collect()).collect();
        let column = |index: usize| Times::new(calls.iter().map(|call| call[index]).collect());
        let all = Times::new(calls.iter().map(|call| call.iter().sum()).collect());
        Self { reads: column(0), round: column(1), write: column(2), all }
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

/// Appends the server name, which is the address in the URL, in the format of the reference program.
fn with_server_name(url: &str) -> String {
    let (_, authority) = url.split_once("://").expect("a URL");
    let (address, _) = authority.rsplit_once(':').expect("a port");
    format!("{url},{address}")
}

fn micros(text: &str) -> Duration {
    Duration::from_micros(text.parse().expect("microseconds"))
}
