//! The command line. Each subcommand has its own module.

mod certificates;
mod check;
mod completion;
mod config;
mod conformance;
mod doctor;
mod inject;
mod inspect;
mod kube_client;
mod logging;
mod maintenance;
#[cfg(test)]
#[path = "outputs/cli.rs"]
pub(crate) mod outputs;
mod printing;
mod serve;
mod status;

use std::{env, path::Path, process::ExitCode};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

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
    // Boxed because of its size: this command has many more flags than the others.
    Serve(Box<serve::Serve>),
    Certificates(certificates::Certificates),
    Check(Box<check::Check>),
    Status(Box<status::Status>),
    Conformance(Box<conformance::Conformance>),
    Doctor(Box<doctor::Doctor>),
    Restart(Box<maintenance::restart::Restart>),
    MoveLeader(Box<maintenance::move_leader::MoveLeader>),
    Drain(Box<maintenance::drain::Drain>),
    Inject(inject::Inject),
    Inspect(Box<inspect::Inspect>),
    Config(config::ConfigCommand),
    LxcfsLabel(serve::lxcfs_label::LxcfsLabel),
    Unregister(certificates::unregister::Unregister),
    Completion(completion::Completion),
    #[command(name = "__complete", hide = true)]
    Complete(completion::plugin::Complete),
    Version(doctor::version::Version),
}

/// The name under which kubectl finds the program as a plugin.
const PLUGIN: &str = "kubectl-etcd_guard";

/// Exit status of `check`, `status`, `inspect`, `conformance`, `doctor`, `restart`, `move-leader` and `drain` after a negative result.
const EXIT_NEGATIVE: u8 = 1;

/// Exit status of these commands without a result.
const EXIT_UNKNOWN: u8 = 2;

/// Runs the command of the command line.
///
/// The exit status is 1 after an error and 2 after an invalid command line. The commands of `EXIT_NEGATIVE` exit with 1 after a
/// negative result and with 2 if they have no result.
#[must_use]
pub fn main() -> ExitCode {
    let command = command();
    let Arguments { logging, command } = match Arguments::from_arg_matches(&command.get_matches()) {
        Ok(arguments) => arguments,
        Err(error) => error.exit(),
    };
    // `serve` starts logging itself, because its flags decide about the export of spans.
    if !matches!(command, Command::Serve(_)) {
        logging.start(None);
    }
    // Their output is a log.
    let is_service = matches!(command, Command::Serve(_) | Command::Certificates(_) | Command::LxcfsLabel(_));
    let result = match command {
        Command::Serve(serve) => serve.run(&logging),
        Command::Certificates(certificates) => certificates.run(),
        Command::Check(check) => return exit_code(check.run()),
        Command::Status(status) => return exit_code(status.run()),
        Command::Conformance(conformance) => return exit_code(conformance.run()),
        Command::Doctor(doctor) => return exit_code(doctor.run()),
        Command::Restart(restart) => return exit_code(restart.run()),
        Command::MoveLeader(request) => return exit_code(request.run()),
        Command::Drain(drain) => return exit_code(drain.run()),
        Command::Inject(inject) => inject.run(),
        Command::Inspect(inspect) => return exit_code(inspect.run()),
        Command::Config(config) => config.run(),
        Command::LxcfsLabel(label) => label.run(),
        Command::Unregister(unregister) => unregister.run(),
        Command::Completion(completion) => completion.run(self::command()),
        Command::Complete(complete) => complete.run(self::command()),
        Command::Version(version) => version.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if is_service {
                tracing::error!("{error:#}");
            } else {
                printing::print_error(&error);
            }
            ExitCode::FAILURE
        }
    }
}

/// Returns the exit status of a command with a positive or negative result.
fn exit_code(result: anyhow::Result<bool>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(EXIT_NEGATIVE),
        Err(error) => {
            printing::print_error(&error);
            ExitCode::from(EXIT_UNKNOWN)
        }
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
