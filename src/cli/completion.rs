//! `etcd-guard completion`: a script by which a shell completes this program's words.

use std::io::Write;

use clap::{Args, Command};
use clap_complete::{Shell, generate};

/// The program's name where it is typed.
const NAME: &str = "etcd-guard";

/// By this `clap_complete` 4.6 names the program in one half of bash's script, and otherwise in the other, so that nothing was
/// completed behind a subcommand: <https://github.com/clap-rs/clap/issues/6421>.
const MISSPELT: &str = "etcd__subcmd__guard";

/// As in the other half.
const SPELT: &str = "etcd__guard";

/// Print a shell's completion script: source <(etcd-guard completion bash)
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
        let script = String::from_utf8(script)?.replace(MISSPELT, SPELT);
        Ok(std::io::stdout().write_all(script.as_bytes())?)
    }
}
