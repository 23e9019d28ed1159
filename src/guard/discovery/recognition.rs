//! Recognises containers that run etcd by their command, arguments, image and environment variables.

use crate::k8s::pod::{Container, Pod};

/// etcd's default client port.
pub(in crate::guard) const DEFAULT_CLIENT_PORT: u16 = 2379;

/// etcd's default peer port.
const DEFAULT_PEER_PORT: u16 = 2380;

/// Environment variables that configure a member.
const MEMBER_VARIABLES: [&str; 2] = ["ETCD_INITIAL_ADVERTISE_PEER_URLS", "ETCD_LISTEN_PEER_URLS"];

/// Programs of etcd's image that are not etcd.
const TOOLS: [&str; 2] = ["etcdctl", "etcdutl"];

/// Commands of the etcd program that forward requests to members and run none. etcd compares only its first argument with
/// them (`server/etcdmain/main.go`).
const PROXY_COMMANDS: [&str; 2] = ["grpc-proxy", "gateway"];

/// Shells whose option `-c` is followed by a script.
const SHELLS: [&str; 4] = ["sh", "bash", "ash", "dash"];

/// Whether any part of a container mentions etcd. If no part does, [`runs_etcd`] and [`may_run_etcd`] are both false.
pub(in crate::guard) fn mentions_etcd<'a>(
    image: &str,
    parts: impl Iterator<Item = &'a str> + Clone,
    mut variables: impl Iterator<Item = &'a str>,
) -> bool {
    is_etcd_image(image)
        || variables.any(|name| MEMBER_VARIABLES.contains(&name))
        // Searching for `etcd` is cheaper than splitting the command, and most commands do not contain it.
        || (parts.clone().any(|part| part.contains("etcd")) && starts_etcd(&words(parts)))
}

/// Whether the container runs etcd: its command starts etcd, its environment configures a member, or its image is etcd's
/// and runs its default command. A container that runs one of etcd's tools or proxies runs no member, whatever its
/// environment contains.
pub(in crate::guard) fn runs_etcd(container: &Container) -> bool {
    let by_environment =
        container.env.iter().any(|variable| MEMBER_VARIABLES.contains(&variable.name.as_str()));
    let runs = starts_etcd(&command_words(container))
        || by_environment
        || (is_etcd_image(&container.image) && runs_default_command(container));
    runs && !runs_tool_or_proxy(container)
}

/// Whether the container certainly runs one of etcd's tools or proxies and nothing else, by the position of the words in
/// its command: `etcdctl ...`, `etcd grpc-proxy ...`, or one of them as the only command of a shell.
fn runs_tool_or_proxy(container: &Container) -> bool {
    let words: Vec<&str> = container.command.iter().chain(&container.args).map(String::as_str).collect();
    let words = match words.as_slice() {
        [shell, option, script, ..] if SHELLS.contains(&basename(shell)) && is_script_option(option) => {
            match only_command(script) {
                Some(words) => words,
                None => return false,
            }
        }
        _ => words,
    };
    let word = |at: usize| words.get(at).copied().unwrap_or_default();
    let is_proxy = |command: &str| PROXY_COMMANDS.contains(&command);
    // Without a command, the arguments can belong to the entrypoint of the image, which is etcd.
    let is_argument_of_etcd =
        container.command.is_empty() && is_etcd_image(&container.image) && is_proxy(word(0));
    TOOLS.contains(&basename(word(0)))
        || (basename(word(0)) == "etcd" && is_proxy(word(1)))
        || is_argument_of_etcd
}

/// Whether this option of a shell is followed by a script: `-c`, or `-ec` with further options.
fn is_script_option(option: &str) -> bool {
    option.starts_with('-') && !option.starts_with("--") && option.ends_with('c')
}

/// Returns the words of a script that consists of one command, or `None` if it can contain further commands.
fn only_command(script: &str) -> Option<Vec<&str>> {
    if script.trim().contains([';', '&', '|', '\n', '`', '(', ')', '<', '>', '"', '\'', '\\']) {
        return None;
    }
    let words: Vec<&str> = script.split_whitespace().collect();
    match words.as_slice() {
        ["exec", rest @ ..] => Some(rest.to_vec()),
        _ => Some(words),
    }
}

/// Whether the container runs the default program of its image. Arguments without a command belong to that program if they
/// start with a flag or with `etcd`; otherwise they can name another program.
fn runs_default_command(container: &Container) -> bool {
    container.command.is_empty()
        && container.args.first().is_none_or(|first| first.starts_with('-') || basename(first) == "etcd")
}

/// Whether a container with etcd's image and an unknown command can run etcd: it belongs to a StatefulSet or exposes a port
/// of etcd. It then counts as a member, because an unrecognised member can cost the quorum. A command that uses etcd's tools
/// (`etcdctl snapshot save`) does not run etcd.
pub(in crate::guard) fn may_run_etcd(pod: &Pod, container: &Container) -> bool {
    let is_port = |port: u16| matches!(port, DEFAULT_CLIENT_PORT | DEFAULT_PEER_PORT);
    let words = command_words(container);
    let uses_tool = words.iter().any(|word| TOOLS.iter().any(|tool| word.contains(tool)));
    is_etcd_image(&container.image)
        && !uses_tool
        && !runs_tool_or_proxy(container)
        && (pod.controller().is_some_and(|owner| owner.kind == "StatefulSet")
            || container.ports.iter().any(|port| is_port(port.container_port)))
}

/// Returns the words of the command and the arguments. Shell scripts are split too.
pub(in crate::guard) fn command_words(container: &Container) -> Vec<&str> {
    words(container.command.iter().chain(&container.args).map(String::as_str))
}

fn words<'a>(parts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    parts
        .flat_map(|part| part.split([' ', '\t', '\n', ';', '&', '|']))
        .map(|word| word.trim_matches(['"', '\'', '\\']))
        .filter(|word| !word.is_empty())
        .collect()
}

/// Whether the image is etcd's, or etcd-wrapper's, which runs etcd inside its own process.
fn is_etcd_image(image: &str) -> bool {
    matches!(image_name(image), "etcd" | "etcd-wrapper")
}

/// Whether one of the words is the etcd program, as opposed to the value of a flag or a directory named `etcd`.
fn starts_etcd(words: &[&str]) -> bool {
    let word = |at: usize| words.get(at).copied().unwrap_or_default();
    (0..words.len()).any(|at| {
        let (this, next) = (word(at), word(at + 1));
        let previous = at.checked_sub(1).map_or("", word);
        if this.starts_with('-') || basename(this) != "etcd" {
            return false;
        }
        let is_value = previous.len() > 2 && previous.starts_with("--") && !previous.contains('=');
        let is_command = at == 0 || previous == "exec" || next.starts_with('-');
        !is_value && (this == "etcd" || this.ends_with("bin/etcd") || is_command)
    })
}

fn basename(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Returns the last path segment of an image without tag and digest: `etcd` for `quay.io/coreos/etcd:v3.6.16@sha256:...`.
fn image_name(image: &str) -> &str {
    let last = basename(image.split('@').next().unwrap_or(image));
    last.split(':').next().unwrap_or(last)
}
