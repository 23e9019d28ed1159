//! `etcd-guard completion`: completion scripts for shells.

pub(crate) mod plugin;

use std::io::Write;

use clap::{Args, Command};
use clap_complete::{Shell, generate};

/// The program's name on the command line.
const NAME: &str = "etcd-guard";

/// Name of the program in one half of the bash script of `clap_complete` 4.6. It differs from the name in the other
/// half, so that the arguments of subcommands were not completed: <https://github.com/clap-rs/clap/issues/6421>.
const WRONG_NAME: &str = "etcd__subcmd__guard";

/// Name of the program in the other half.
const CORRECT_NAME: &str = "etcd__guard";

/// Print the completion script of a shell: source <(etcd-guard completion bash)
#[derive(Debug, Args)]
pub(super) struct Completion {
    /// The shell
    shell: Shell,
}

// === impl Completion ===

impl Completion {
    pub(super) fn run(self, mut command: Command) -> anyhow::Result<()> {
        let mut script = Vec::new();
        generate(self.shell, &mut command, NAME, &mut script);
        let script = String::from_utf8(script)?.replace(WRONG_NAME, CORRECT_NAME);
        Ok(std::io::stdout().write_all(script.as_bytes())?)
    }
}
