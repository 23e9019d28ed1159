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
#[cfg(test)]
mod reference;
pub(crate) mod status;

use std::{fmt::Write, process::ExitCode};

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use self::guard_flags::GuardFlags;
use etcd_guard_cli::{
    logging::Logging,
    printing::{is_output_closed, print_error},
    terminal::{EMPHASIS, paint},
};

/// Exit status after a negative answer.
const EXIT_NEGATIVE: u8 = 1;

/// Exit status without an answer. clap uses the same one for an invalid command line.
const EXIT_UNKNOWN: u8 = 2;

/// Exit status after the reader of the output has gone: that of a program that SIGPIPE ends, as it ends kubectl.
const EXIT_OUTPUT_CLOSED: u8 = 141;

/// The exit status of all commands, for their help.
const EXIT_STATUS: &str = "\
Exit status of all commands:
  0  the answer is yes: allowed, valid, found, done
  1  the answer is no: denied, not valid, not found, a check failed
  2  there is no answer: wrong usage, no connection, a missing permission

Flags may also precede the command: kubectl etcd-guard -n prod status";

/// The commands in the help, by what you want to do.
const GROUPS: [(&str, &[&str]); 3] = [
    ("Inspect", &["status", "check", "inspect"]),
    ("Maintain", &["move-leader", "restart", "defrag", "replace", "backup", "restore"]),
    ("Install", &["doctor", "conformance", "config", "inject", "version", "completion"]),
];

/// The heading of the flags that most commands have, below the flags of the command itself.
const COMMON_OPTIONS: &str = "Common options";

/// What --namespace selects where it is not the namespace of the objects on the command line.
const NAMESPACES: [(&str, &str); 3] = [
    ("conformance", "The namespace to create and to delete; by default etcd-guard-conformance-RANDOM"),
    (
        "doctor",
        "The namespace of the dry run; by default the first guarded one. For the guard: --guard-namespace",
    ),
    (
        "inspect",
        "The namespace; by default that of the context, and with --file that of the object in the file",
    ),
];

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
    Defrag(Box<maintenance::defrag::Defrag>),
    Backup(Box<maintenance::backup::Backup>),
    Replace(Box<maintenance::replace::Replace>),
    Restore(Box<maintenance::restore::Restore>),
    Inject(inject::Inject),
    Inspect(Box<inspect::Inspect>),
    Config(config::ConfigCommand),
    Completion(completion::Completion),
    #[command(name = "__complete", hide = true)]
    Complete(completion::plugin::Complete),
    Version(doctor::version::Version),
}

/// Runs a command for people.
pub fn main() -> ExitCode {
    let matches = command().get_matches();
    let arguments = Arguments::from_arg_matches(&matches);
    let Arguments { logging, command } = arguments.unwrap_or_else(|error| error.exit());
    logging.start(None);
    exit_code(command.run())
}

/// Returns the command line.
fn command() -> clap::Command {
    let mut command = Arguments::command();
    let flags = GuardFlags::augment_args(clap::Command::new("flags"));
    let common: Vec<&clap::Arg> = flags.get_arguments().collect();
    let is_common = |flag: &clap::Arg| common.iter().any(|other| other.get_id() == flag.get_id());
    command = command.mut_subcommands(|command| {
        command.mut_args(|flag| if is_common(&flag) { flag.help_heading(COMMON_OPTIONS) } else { flag })
    });
    // The flags of the log are last.
    command = command.mut_args(|flag| flag.help_heading(COMMON_OPTIONS).display_order(common.len()));
    // Flags may precede the command, as in kubectl. Each command that uses a flag declares and documents it itself.
    for flag in common {
        command = command.arg(flag.clone().global(true).hide(true));
    }
    for (name, help) in NAMESPACES {
        command =
            command.mut_subcommand(name, |command| command.mut_arg("namespace", |flag| flag.help(help)));
    }
    command =
        command.mut_subcommand("version", |command| command.mut_arg("namespace", |flag| flag.hide(true)));
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}{}\n{{options}}{{after-help}}",
        groups(&command),
        paint(EMPHASIS, "Options:")
    );
    command.help_template(template).after_help(EXIT_STATUS)
}

/// Returns the commands of each group, with their descriptions.
fn groups(command: &clap::Command) -> String {
    let mut text = String::new();
    for (title, names) in GROUPS {
        let _ = writeln!(text, "{}", paint(EMPHASIS, &format!("{title}:")));
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            // Computed here, because a format width would count the color codes.
            let pad = GROUP_WIDTH.saturating_sub(name.len());
            let _ = writeln!(text, "  {}{:pad$}  {about}", paint(EMPHASIS, name), "");
        }
        text.push('\n');
    }
    text
}

/// The length of the longest name of a command.
const GROUP_WIDTH: usize = "conformance".len();

// === impl PluginCommand ===

impl PluginCommand {
    /// Runs the command. Returns whether its answer is positive.
    fn run(self) -> anyhow::Result<bool> {
        match self {
            Self::Check(check) => check.run(),
            Self::Status(status) => status.run(),
            Self::Conformance(conformance) => conformance.run(),
            Self::Doctor(doctor) => doctor.run(),
            Self::Restart(restart) => restart.run(),
            Self::MoveLeader(request) => request.run(),
            Self::Defrag(request) => request.run(),
            Self::Backup(backup) => backup.run(),
            Self::Replace(request) => request.run(),
            Self::Restore(restore) => restore.run(),
            Self::Inspect(inspect) => inspect.run(),
            Self::Inject(inject) => inject.run(),
            Self::Config(config) => config.run(),
            Self::Completion(completion) => completion.run(command()),
            Self::Complete(complete) => complete.run(command()),
            Self::Version(version) => version.run(),
        }
    }
}

/// Returns the exit status for the answer of a command.
fn exit_code(answer: anyhow::Result<bool>) -> ExitCode {
    match answer {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(EXIT_NEGATIVE),
        Err(error) if is_output_closed(&error) => ExitCode::from(EXIT_OUTPUT_CLOSED),
        Err(error) => {
            print_error(&error);
            ExitCode::from(EXIT_UNKNOWN)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<PluginCommand, clap::Error> {
        let matches = command().try_get_matches_from([&["kubectl-etcd_guard"], words].concat())?;
        Arguments::from_arg_matches(&matches).map(|arguments| arguments.command)
    }

    #[test]
    fn command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn flags_may_precede_the_command() {
        let before =
            ["-n", "prod", "--context", "x", "--as", "alice", "--guard-namespace", "ops", "status", "-A"];
        let after =
            ["status", "-A", "-n", "prod", "--context", "x", "--as", "alice", "--guard-namespace", "ops"];
        let [before, after] = [before, after].map(|words| format!("{:?}", parse(&words).unwrap()));
        assert!(before.contains("Some(\"prod\")") && before.contains("\"ops\""), "{before}");
        assert_eq!(before, after);
        let nearest = format!("{:?}", parse(&["-n", "a", "status", "-n", "b"]).unwrap());
        assert!(nearest.contains("Some(\"b\")"), "{nearest}");
        parse(&["-n", "prod", "inject", "-f", "pod.yaml"]).unwrap();
        parse(&["--kubeconfig", "k", "config", "check", "file", "--server"]).unwrap();
    }

    #[test]
    fn every_visible_command_is_in_one_group_and_has_examples() {
        let command = command();
        let visible: Vec<_> = command.get_subcommands().filter(|command| !command.is_hide_set()).collect();
        let mut names: Vec<&str> = visible.iter().map(|command| command.get_name()).collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        names.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(names, grouped);
        for command in visible {
            let nested: Vec<_> = command.get_subcommands().collect();
            for command in if nested.is_empty() { vec![command] } else { nested } {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.starts_with("Examples:\n"), "{}", command.get_name());
            }
        }
    }

    #[test]
    fn own_flags_precede_the_common_ones() {
        let mut command = command();
        let help = command.find_subcommand_mut("status").unwrap().render_help().to_string();
        let place = |text: &str| help.find(text).unwrap_or_else(|| panic!("{text}: {help}"));
        assert!(place("--exit-code") < place("Common options:"), "{help}");
        assert!(place("Common options:") < place("--kubeconfig"), "{help}");
    }

    #[test]
    fn every_answer_can_be_json() {
        let command = command();
        // A script for shells, and a JSON schema, which is a JSON document already.
        let others = ["completion", "schema"];
        for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            let nested: Vec<_> = command.get_subcommands().collect();
            for command in if nested.is_empty() { vec![command] } else { nested } {
                let mut arguments = command.get_arguments();
                let output = arguments.find(|argument| argument.get_id() == "output");
                let formats = output.map(clap::Arg::get_possible_values).unwrap_or_default();
                let has_json = formats.iter().any(|format| format.get_name() == "json");
                assert_ne!(has_json, others.contains(&command.get_name()), "{}", command.get_name());
                assert!(!has_json || output.and_then(clap::Arg::get_short) == Some('o'));
            }
        }
    }

    /// The examples of the help are complete command lines that the parser accepts.
    #[test]
    fn examples_are_valid() {
        let command = command();
        let all = command
            .get_subcommands()
            .flat_map(|command| std::iter::once(command).chain(command.get_subcommands()));
        let mut count = 0;
        for line in all
            .filter_map(|command| Some(format!("{}\n", command.get_after_help()?)))
            .collect::<String>()
            .lines()
        {
            for part in line.split('|').filter_map(|part| part.trim().strip_prefix("kubectl etcd-guard ")) {
                let words: Vec<&str> = part.split(" > ").next().unwrap().split_whitespace().collect();
                parse(&words).unwrap_or_else(|error| panic!("{part}: {error}"));
                count += 1;
            }
        }
        assert!(count > 20, "{count}");
    }
}
