//! The command line for people: the kubectl plugin `kubectl-etcd_guard`.

pub(crate) mod check;
pub(crate) mod completion;
pub(crate) mod config;
pub(crate) mod conformance;
pub(crate) mod doctor;
pub(crate) mod guard_flags;
pub(crate) mod inject;
pub(crate) mod inspect;
pub(crate) mod maintenance;
pub(crate) mod status;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use etcd_guard_cli::{logging::Logging, printing::print_error};

/// Exit status of `check`, `status`, `inspect`, `conformance`, `doctor`, `restart` and `move-leader` after a negative result.
const EXIT_NEGATIVE: u8 = 1;

/// Exit status of these commands without a result.
const EXIT_UNKNOWN: u8 = 2;

/// Protects the leader and the quorum of etcd clusters on Kubernetes
#[derive(Debug, Parser)]
#[command(name = "kubectl-etcd_guard", bin_name = "kubectl etcd-guard", version)]
struct Arguments {
    #[command(flatten)]
    logging: Logging,
    #[command(subcommand)]
    command: PluginCommand,
}

/// The commands that people run, with their own permissions.
#[derive(Debug, Subcommand)]
enum PluginCommand {
    Check(Box<check::Check>),
    Status(Box<status::Status>),
    Conformance(Box<conformance::Conformance>),
    Doctor(Box<doctor::Doctor>),
    Restart(Box<maintenance::restart::Restart>),
    MoveLeader(Box<maintenance::move_leader::MoveLeader>),
    Inject(inject::Inject),
    Inspect(Box<inspect::Inspect>),
    Config(config::ConfigCommand),
    Completion(completion::Completion),
    #[command(name = "__complete", hide = true)]
    Complete(completion::plugin::Complete),
    Version(doctor::version::Version),
}

/// Runs a command for people.
///
/// The exit status is 1 after an error and 2 after an invalid command line. The commands of `EXIT_NEGATIVE` exit with 1 after a
/// negative result and with 2 if they have no result.
#[must_use]
pub fn main() -> ExitCode {
    let Arguments { logging, command } = Arguments::parse();
    command.run(&logging, Arguments::command)
}

// === impl PluginCommand ===

impl PluginCommand {
    /// Runs the command. `parser` is the command line, which is completed.
    fn run(self, logging: &Logging, parser: impl FnOnce() -> clap::Command) -> ExitCode {
        logging.start(None);
        let result = match self {
            Self::Check(check) => return exit_code(check.run()),
            Self::Status(status) => return exit_code(status.run()),
            Self::Conformance(conformance) => return exit_code(conformance.run()),
            Self::Doctor(doctor) => return exit_code(doctor.run()),
            Self::Restart(restart) => return exit_code(restart.run()),
            Self::MoveLeader(request) => return exit_code(request.run()),
            Self::Inspect(inspect) => return exit_code(inspect.run()),
            Self::Inject(inject) => inject.run(),
            Self::Config(config) => config.run(),
            Self::Completion(completion) => completion.run(parser()),
            Self::Complete(complete) => complete.run(parser()),
            Self::Version(version) => version.run(),
        };
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                print_error(&error);
                ExitCode::FAILURE
            }
        }
    }
}

/// Returns the exit status of a command with a positive or negative result.
fn exit_code(result: anyhow::Result<bool>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(EXIT_NEGATIVE),
        Err(error) => {
            print_error(&error);
            ExitCode::from(EXIT_UNKNOWN)
        }
    }
}
