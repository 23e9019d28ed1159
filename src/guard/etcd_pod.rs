//! What a pod says of the etcd member that it runs: whether it runs one, where that listens, what it takes to be answered
//! there, and where its data lies.
//!
//! All of it is read from the pod itself, as etcd reads it: flags before environment before defaults; and annotations in
//! force overrule it. Names and addresses from here only find the member; who it is, it says itself when it is dialled.

mod endpoint;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod program;
mod secrets;
mod settings;
mod storage;

use std::collections::BTreeMap;

pub(super) use self::{
    program::names_etcd,
    secrets::{Login, Wanted},
};
use self::{
    program::{DEFAULT_CLIENT_PORT, may_run_etcd, runs_etcd},
    settings::Settings,
};
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
