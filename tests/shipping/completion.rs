//! What shells make of the completion scripts.

use std::{
    fs,
    process::{Command, Output},
};

use tempfile::TempDir;

use crate::support::testbed::program;

fn said(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// A folder with the script of a shell, `script` in it.
fn script_of(shell: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let script = said(Command::new(env!("CARGO_BIN_EXE_etcd-guard")).args(["completion", shell]));
    assert!(script.contains("etcd-guard") && script.contains("conformance"), "{script}");
    fs::write(folder.path().join("script"), script).unwrap();
    folder
}

#[test]
fn the_shells_themselves_can_read_their_scripts() {
    for (shell, read_only) in [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")] {
        let folder = script_of(shell);
        let path = if shell == "bash" { shell.into() } else { program(shell) };
        said(Command::new(path).arg(read_only).arg(folder.path().join("script")));
    }
}

/// What bash offers for the last of these words.
fn offered_by_bash(folder: &TempDir, words: &[&str]) -> Vec<String> {
    let complete = "source ./script
        completer=$(complete -p etcd-guard) completer=${completer#*-F } completer=${completer%% *}
        COMP_WORDS=(\"$@\") COMP_CWORD=$(($# - 1))
        \"$completer\" etcd-guard \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"
        printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["--noprofile", "--norc", "-c", complete, "bash", "etcd-guard"]).args(words);
    said(bash.current_dir(folder.path())).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_flags_and_their_values() {
    let folder = script_of("bash");
    assert_eq!(offered_by_bash(&folder, &["che"]), ["check"]);
    assert_eq!(offered_by_bash(&folder, &["check", "--ca"]), ["--cascade"]);
    let cascades = offered_by_bash(&folder, &["check", "--cascade", ""]);
    assert_eq!(cascades, ["background", "foreground", "orphan"]);
    let flags = offered_by_bash(&folder, &["status", "--"]);
    assert!(flags.contains(&String::from("--watch")), "{flags:?}");
}

#[test]
fn fish_completes_commands_with_what_they_are_for() {
    let folder = script_of("fish");
    let complete = "source ./script; complete --do-complete 'etcd-guard che'";
    let mut fish = Command::new(program("fish"));
    let offered = said(fish.args(["--no-config", "-c", complete]).current_dir(folder.path()));
    assert_eq!(offered.trim_end(), "check\tTell what the deletion of a pod would be answered, and why");
}
