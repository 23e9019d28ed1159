//! The command line of the server: `etcd-guard`.

mod certificates;
mod kube_client;
#[cfg(test)]
mod reference;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use etcd_guard_cli::{logging::Logging, printing::print_error};

/// Protects the leader and the quorum of etcd clusters on Kubernetes
#[derive(Debug, Parser)]
#[command(name = "etcd-guard", version)]
struct Arguments {
    #[command(flatten)]
    logging: Logging,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Server(ServerCommand),
    /// Show the release of this program
    Version,
}

/// The commands of the server, which run in pods, and `unregister`.
#[derive(Debug, Subcommand)]
enum ServerCommand {
    // Boxed because of its size: this command has many more flags than the others.
    Serve(Box<serve::Serve>),
    Certificates(certificates::Certificates),
    LxcfsLabel(serve::lxcfs_label::LxcfsLabel),
    Unregister(certificates::unregister::Unregister),
}

/// Runs a command of the server. The exit status is 1 after an error and 2 after an invalid command line.
pub fn main() -> ExitCode {
    let Arguments { logging, command } = Arguments::parse();
    match command {
        Command::Server(command) => command.run(&logging),
        Command::Version => {
            println!("{}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
    }
}

// === impl ServerCommand ===

impl ServerCommand {
    fn run(self, logging: &Logging) -> ExitCode {
        // `serve` starts logging itself, because its flags decide about the export of spans.
        if !matches!(self, Self::Serve(_)) {
            logging.start(None);
        }
        // The output of the others is a log.
        let is_service = !matches!(self, Self::Unregister(_));
        let result = match self {
            Self::Serve(serve) => serve.run(logging),
            Self::Certificates(certificates) => certificates.run(),
            Self::LxcfsLabel(label) => label.run(),
            Self::Unregister(unregister) => unregister.run(),
        };
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                if is_service {
                    tracing::error!("{error:#}");
                } else {
                    print_error(&error);
                }
                ExitCode::FAILURE
            }
        }
    }
}
