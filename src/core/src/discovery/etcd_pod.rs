//! Reads the etcd member of a pod from the pod's specification: container, endpoint, credentials and storage.
//!
//! Flags take precedence over environment variables, and environment variables over etcd's defaults, as in etcd itself.
//! Annotations take precedence over all of them. The result only locates the member: the member's own response proves
//! its identity.

use std::collections::BTreeMap;

pub use super::endpoint::Loopback;

use crate::{
    annotations::{ACCEPT_AUTO_TLS, AUTH_SECRET, CLIENT_TLS_SECRET, ENDPOINTS, MEMBER, MEMBER_OVERRULED},
    discovery::{
        credential_sources as sources,
        credential_sources::{CredentialSources, DataKey, key_for_file},
        endpoint,
        endpoint::Reach,
        etcdctl,
        member_settings::MemberSettings,
        recognition,
        recognition::{Recognition, RecognitionRule, recognize},
        storage,
        storage::HookEffect,
    },
    escape::{MAX_ERROR_CHARS, to_bounded_line},
    etcd::{
        endpoint::{Endpoint, Tls},
        error::MemberError,
        member::{Scheme, displayed_name},
        probe_result::ProbeResult,
    },
    objects::pod::{Container, Pod},
    snapshot::{ContainerState, EtcdctlFlags, Listener, PodReport, StopScript, Storage},
};

/// Annotations that describe a member. A pod inherits them from its StatefulSet and its namespace.
pub const MEMBER_ANNOTATIONS: [&str; 5] =
    [MEMBER, ENDPOINTS, CLIENT_TLS_SECRET, ACCEPT_AUTO_TLS, AUTH_SECRET];

/// Files that images of etcd pass as `--config-file` if they exist. Source: `ETCD_CONF_FILE` in
/// `bitnami/containers`, `bitnami/etcd/3.6/debian-12/rootfs/opt/bitnami/scripts/etcd-env.sh`.
const IMAGE_CONFIG_FILES: [&str; 1] = ["/opt/bitnami/etcd/conf/etcd.yaml"];

/// The etcd member of a pod, as the pod's specification describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "the flags are independent")]
pub struct EtcdPod {
    /// The container or native sidecar that runs etcd.
    pub container: String,
    /// Whether another container of the pod may run etcd instead: an annotation declares the member without its container.
    pub is_container_unclear: bool,
    /// The client endpoint of the member; `None` if the pod has no address or the annotation is invalid.
    pub endpoint: Option<Endpoint>,
    /// The TLS settings of the endpoint if the member listens with TLS. Present if the specification does not show the
    /// scheme: the endpoint is then one of plain HTTP until a probe determines the scheme.
    pub possible_tls: Option<Tls>,
    /// Present if the member listens on the loopback address only.
    pub loopback: Option<Loopback>,
    /// Whether a setting shows the address at which the member listens.
    pub is_listener_stated: bool,
    /// The Secret or the `ConfigMap` with etcd's configuration file.
    pub config_file: Option<DataKey>,
    /// Whether the image uses the configuration file only if it exists, instead of the flags and the variables.
    pub is_config_file_optional: bool,
    /// The objects that may hold the credentials for the endpoint.
    pub credentials: CredentialSources,
    /// The reason for a missing endpoint or for missing credentials.
    pub problem: Option<String>,
    /// Whether the guard may not read an object with credentials.
    pub lacks_role: bool,
    /// The reason why the settings in etcd's configuration file are unknown. The port of the endpoint is then a guess.
    pub unread_settings: Option<String>,
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
    /// The scripts of preStop hooks because of which [`Storage::RemovedByHook`] is assumed.
    pub stop_scripts: Vec<StopScript>,
    /// Whether data is in a directory of the pod's node. The template of the pod's owner determines whether the pod's successor
    /// finds it.
    pub is_data_on_node: bool,
    /// The names of the claims that hold the data and the write-ahead log; empty if the data does not outlive the pod.
    pub claims: Vec<String>,
}

/// Whether a pod runs a member, with the annotations of [`read`].
pub fn runs_member(pod: &Pod, annotations: &BTreeMap<String, String>) -> bool {
    member_container(pod, &recognize(pod, annotations)).is_some()
}

/// Returns the member of a pod, or `None` for a pod that does not run etcd. `annotations` are the pod's own, merged with
/// those that the pod inherits from its StatefulSet and its namespace.
pub fn read(pod: &Pod, annotations: &BTreeMap<String, String>) -> Option<EtcdPod> {
    let recognition = recognize(pod, annotations);
    let container = member_container(pod, &recognition)?;
    let settings = MemberSettings::read(pod, container);
    let is_unclear = recognition.is_container_unclear;
    let mut member = EtcdPod::new(pod, container, is_unclear, &settings, annotations);
    // A wrapper or a script can add settings.
    let is_started_directly =
        matches!(recognition.rule, Some(RecognitionRule::Command | RecognitionRule::Image));
    if !is_started_directly || settings.config_file().is_some() {
        member.loopback = member.loopback.filter(|loopback| *loopback != Loopback::Default);
    }
    Some(member)
}

/// Whether the data of a pod's member outlives a restart of its container. `annotations` are those of [`read`].
pub fn outlives_restart(pod: &Pod, annotations: &BTreeMap<String, String>) -> bool {
    member_container(pod, &recognize(pod, annotations)).is_some_and(|container| {
        storage::outlives_container(pod, container, &MemberSettings::read(pod, container))
    })
}

/// Returns the container that runs the member.
fn member_container<'a>(pod: &'a Pod, recognition: &Recognition) -> Option<&'a Container> {
    let name = recognition.container.as_ref()?;
    pod.lasting_containers().find(|container| container.name == *name)
}

/// Returns the member that the specification of a pod describes, without regard to an annotation that excludes the pod from
/// the guard. The member list can still contain this member.
pub fn read_excluded(pod: &Pod) -> Option<EtcdPod> {
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
pub fn is_excluded(pod: &Pod) -> bool {
    pod.metadata.annotations.get(MEMBER).is_some_and(|value| value == "false")
}

/// Whether the command, the environment or the image of one of the pod's containers shows that the pod runs etcd.
pub fn is_evident_member(pod: &Pod) -> bool {
    recognition::is_evident(pod)
}

/// Overrules the exclusion of a pod that evidently runs etcd. The floor of the configuration can require this.
pub fn include_evident_member(pod: &mut Pod) {
    if is_excluded(pod) && is_evident_member(pod) {
        pod.metadata.annotations.insert(MEMBER.to_owned(), MEMBER_OVERRULED.to_owned());
    }
}

/// Whether a pod inherits this annotation from its namespace. A namespace also contains pods that run no etcd.
pub fn inherits_from_namespace(pod: &Pod, name: &str, value: &str) -> bool {
    name != MEMBER || recognition::accepts_from_namespace(pod, value)
}

// === impl EtcdPod ===

impl EtcdPod {
    fn new(
        pod: &Pod,
        container: &Container,
        is_container_unclear: bool,
        settings: &MemberSettings,
        annotations: &BTreeMap<String, String>,
    ) -> Self {
        let (storage, stop_scripts) = storage::read(pod, container, settings);
        let claims =
            if storage.preserves_data() { storage::claims(pod, container, settings) } else { Vec::new() };
        let reach = endpoint::read(pod, container, settings, annotations);
        let (Reach { endpoint, possible_tls, loopback, is_listener_stated }, problem) = match reach {
            Ok(reach) => (reach, None),
            Err(problem) => (Reach::default(), Some(to_bounded_line(&problem, MAX_ERROR_CHARS))),
        };
        let may_use_tls = endpoint.as_ref().is_some_and(|endpoint| endpoint.tls.is_some());
        let may_use_tls = may_use_tls || possible_tls.is_some();
        let named_file = settings.config_file();
        let is_config_file_optional = named_file.is_none();
        let of_image = IMAGE_CONFIG_FILES.into_iter().filter(|_| is_config_file_optional);
        let mut files = named_file.into_iter().chain(of_image);
        let config_file = files.find_map(|file| key_for_file(pod, container, file));
        // The file can replace the variables.
        let hides_members = config_file.is_some();
        Self {
            container: container.name.clone(),
            is_container_unclear,
            credentials: sources::read(pod, container, settings, annotations, may_use_tls),
            config_file,
            is_config_file_optional,
            etcdctl: etcdctl::read(container, settings, endpoint.as_ref()),
            endpoint,
            possible_tls,
            loopback,
            is_listener_stated,
            problem,
            lacks_role: false,
            unread_settings: None,
            member_name: settings.get("name").map(displayed_name),
            peer_urls: peer_urls(settings),
            initial_members: if hides_members { Vec::new() } else { settings.initial_members() },
            storage,
            stop_scripts,
            is_data_on_node: storage::is_on_node(pod, container, settings),
            claims,
        }
    }

    /// Returns this member of the pod with the settings in the content of its configuration file. The error states the
    /// reason why the content cannot be read.
    pub fn with_config_file(
        &self,
        pod: &Pod,
        annotations: &BTreeMap<String, String>,
        content: &str,
    ) -> Result<Self, String> {
        let mut containers = pod.lasting_containers();
        let Some(container) = containers.find(|container| container.name == self.container) else {
            return Ok(self.clone());
        };
        let settings = MemberSettings::from_config_file(content)?;
        let member = Self::new(pod, container, self.is_container_unclear, &settings, annotations);
        let is_config_file_optional = self.is_config_file_optional;
        let initial_members = settings.initial_members();
        // A template in the file can contain a client URL.
        let loopback = member.loopback.filter(|loopback| *loopback != Loopback::Default);
        Ok(Self {
            config_file: self.config_file.clone(),
            is_config_file_optional,
            initial_members,
            loopback,
            ..member
        })
    }

    /// Records the content of the first unread script of a preStop hook, or the reason why it cannot be read.
    pub fn record_stop_script(&mut self, pod: &Pod, content: Result<String, String>) {
        let Some(number) = self.stop_scripts.iter().position(StopScript::is_unread) else { return };
        let Some(script) = self.stop_scripts.get_mut(number) else { return };
        let content = match content {
            Ok(content) => content,
            Err(problem) => {
                script.problem = Some(problem);
                return;
            }
        };
        match storage::effect_of_script(pod, &self.container, &script.container, &content) {
            HookEffect::RemovesMember => self.stop_scripts.clear(),
            HookEffect::Unknown(nested) => drop(self.stop_scripts.splice(number..=number, nested)),
            HookEffect::KeepsMember => {
                self.stop_scripts.remove(number);
                if self.stop_scripts.is_empty() {
                    self.storage = Storage::Persistent;
                }
            }
        }
    }

    /// Returns the object and the key of the first unread script of a preStop hook.
    pub fn unread_stop_script(&self) -> Option<&DataKey> {
        self.stop_scripts.iter().find(|script| script.is_unread())?.source.as_ref()
    }

    /// Sets the scheme that a probe determined. Over plain HTTP, the member then receives no password: every process at
    /// its address can reply without TLS.
    pub fn set_scheme(&mut self, scheme: Option<Scheme>) {
        let (Some(tls), Some(endpoint)) = (self.possible_tls.take(), &mut self.endpoint) else { return };
        if scheme == Some(Scheme::Https) {
            endpoint.use_tls(tls);
        } else {
            if self.credentials.user.is_some() {
                self.problem = Some(format!(
                    "the specification does not show that the member uses plain HTTP, so that it receives no password: \
                     set annotation {ENDPOINTS}=http://:2379"
                ));
            }
            self.credentials = CredentialSources::default();
        }
    }

    /// Whether the kubelet reports that etcd's container is running. If the container is unclear, any running container of
    /// the pod may run the member.
    pub fn is_running(&self, pod: &Pod) -> bool {
        self.containers(pod).any(|name| pod.is_container_running(name))
    }

    /// Returns the id of the image that etcd's container runs; empty if the image or the container is not certain.
    pub fn image_id<'a>(&self, pod: &'a Pod) -> &'a str {
        if self.is_container_unclear { "" } else { pod.image_id(&self.container) }
    }

    /// Whether etcd's container has ever run in this pod, as far as the kubelet reports.
    pub fn has_started(&self, pod: &Pod) -> bool {
        self.containers(pod).any(|name| pod.has_started(name))
    }

    /// What the API server shows of the pod and etcd's container.
    pub fn report(&self, pod: &Pod) -> PodReport {
        let container = if self.is_running(pod) {
            ContainerState::Running
        } else if self.has_started(pod) {
            ContainerState::Stopped
        } else {
            ContainerState::NeverStarted
        };
        PodReport { container, is_scheduled: !pod.spec.node_name.is_empty(), is_ready: pod.is_ready() }
    }

    /// What the specification shows of the address at which the member listens.
    pub fn listener(&self) -> Listener {
        match self.loopback {
            Some(_) => Listener::Loopback,
            None if self.is_listener_stated && self.unread_settings.is_none() => Listener::Stated,
            None => Listener::Guessed,
        }
    }

    /// Returns the number of running containers that certainly do not run the member.
    pub fn count_other_running_containers(&self, pod: &Pod) -> usize {
        if self.is_container_unclear { 0 } else { pod.count_other_running_containers(&self.container) }
    }

    /// Returns the containers that may run the member.
    fn containers<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = &'a str> {
        let names = pod.lasting_containers().map(|container| container.name.as_str());
        names.filter(|name| self.is_container_unclear || *name == self.container)
    }

    /// Returns the probe result with the pod's problem added to rejected credentials and failed handshakes, with the remedy
    /// added to a connection that a member on the loopback address refuses, and with the cause of a guessed port added to
    /// every failed connection.
    pub fn with_problem(&self, result: ProbeResult) -> ProbeResult {
        // A guessed port without a listener does not prove that the process has stopped.
        let at_guessed_port = |cause| match (cause, &self.unread_settings) {
            (MemberError::Refused(text) | MemberError::Unreachable(text), Some(problem)) => {
                MemberError::Unreachable(format!("{text}: {problem}"))
            }
            (other, _) => other,
        };
        let loopback = self.loopback.map(Loopback::explanation);
        let explain = |cause| match (at_guessed_port(cause), &self.problem, loopback) {
            (MemberError::Refused(text), _, Some(loopback)) => {
                MemberError::Refused(format!("{text}: {loopback}"))
            }
            (MemberError::CredentialsRejected(text), Some(problem), _) => {
                MemberError::CredentialsRejected(format!("{text}; {problem}"))
            }
            // A handshake without the required certificate fails, so the missing credential is the cause.
            (MemberError::Tls(text), Some(problem), _) => {
                MemberError::CredentialsRejected(format!("TLS: {text}; {problem}"))
            }
            (other, ..) => other,
        };
        match result {
            ProbeResult::NoStatus { cause } => ProbeResult::NoStatus { cause: explain(cause) },
            ProbeResult::StatusOnly { status, cause } => {
                ProbeResult::StatusOnly { status, cause: explain(cause) }
            }
            healthy @ ProbeResult::Healthy { .. } => healthy,
        }
    }
}

#[cfg(test)]
mod addresses;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod write_ahead_log;
