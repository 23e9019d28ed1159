//! The command line: one file per subcommand, and what all of them share.

mod client;
mod config;
mod inject;
mod input;
mod logging;
mod lxcfs_label;
mod serve;
mod tls;
mod unregister;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    Inject(inject::Inject),
    Config(config::ConfigCommand),
    LxcfsLabel(lxcfs_label::LxcfsLabel),
    Unregister(unregister::Unregister),
}

/// Runs what the command line asks for. Exit status 1 after an error, 2 after a wrong command line.
#[must_use]
pub fn main() -> ExitCode {
    let Arguments { logging, command } = Arguments::parse();
    logging.start();
    let result = match command {
        Command::Serve(serve) => serve.run(),
        Command::Inject(inject) => inject.run(),
        Command::Config(config) => config.run(),
        Command::LxcfsLabel(label) => label.run(),
        Command::Unregister(unregister) => unregister.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
