//! What a pod says of the etcd member that it runs: whether it runs one, where that listens, what it takes to be answered
//! there, and where its data lies.
//!
//! All of it is read from the pod itself, as etcd reads it: flags before environment before defaults; and annotations in
//! force overrule it. Names and addresses from here only find the member; who it is, it says itself when it is dialled.

mod endpoint;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod secrets;
mod settings;
mod storage;

use std::collections::BTreeMap;

pub(super) use self::secrets::{Login, Wanted};
use self::settings::Settings;
use super::snapshot::Storage;
use crate::{
    etcd::Endpoint,
    k8s::pod::{Container, Pod},
};

/// Says that a pod is a member, or is none, where the guard would think otherwise: `true` or `false`.
pub(super) const MEMBER_ANNOTATION: &str = "etcd-guard.io/member";

/// What [`MEMBER_ANNOTATION`] says of a pod that it may not disown.
pub(super) const OVERRULED: &str = "overruled";

/// Annotations that say where a member is and who may ask it: of the pod, or of its StatefulSet or namespace.
pub(super) const ANNOTATIONS: [&str; 4] =
    [MEMBER_ANNOTATION, endpoint::ANNOTATION, secrets::TLS_ANNOTATION, secrets::AUTH_ANNOTATION];

/// Where etcd listens to clients when nobody says otherwise.
const DEFAULT_CLIENT_PORT: u16 = 2379;

/// Where members listen to each other when nobody says otherwise.
const DEFAULT_PEER_PORT: u16 = 2380;

/// A pod that runs an etcd member, in the guard's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EtcdPod {
    /// The container that runs etcd.
    pub container: String,
    /// Where its member listens to clients, if that is known.
    pub endpoint: Option<Endpoint>,
    /// Where the credentials for it may lie.
    pub wanted: Wanted,
    /// What is missing: why there is no endpoint, or which credentials could not be had.
    pub gap: Option<String>,
    /// The name that etcd was told to take.
    pub member_name: Option<String>,
    /// What a deletion does to its data, as far as the pod tells.
    pub storage: Storage,
    /// The claim that holds its data.
    pub claim: Option<String>,
}

/// Reads what a pod says of its member, or `None` for a pod that runs no etcd. The annotations are those in force: the
/// pod's own, and under them those of its StatefulSet and namespace.
#[must_use]
pub(super) fn read(pod: &Pod, annotations: &BTreeMap<String, String>) -> Option<EtcdPod> {
    let container = match annotations.get(MEMBER_ANNOTATION).map(String::as_str) {
        Some("false") => return None,
        Some("true") => member_container(pod)?,
        _ => {
            let containers = &pod.spec.containers;
            containers
                .iter()
                .find(|it| runs_etcd(it))
                .or_else(|| containers.iter().find(|it| may_run_etcd(pod, it)))?
        }
    };
    let settings = Settings::read(pod, container);
    let (endpoint, gap) = match endpoint::read(pod, container, &settings, annotations) {
        Ok(endpoint) => (Some(endpoint), None),
        Err(gap) => (None, Some(gap)),
    };
    Some(EtcdPod {
        container: container.name.clone(),
        wanted: secrets::wanted(pod, container, &settings, annotations, endpoint.as_ref()),
        endpoint,
        gap,
        member_name: settings.get("name").map(str::to_owned),
        storage: storage::read(pod, container, &settings),
        claim: storage::claim(pod, container, &settings),
    })
}

/// Whether the pod is said to be no member.
pub(super) fn is_disowned(pod: &Pod) -> bool {
    pod.metadata.annotations.get(MEMBER_ANNOTATION).is_some_and(|it| it == "false")
}

/// Overrules that the pod is said to be no member, if it evidently is one.
pub(super) fn own_up(pod: &mut Pod) {
    if is_disowned(pod) && pod.spec.containers.iter().any(runs_etcd) {
        pod.metadata.annotations.insert(MEMBER_ANNOTATION.to_owned(), OVERRULED.to_owned());
    }
}

/// Of a pod that is said to be a member, the container that looks most like one.
fn member_container(pod: &Pod) -> Option<&Container> {
    let containers = &pod.spec.containers;
    let listens = |it: &&Container| it.ports.iter().any(|port| port.container_port == DEFAULT_CLIENT_PORT);
    let by_look = containers.iter().find(|it| runs_etcd(it)).or_else(|| containers.iter().find(listens));
    by_look.or_else(|| containers.iter().find(|it| it.name == "etcd")).or_else(|| containers.first())
}

/// A container runs etcd if its command does, if it has no command and an image of that name, or if its environment
/// configures a member.
fn runs_etcd(container: &Container) -> bool {
    let words = settings::words(container);
    if (0..words.len()).any(|at| starts_etcd(&words, at)) {
        return true;
    }
    let by_environment = container
        .env
        .iter()
        .any(|var| matches!(var.name.as_str(), "ETCD_INITIAL_ADVERTISE_PEER_URLS" | "ETCD_LISTEN_PEER_URLS"));
    by_environment || (has_image_of_etcd(container) && is_left_as_it_is(container))
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
fn may_run_etcd(pod: &Pod, container: &Container) -> bool {
    let is_port = |port: u16| matches!(port, DEFAULT_CLIENT_PORT | DEFAULT_PEER_PORT);
    let words = settings::words(container);
    let names_a_tool = words.iter().any(|word| word.contains("etcdctl") || word.contains("etcdutl"));
    has_image_of_etcd(container)
        && !names_a_tool
        && (pod.controller().is_some_and(|owner| owner.kind == "StatefulSet")
            || container.ports.iter().any(|port| is_port(port.container_port)))
}

/// etcd-wrapper runs etcd in its own process, from a configuration file.
fn has_image_of_etcd(container: &Container) -> bool {
    matches!(image_name(&container.image), "etcd" | "etcd-wrapper")
}

/// Whether the word at this place is etcd's program: not a flag's value, nor a directory of that name.
fn starts_etcd(words: &[String], at: usize) -> bool {
    let word = |at: usize| words.get(at).map_or("", String::as_str);
    let (this, next) = (word(at), word(at + 1));
    let previous = at.checked_sub(1).map_or("", word);
    if this.starts_with('-') || basename(this) != "etcd" {
        return false;
    }
    let is_value = previous.len() > 2 && previous.starts_with("--") && !previous.contains('=');
    let in_command_place = at == 0 || previous == "exec" || next.starts_with('-');
    !is_value && (this == "etcd" || this.ends_with("bin/etcd") || in_command_place)
}

fn basename(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// `etcd` of `quay.io/coreos/etcd:v3.6.16@sha256:...`.
fn image_name(image: &str) -> &str {
    let last = basename(image.split('@').next().unwrap_or(image));
    last.split(':').next().unwrap_or(last)
}

/// Whether this host is the pod's own: its name, a DNS name that begins with it, or its address.
pub(super) fn is_own_host(pod: &str, ip: &str, host: &str) -> bool {
    host == pod
        || host.strip_prefix(pod).is_some_and(|rest| rest.starts_with('.'))
        || (!ip.is_empty() && host == ip)
}

#[cfg(test)]
mod flavours;
#[cfg(test)]
mod tests;
