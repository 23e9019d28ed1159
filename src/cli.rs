//! The command line. Each subcommand has its own module. [`server_cli`] has the commands of the server, and [`plugin_cli`] those
//! for people.

mod access;
mod certificates;
mod check;
mod completion;
mod config;
mod conformance;
mod doctor;
mod guard_flags;
mod inject;
mod inspect;
mod kube_client;
mod logging;
mod maintenance;
#[cfg(test)]
#[path = "outputs/cli.rs"]
pub(crate) mod outputs;
pub mod plugin_cli;
mod printing;
mod serve;
pub mod server_cli;
mod status;

use std::{env, path::Path, process::ExitCode};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use self::{plugin_cli::PluginCommand, server_cli::ServerCommand};

/// Protects the leader and the quorum of etcd clusters on Kubernetes
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
    #[command(flatten)]
    Server(ServerCommand),
    #[command(flatten)]
    Plugin(PluginCommand),
}

/// The name under which kubectl finds the program as a plugin.
const PLUGIN: &str = "kubectl-etcd_guard";

/// Runs the command of the command line: one of the server, or one for people.
#[must_use]
pub fn main() -> ExitCode {
    let Arguments { logging, command } = match Arguments::from_arg_matches(&command().get_matches()) {
        Ok(arguments) => arguments,
        Err(error) => error.exit(),
    };
    match command {
        Command::Server(command) => command.run(&logging),
        Command::Plugin(command) => command.run(&logging, self::command),
    }
}

/// Returns the command line parser, under the name by which the program was started.
fn command() -> clap::Command {
    let command = Arguments::command();
    let program = env::args_os().next();
    let is_plugin =
        program.is_some_and(|path| Path::new(&path).file_stem().is_some_and(|name| name == PLUGIN));
    if is_plugin { command.bin_name("kubectl etcd-guard") } else { command }
}
