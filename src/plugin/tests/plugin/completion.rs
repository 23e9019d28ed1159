//! The completion scripts in real shells.

use std::{
    fs,
    os::unix::fs::symlink,
    process::{Command, Output},
};

use tempfile::TempDir;

use test_support::{
    processes::testbed::program,
    project::{self, plugin_program},
};

fn output(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// Returns a folder with the script of a shell as the file `script`.
fn script_of(shell: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let script = output(Command::new(plugin_program()).args(["completion", shell]));
    assert!(script.contains("kubectl-etcd_guard") && script.contains("conformance"), "{script}");
    fs::write(folder.path().join("script"), script).unwrap();
    folder
}

#[test]
fn completion_scripts_have_valid_syntax() {
    for (shell, read_only) in [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")] {
        let folder = script_of(shell);
        let path = if shell == "bash" { shell.into() } else { program(shell) };
        output(Command::new(path).arg(read_only).arg(folder.path().join("script")));
    }
}

/// Returns the completions of bash for the last of these words.
fn offered_by_bash(folder: &TempDir, words: &[&str]) -> Vec<String> {
    let complete = "source ./script
        completer=$(complete -p kubectl-etcd_guard) completer=${completer#*-F } completer=${completer%% *}
        COMP_WORDS=(\"$@\") COMP_CWORD=$(($# - 1))
        \"$completer\" kubectl-etcd_guard \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"
        printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["--noprofile", "--norc", "-c", complete, "bash", "kubectl-etcd_guard"]).args(words);
    output(bash.current_dir(folder.path())).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_flags_and_values() {
    let folder = script_of("bash");
    assert_eq!(offered_by_bash(&folder, &["che"]), ["check"]);
    assert_eq!(offered_by_bash(&folder, &["check", "--ca"]), ["--cascade"]);
    let cascades = offered_by_bash(&folder, &["check", "--cascade", ""]);
    assert_eq!(cascades, ["background", "foreground", "orphan"]);
    let flags = offered_by_bash(&folder, &["status", "--"]);
    assert!(flags.contains(&String::from("--watch")), "{flags:?}");
}

/// Returns the completions of kubectl's bash script for the last word of `kubectl etcd-guard WORD...`, with the program and
/// the packed script on PATH.
fn offered_by_kubectl(folder: &TempDir, words: &[&str]) -> Vec<String> {
    // The script uses a function of the package bash-completion, if it exists.
    let complete =
        "_init_completion() { words=(\"${COMP_WORDS[@]}\") cword=$COMP_CWORD cur=${COMP_WORDS[COMP_CWORD]}; }
        source ./script
        COMP_WORDS=(kubectl \"$@\") COMP_CWORD=$# COMP_TYPE=9
        COMP_LINE=${COMP_WORDS[*]} COMP_POINT=${#COMP_LINE}
        __start_kubectl
        printf '%s\\n' \"${COMPREPLY[@]}\"";
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let mut bash = Command::new("bash");
    bash.args(["--noprofile", "--norc", "-c", complete, "bash", "etcd-guard"]).args(words);
    output(bash.current_dir(folder.path()).env("PATH", path))
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect()
}

#[test]
fn kubectl_completes_words_of_the_plugin() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let script = output(Command::new(program("kubectl")).args(["completion", "bash"]));
    fs::write(path("script"), script).unwrap();
    symlink(program("kubectl"), path("kubectl")).unwrap();
    symlink(plugin_program(), path("kubectl-etcd_guard")).unwrap();
    let completer = project::path("scripts/lib/kubectl_complete-etcd_guard");
    symlink(completer, path("kubectl_complete-etcd_guard")).unwrap();
    assert_eq!(offered_by_kubectl(&folder, &["che"]), ["check"]);
    assert_eq!(offered_by_kubectl(&folder, &["check", "--casc"]), ["--cascade"]);
    let formats = offered_by_kubectl(&folder, &["status", "-o", ""]);
    let names: Vec<&str> = formats.iter().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(names, ["table", "wide", "name", "json", "yaml"], "{formats:?}");
    fs::write(path("cluster.yaml"), "").unwrap();
    assert_eq!(offered_by_kubectl(&folder, &["inspect", "--file", "clus"]), ["cluster.yaml"]);
    assert_eq!(offered_by_kubectl(&folder, &["__comp"]), [""; 1], "the command is hidden");
}

#[test]
fn fish_completes_commands_with_descriptions() {
    let folder = script_of("fish");
    let complete = "source ./script; complete --do-complete 'kubectl-etcd_guard che'";
    let mut fish = Command::new(program("fish"));
    let offered = output(fish.args(["--no-config", "-c", complete]).current_dir(folder.path()));
    assert_eq!(offered.trim_end(), "check\tPreview the verdict on the deletion of pods, with the reason");
}
