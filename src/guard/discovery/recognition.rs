//! Recognises containers that run etcd by their command, arguments, image and environment variables.

use crate::k8s::pod::{Container, Pod};

/// etcd's default client port.
pub(in crate::guard) const DEFAULT_CLIENT_PORT: u16 = 2379;

/// etcd's default peer port.
const DEFAULT_PEER_PORT: u16 = 2380;

/// Environment variables that configure a member.
const MEMBER_VARIABLES: [&str; 2] = ["ETCD_INITIAL_ADVERTISE_PEER_URLS", "ETCD_LISTEN_PEER_URLS"];

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
/// and runs its default command.
pub(in crate::guard) fn runs_etcd(container: &Container) -> bool {
    let by_environment =
        container.env.iter().any(|variable| MEMBER_VARIABLES.contains(&variable.name.as_str()));
    starts_etcd(&command_words(container))
        || by_environment
        || (is_etcd_image(&container.image) && runs_default_command(container))
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
    let uses_tool = words.iter().any(|word| word.contains("etcdctl") || word.contains("etcdutl"));
    is_etcd_image(&container.image)
        && !uses_tool
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
