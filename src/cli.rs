//! The command line: one file per subcommand, and what all of them share.

mod asked;
mod check;
mod client;
mod completion;
mod config;
mod conformance;
mod inject;
mod input;
mod logging;
mod lxcfs_label;
mod reach;
mod serve;
mod status;
mod style;
mod tls;
mod unregister;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Keeps Kubernetes from deleting an etcd leader or breaking an etcd quorum.
#[derive(Debug, Parser)]
#[command(name = "etcd-guard", version)]
struct Arguments {
    #[command(flatten)]
    logging: logging::Logging,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    // Boxed: it has many more flags than the others.
    Serve(Box<serve::Serve>),
    Check(Box<check::Check>),
    Status(status::Status),
    Conformance(Box<conformance::Conformance>),
    Inject(inject::Inject),
    Config(config::ConfigCommand),
    LxcfsLabel(lxcfs_label::LxcfsLabel),
    Unregister(unregister::Unregister),
    Completion(completion::Completion),
}

/// By this name kubectl finds the program as its plugin.
const PLUGIN: &str = "kubectl-etcd_guard";

/// The exit status of who asked whether something is so: it is not.
const NO: u8 = 1;

/// The same: that could not be told.
const UNKNOWN: u8 = 2;

/// Runs what the command line asks for. Exit status 1 after an error, 2 after a wrong command line; who asks a question has
/// 1 for a no, and 2 without an answer.
#[must_use]
pub fn main() -> ExitCode {
    let command = command();
    let Arguments { logging, command } = match Arguments::from_arg_matches(&command.get_matches()) {
        Ok(arguments) => arguments,
        Err(error) => error.exit(),
    };
    // It logs from when it knows whether somebody collects its spans.
    if !matches!(command, Command::Serve(_)) {
        logging.start(None);
    }
    let result = match command {
        Command::Serve(serve) => serve.run(&logging),
        Command::Check(check) => return answered(check.run()),
        Command::Status(status) => status.run(),
        Command::Conformance(conformance) => return answered(conformance.run()),
        Command::Inject(inject) => inject.run(),
        Command::Config(config) => config.run(),
        Command::LxcfsLabel(label) => label.run(),
        Command::Unregister(unregister) => unregister.run(),
        Command::Completion(completion) => completion.run(self::command()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn answered(answer: anyhow::Result<bool>) -> ExitCode {
    match answer {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(NO),
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::from(UNKNOWN)
        }
    }
}

/// The command line, under the name that its user typed.
fn command() -> clap::Command {
    let command = Arguments::command();
    let own = std::env::args_os().next();
    let is_plugin =
        own.is_some_and(|it| std::path::Path::new(&it).file_stem().is_some_and(|it| it == PLUGIN));
    if is_plugin { command.bin_name("kubectl etcd-guard") } else { command }
}
