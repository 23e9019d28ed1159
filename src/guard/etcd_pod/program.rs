//! Whether a container's program is etcd, by what the pod says of it: command, arguments, image, variables.

use crate::k8s::pod::{Container, Pod};

/// Where etcd listens to clients when nobody says otherwise.
pub(super) const DEFAULT_CLIENT_PORT: u16 = 2379;

/// Where members listen to each other when nobody says otherwise.
const DEFAULT_PEER_PORT: u16 = 2380;

/// Variables of these names configure a member.
const OF_MEMBERS: [&str; 2] = ["ETCD_INITIAL_ADVERTISE_PEER_URLS", "ETCD_LISTEN_PEER_URLS"];

/// Whether what a container says names etcd at all. Where it does not, the container neither runs etcd nor may run it.
pub(in crate::guard) fn names_etcd<'a>(
    image: &str,
    parts: impl Iterator<Item = &'a str> + Clone,
    mut variables: impl Iterator<Item = &'a str>,
) -> bool {
    is_image_of_etcd(image)
        || variables.any(|name| OF_MEMBERS.contains(&name))
        // Most have no such word, and need not be taken apart.
        || (parts.clone().any(|part| part.contains("etcd")) && starts_etcd(&words(parts)))
}

/// A container runs etcd if its command does, if it has no command and an image of that name, or if its environment
/// configures a member.
pub(super) fn runs_etcd(container: &Container) -> bool {
    let by_environment = container.env.iter().any(|it| OF_MEMBERS.contains(&it.name.as_str()));
    starts_etcd(&words_of(container))
        || by_environment
        || (is_image_of_etcd(&container.image) && is_left_as_it_is(container))
}

/// Whether the image's own program runs: arguments alone are for it if they are flags, and may name another where they are
/// not.
fn is_left_as_it_is(container: &Container) -> bool {
    container.command.is_empty()
        && container.args.first().is_none_or(|first| first.starts_with('-') || basename(first) == "etcd")
}

/// An image of etcd whose command is a script that may do anything: in a StatefulSet, or with etcd's ports, it is taken
/// for a member, because to take a member for nothing costs the cluster. A command that names etcd's tools
/// (`etcdctl snapshot save`) runs none.
pub(super) fn may_run_etcd(pod: &Pod, container: &Container) -> bool {
    let is_port = |port: u16| matches!(port, DEFAULT_CLIENT_PORT | DEFAULT_PEER_PORT);
    let words = words_of(container);
    let names_a_tool = words.iter().any(|word| word.contains("etcdctl") || word.contains("etcdutl"));
    is_image_of_etcd(&container.image)
        && !names_a_tool
        && (pod.controller().is_some_and(|owner| owner.kind == "StatefulSet")
            || container.ports.iter().any(|port| is_port(port.container_port)))
}

/// Command and arguments, word by word; a script for a shell is taken apart as well.
pub(super) fn words_of(container: &Container) -> Vec<&str> {
    words(container.command.iter().chain(&container.args).map(String::as_str))
}

fn words<'a>(parts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    parts
        .flat_map(|part| part.split([' ', '\t', '\n', ';', '&', '|']))
        .map(|word| word.trim_matches(['"', '\'', '\\']))
        .filter(|word| !word.is_empty())
        .collect()
}

/// etcd-wrapper runs etcd in its own process, from a configuration file.
fn is_image_of_etcd(image: &str) -> bool {
    matches!(image_name(image), "etcd" | "etcd-wrapper")
}

/// Whether one of the words is etcd's program: not a flag's value, nor a directory of that name.
fn starts_etcd(words: &[&str]) -> bool {
    let word = |at: usize| words.get(at).copied().unwrap_or_default();
    (0..words.len()).any(|at| {
        let (this, next) = (word(at), word(at + 1));
        let previous = at.checked_sub(1).map_or("", word);
        if this.starts_with('-') || basename(this) != "etcd" {
            return false;
        }
        let is_value = previous.len() > 2 && previous.starts_with("--") && !previous.contains('=');
        let in_command_place = at == 0 || previous == "exec" || next.starts_with('-');
        !is_value && (this == "etcd" || this.ends_with("bin/etcd") || in_command_place)
    })
}

fn basename(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// `etcd` of `quay.io/coreos/etcd:v3.6.16@sha256:...`.
fn image_name(image: &str) -> &str {
    let last = basename(image.split('@').next().unwrap_or(image));
    last.split(':').next().unwrap_or(last)
}
