//! `etcd-guard completion`: a script by which a shell completes this program's words.

use clap::{Args, Command};
use clap_complete::{Shell, generate};

/// Print a shell's completion script: source <(etcd-guard completion bash)
#[derive(Debug, Args)]
pub(super) struct Completion {
    /// The shell
    shell: Shell,
}

// === impl Completion ===

impl Completion {
    pub(super) fn run(self, mut command: Command) {
        generate(self.shell, &mut command, "etcd-guard", &mut std::io::stdout());
    }
}
