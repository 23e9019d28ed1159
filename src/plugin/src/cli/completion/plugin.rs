//! Completion of the kubectl plugin. kubectl runs `kubectl_complete-etcd_guard WORD...`, which calls this command, and
//! expects the response of a program with the cobra library: a candidate per line, with its description after a tab, and
//! `:DIRECTIVE` as the last line.

use std::{
    env,
    ffi::OsString,
    io::{self, Write},
};

use clap::Args;
use clap_complete::engine::{CompletionCandidate, complete};

use super::NAME;
use etcd_guard_cli::printing::stdout;
use etcd_guard_core::escape::{MAX_TEXT_CHARS, to_bounded_line};

/// The shell adds no space after the candidate.
const NO_SPACE: u8 = 2;

/// The shell does not complete names of files itself.
const NO_FILES: u8 = 4;

/// Complete a word for kubectl
#[derive(Debug, Args)]
pub(crate) struct Complete {
    /// The words after the name of the plugin; the last one is completed, and can be empty
    #[arg(last = true)]
    words: Vec<OsString>,
}

// === impl Complete ===

impl Complete {
    pub(crate) fn run(self, mut command: clap::Command) -> anyhow::Result<bool> {
        let words: Vec<OsString> = std::iter::once(OsString::from(NAME)).chain(self.words).collect();
        // Without any word, the first one is completed.
        let index = words.len().saturating_sub(1).max(1);
        let folder = env::current_dir().ok();
        let candidates = complete(&mut command, words, index, folder.as_deref())?;
        write_candidates(&candidates, &mut stdout())?;
        Ok(true)
    }
}

/// Writes the response. Names of files can contain any character.
fn write_candidates(candidates: &[CompletionCandidate], out: &mut impl Write) -> io::Result<()> {
    let mut directive = NO_FILES;
    for candidate in candidates.iter().filter(|candidate| !candidate.is_hide_set()) {
        let value = to_bounded_line(&candidate.get_value().to_string_lossy(), MAX_TEXT_CHARS);
        if value.ends_with(['/', '=']) {
            directive |= NO_SPACE;
        }
        let help = candidate.get_help().map(ToString::to_string).unwrap_or_default();
        match help.lines().next() {
            Some(line) => writeln!(out, "{value}\t{}", to_bounded_line(line, MAX_TEXT_CHARS))?,
            None => writeln!(out, "{value}")?,
        }
    }
    writeln!(out, ":{directive}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_has_candidates_and_directive() {
        let written = |candidates: &[CompletionCandidate]| {
            let mut out = Vec::new();
            write_candidates(candidates, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let check = CompletionCandidate::new("check").help(Some("Preview a verdict\nmore".into()));
        let hidden = CompletionCandidate::new("__complete").hide(true);
        assert_eq!(written(&[check, hidden]), "check\tPreview a verdict\n:4\n");
        assert_eq!(written(&[CompletionCandidate::new("a\nb/")]), "a\\nb/\n:6\n");
        assert_eq!(written(&[]), ":4\n");
    }
}
