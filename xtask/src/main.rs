//! Development tasks that the scripts call: `scripts/lib/xtask.sh` builds this program and runs it.
//!
//! It depends on few crates and on nothing of the product, so that it builds in seconds and before protoc exists.

mod bench;
mod cache;
mod detach;
mod image;
mod licences;
mod log;
mod process;
mod programs;
mod progress;
mod testbed;

use std::{io::Write as _, process::ExitCode};

use clap::{Parser, Subcommand};

/// Development tasks of etcd-guard.
#[derive(Parser)]
#[command(name = "xtask", version)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Find, build or install the programs that tests need; prints NAME=PATH lines.
    Programs(programs::Options),
    /// Print the path of an image archive of given files, which is made once.
    Image(image::Options),
    /// Print the licences of all crates that the program contains.
    Licences(licences::Options),
    /// Run a testbed, and remove its processes, directory and cgroup at the end.
    Supervise(testbed::supervise::Options),
    /// Run a command as the first process of a PID namespace.
    Init(testbed::supervise::InitOptions),
    /// Start a program of a testbed as a child of its supervisor.
    Start(testbed::start::Options),
    /// Wait until an address accepts connections or a command succeeds.
    WaitUntil(testbed::wait::Options),
    /// Run a command and log its name and duration every 15 seconds.
    Progress(progress::Options),
    /// Run the demo in the background and return when it is complete.
    Detach(detach::Options),
    /// Print the AdmissionReview of a pod that `scripts/bench mutate` and `scripts/compare` send.
    MutateReview(bench::review::Options),
    /// Print the table of `scripts/bench mutate` from its measurements.
    MutateReport(bench::mutate::Options),
    /// Print the table of `scripts/bench idle` from its measurements.
    IdleReport(bench::idle::Options),
    /// Print the tables of `scripts/compare` from its measurements.
    CompareReport(bench::compare::Options),
    /// Print the table of all parts of `scripts/bench`; fails if a target is missed.
    BenchTable(bench::table::Options),
    #[command(hide = true)]
    Launch(process::Launch),
    #[command(hide = true)]
    Reap(testbed::reap::Options),
}

fn run(task: Task) -> anyhow::Result<ExitCode> {
    match task {
        Task::Programs(options) => options.run()?,
        Task::Image(options) => options.run()?,
        Task::Licences(options) => options.run()?,
        Task::Supervise(options) => return options.run().map(ExitCode::from),
        Task::Init(options) => return options.run().map(ExitCode::from),
        Task::Start(options) => options.run()?,
        Task::WaitUntil(options) => options.run()?,
        Task::Detach(options) => return options.run().map(ExitCode::from),
        Task::Progress(options) => return options.run().map(ExitCode::from),
        Task::MutateReview(options) => std::io::stdout().write_all(options.review().as_bytes())?,
        Task::MutateReport(options) => return options.run(),
        Task::IdleReport(options) => options.run()?,
        Task::CompareReport(options) => options.run()?,
        Task::BenchTable(options) => return options.run(),
        Task::Launch(options) => options.exec()?,
        Task::Reap(options) => options.run()?,
    }
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    run(Cli::parse().task).unwrap_or_else(|error| {
        log::error(format_args!("{error:#}"));
        ExitCode::FAILURE
    })
}
