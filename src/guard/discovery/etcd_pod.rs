//! Reads the etcd member of a pod from the pod's specification: container, endpoint, credentials and storage.
//!
//! Flags take precedence over environment variables, and environment variables over etcd's defaults, as in etcd itself.
//! Annotations take precedence over all of them. The result only locates the member: the member's own response proves
//! its identity.

use std::collections::BTreeMap;

use crate::{
    etcd::Endpoint,
    guard::{
        discovery::{
            credential_sources::{self, CredentialSources},
            endpoint, etcdctl,
            member_settings::MemberSettings,
            recognition::{DEFAULT_CLIENT_PORT, may_run_etcd, runs_etcd},
            storage,
        },
        model::{
            annotations::{AUTH_SECRET, CLIENT_TLS_SECRET, ENDPOINTS, MEMBER, MEMBER_OVERRULED},
            snapshot::EtcdctlFlags,
            snapshot::Storage,
        },
    },
    k8s::pod::{Container, Pod},
};

/// Annotations that describe a member. A pod inherits them from its StatefulSet and its namespace.
pub(in crate::guard) const MEMBER_ANNOTATIONS: [&str; 4] =
    [MEMBER, ENDPOINTS, CLIENT_TLS_SECRET, AUTH_SECRET];

/// The etcd member of a pod, as the pod's specification describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::guard) struct EtcdPod {
    /// The container or native sidecar that runs etcd.
    pub container: String,
    /// The client endpoint of the member; `None` if the pod has no address or the annotation is invalid.
    pub endpoint: Option<Endpoint>,
    /// The Secrets that may hold the credentials for the endpoint.
    pub credentials: CredentialSources,
    /// The reason for a missing endpoint or for missing credentials.
    pub problem: Option<String>,
    /// The value of `--name`.
    pub member_name: Option<String>,
    /// The values of `--initial-advertise-peer-urls`.
    pub peer_urls: Vec<String>,
    /// The names of the members in `--initial-cluster`; empty if the specification does not show them.
    pub initial_members: Vec<String>,
    /// The flags that `etcdctl` needs in the container.
    pub etcdctl: EtcdctlFlags,
    /// The durability of the data, as far as the pod's specification shows it.
    pub storage: Storage,
    /// The names of the claims that hold the data and the write-ahead log; empty if the data does not outlive the pod.
    pub claims: Vec<String>,
}

/// Returns the member of a pod, or `None` for a pod that does not run etcd. `annotations` are the pod's own, merged with
/// those that the pod inherits from its StatefulSet and its namespace.
#[must_use]
pub(in crate::guard) fn read(pod: &Pod, annotations: &BTreeMap<String, String>) -> Option<EtcdPod> {
    let container = match annotations.get(MEMBER).map(String::as_str) {
        Some("false") => return None,
        Some("true") => member_container(pod)?,
        _ => pod
            .lasting_containers()
            .find(|container| runs_etcd(container))
            .or_else(|| pod.lasting_containers().find(|container| may_run_etcd(pod, container)))?,
    };
    let settings = MemberSettings::read(pod, container);
    let storage = storage::read(pod, container, &settings);
    let claims =
        if storage.preserves_data() { storage::claims(pod, container, &settings) } else { Vec::new() };
    let (endpoint, problem) = match endpoint::read(pod, container, &settings, annotations) {
        Ok(endpoint) => (Some(endpoint), None),
        Err(problem) => (None, Some(problem)),
    };
    Some(EtcdPod {
        container: container.name.clone(),
        credentials: credential_sources::read(pod, container, &settings, annotations, endpoint.as_ref()),
        etcdctl: etcdctl::read(container, &settings, endpoint.as_ref()),
        endpoint,
        problem,
        member_name: settings.get("name").map(str::to_owned),
        peer_urls: peer_urls(&settings),
        initial_members: settings.initial_members(),
        storage,
        claims,
    })
}

/// Returns the member of a pod whose annotation declares that it runs none. Its member can still be in the member list.
pub(in crate::guard) fn read_excluded(pod: &Pod) -> Option<EtcdPod> {
    let mut annotations = pod.metadata.annotations.clone();
    annotations.insert(MEMBER.to_owned(), String::from("true"));
    read(pod, &annotations)
}

/// Returns the advertised peer URLs, without those that contain variables of unknown value.
fn peer_urls(settings: &MemberSettings) -> Vec<String> {
    let urls = settings.get("initial-advertise-peer-urls").unwrap_or_default().split(',');
    let known = urls.map(|url| url.trim().trim_end_matches('/')).filter(|url| !url.contains('$'));
    known.filter(|url| !url.is_empty()).map(str::to_owned).collect()
}

/// Whether the pod's own annotation declares that it is not a member.
pub(in crate::guard) fn is_excluded(pod: &Pod) -> bool {
    pod.metadata.annotations.get(MEMBER).is_some_and(|value| value == "false")
}

/// Whether the command, the environment or the image of one of the pod's containers shows that the pod runs etcd.
pub(in crate::guard) fn is_evident_member(pod: &Pod) -> bool {
    pod.lasting_containers().any(runs_etcd)
}

/// Overrules the exclusion of a pod that evidently runs etcd. The floor of the configuration can require this.
pub(in crate::guard) fn include_evident_member(pod: &mut Pod) {
    if is_excluded(pod) && is_evident_member(pod) {
        pod.metadata.annotations.insert(MEMBER.to_owned(), MEMBER_OVERRULED.to_owned());
    }
}

/// Returns the most likely etcd container of a pod whose annotation declares it a member: a container that runs etcd, that
/// exposes the client port, or that is named `etcd`; otherwise the first container.
fn member_container(pod: &Pod) -> Option<&Container> {
    let exposes_client_port = |container: &&Container| {
        container.ports.iter().any(|port| port.container_port == DEFAULT_CLIENT_PORT)
    };
    pod.lasting_containers()
        .find(|container| runs_etcd(container))
        .or_else(|| pod.lasting_containers().find(exposes_client_port))
        .or_else(|| pod.lasting_containers().find(|container| container.name == "etcd"))
        .or_else(|| pod.lasting_containers().next())
}

#[cfg(test)]
mod addresses;
#[cfg(test)]
mod distributions;
#[cfg(test)]
mod tests;
