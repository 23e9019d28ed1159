//! `kubectl etcd-guard completion`: completion scripts for shells.

pub(crate) mod plugin;

use std::io::Write;

use clap::{Args, Command};
use clap_complete::{Shell, generate};

use etcd_guard_cli::printing::stdout;

/// The program's name on the command line.
const NAME: &str = "kubectl-etcd_guard";

/// Name of the program in one half of the bash script of `clap_complete` 4.6. It differs from the name in the other
/// half, so that the arguments of subcommands were not completed: <https://github.com/clap-rs/clap/issues/6421>.
const WRONG_NAME: &str = "kubectl__subcmd__etcd_guard";

/// Name of the program in the other half.
const CORRECT_NAME: &str = "kubectl__etcd_guard";

/// Print the completion script of a shell for kubectl-etcd_guard
///
/// kubectl completes the plugin through a second program, `kubectl_complete-etcd_guard`, which is part of the release archive.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  # For this bash
  source <(kubectl-etcd_guard completion bash)")]
pub(super) struct Completion {
    /// The shell
    shell: Shell,
}

// === impl Completion ===

impl Completion {
    pub(super) fn run(self, mut command: Command) -> anyhow::Result<bool> {
        let mut script = Vec::new();
        generate(self.shell, &mut command, NAME, &mut script);
        let script = String::from_utf8(script)?.replace(WRONG_NAME, CORRECT_NAME);
        stdout().write_all(script.as_bytes())?;
        Ok(true)
    }
}
