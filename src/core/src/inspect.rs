//! The report of `kubectl etcd-guard inspect`: what the guard reads of a pod, and the Role that it needs. Pure.
//!
//! The report uses the same functions as an evaluation. It describes the specification of the pod and probes nothing: the
//! response of a member alone proves its identity.

pub mod access;
pub mod role;
mod suggestions;

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

pub use self::{
    access::{InspectedCredential, ObjectContent, ObjectState},
    role::GuardAccount,
    suggestions::Suggestion,
};
use crate::{
    annotations::MEMBER,
    config::policies::{Mode, Policies},
    discovery::{
        credential_sources::{SELF_SIGNED, config_text},
        etcd_pod,
        etcd_pod::{EtcdPod, MEMBER_ANNOTATIONS},
        fail_closed::owner_only_warning,
        recognition::{Recognition, Veto, recognize},
        stopped_pod::verdict_of_stopped_pod,
    },
    objects::{
        data_object::{DataObject, Secret},
        pod::{Pod, PodIp},
    },
    policy::{PolicySetting, PolicySource, resolve},
    reason::Reason,
};

/// Text that replaces the address of [`set_placeholder_address`] in the report.
const POD_IP: &str = "POD_IP";

/// The start of the warning about a script whose effect is unknown.
const UNKNOWN_SCRIPT: &str = "a preStop hook runs a script that may remove the member: ";

/// The pod to inspect, and the objects with annotations that apply to it.
#[derive(Clone, Debug, Default)]
pub struct InspectedObject {
    /// The object from which the pod was read, for instance `StatefulSet prod/etcd`.
    pub object: String,
    /// The pod, or the pod that the template of the object creates.
    pub pod: Pod,
    /// The objects whose annotations apply to the pod, the weakest first: its namespace, then its owners, the nearest last.
    pub owners: Vec<AnnotatedObject>,
}

/// An object with annotations that apply to pods.
#[derive(Clone, Debug)]
pub struct AnnotatedObject {
    /// Kind and name, for instance `StatefulSet etcd`.
    pub object: String,
    /// The relation of the object to the pod.
    pub relation: Relation,
    /// Those annotations that the guard reads, or the reason why the object could not be read.
    pub annotations: Result<BTreeMap<String, String>, String>,
}

/// The relation of an object to the pods to which its annotations apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// The namespace. Pods inherit its description of members, as far as it can apply to them, and its policies.
    Namespace,
    /// The StatefulSet of the pod. The pod inherits its description of the member and its policies.
    StatefulSet,
    /// Another owner. Its annotations choose policies.
    Owner,
}

/// The stable code of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum InspectionReason {
    /// The guard evaluates deletions of the pod as those of an etcd member.
    Recognized,
    /// No container of the pod runs etcd, as far as its specification shows it.
    NotEtcd,
    /// An annotation declares that the pod is no member.
    Excluded,
    /// The pod is the mirror of a static pod. Its deletion stops no process.
    MirrorPod,
    /// The deletion of the pod was accepted earlier.
    Terminating,
    /// All containers of the pod have terminated.
    Finished,
}

/// What the guard reads of one pod. The fields are those of the JSON output.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Inspection {
    /// The inspected object.
    pub object: String,
    /// The namespace of the pod.
    pub namespace: String,
    /// The name of the pod.
    pub pod: String,
    /// Whether the guard evaluates deletions of the pod.
    pub recognized: bool,
    /// The code of the result.
    pub reason: InspectionReason,
    /// The reason as a sentence.
    pub message: String,
    /// Whether the namespace has the label of the guard; `None` if it was not read.
    pub guarded: Option<bool>,
    /// The container that runs etcd.
    pub container: Option<String>,
    /// The rule by which the container was recognized.
    pub rule: Option<String>,
    /// The containers that mention etcd and that a rule excludes, each as `CONTAINER: CAUSE`.
    pub vetoes: Vec<String>,
    /// The URL at which the member is probed. Without an address of the pod, the host is `POD_IP`. A scheme that only a probe
    /// determines is that of plain HTTP.
    pub endpoint: Option<String>,
    /// The URLs at the further addresses of the pod.
    pub other_endpoints: Vec<String>,
    /// `http` or `https`; `probed` if the specification does not show it, and only a probe determines it.
    pub scheme: Option<&'static str>,
    /// The name that the certificate of the member must contain; `None` without TLS.
    pub server_name: Option<String>,
    /// The value of etcd's `--name`.
    pub member_name: Option<String>,
    /// The advertised peer URLs.
    pub peer_urls: Vec<String>,
    /// The durability of the data when the pod is deleted, as far as the specification shows it.
    pub storage: Option<&'static str>,
    /// The claims that hold the data.
    pub claims: Vec<String>,
    /// Whether the members require a client certificate.
    pub requires_client_certificate: Option<bool>,
    /// The objects that can hold credentials, in the order in which the guard reads them.
    pub credentials: Vec<InspectedCredential>,
    /// The annotations that can be required in addition.
    pub suggestions: Vec<Suggestion>,
    /// The effective policy with the source of each value.
    pub policy: Vec<PolicySetting>,
    /// The configuration with the defaults and the floor of the policy.
    pub configuration: String,
    /// Annotations without effect, and parts of the report that are unknown.
    pub warnings: Vec<String>,
    /// The command that applies the Role; empty if it is unknown.
    #[serde(skip)]
    pub apply_command: String,
    /// The Role and the `RoleBinding` that permit the guard to read the needed credentials; empty if it needs none.
    pub role: Vec<Value>,
    /// The pod with the annotations that it inherits, and with an address.
    #[serde(skip)]
    specification: Pod,
    /// The member, if it is recognized.
    #[serde(skip)]
    pub member: Option<EtcdPod>,
    /// Whether the address of the pod is known.
    #[serde(skip)]
    has_address: bool,
}

/// Inspects a pod with the policies of this configuration.
pub fn inspect(object: &InspectedObject, policies: &Policies, now: Timestamp) -> Inspection {
    let mut pod = object.pod.clone();
    apply_inherited(&mut pod, &object.owners);
    if policies.floor.mode == Mode::Enforce {
        etcd_pod::include_evident_member(&mut pod);
    }
    let has_address = pod.addresses().next().is_some();
    if !has_address {
        set_placeholder_address(&mut pod, "");
    }
    let recognition = recognize(&pod, &pod.metadata.annotations);
    let member = etcd_pod::read(&pod, &pod.metadata.annotations);
    let (reason, message) = outcome(&pod, &recognition);
    let vetoes = recognition.vetoes.iter().map(|(container, veto)| format!("{container}: {veto}"));
    let mut inspection = Inspection {
        object: object.object.clone(),
        namespace: pod.metadata.namespace.clone(),
        pod: pod.metadata.name.clone(),
        recognized: reason == InspectionReason::Recognized,
        reason,
        message,
        guarded: None,
        container: None,
        rule: recognition.rule.map(|rule| rule.to_string()),
        vetoes: vetoes.collect(),
        endpoint: None,
        other_endpoints: Vec::new(),
        scheme: None,
        server_name: None,
        member_name: None,
        peer_urls: Vec::new(),
        storage: None,
        claims: Vec::new(),
        requires_client_certificate: None,
        credentials: Vec::new(),
        suggestions: Vec::new(),
        policy: Vec::new(),
        configuration: String::new(),
        warnings: Vec::new(),
        apply_command: String::new(),
        role: Vec::new(),
        member: member.filter(|_| reason == InspectionReason::Recognized),
        has_address,
        specification: pod,
    };
    if inspection.recognized {
        inspection.add_member();
        inspection.add_policy(object, policies, now);
        if let Some(warning) = owner_only_warning(&inspection.namespace, [&inspection.specification]) {
            inspection.warn(warning);
        }
    }
    inspection.suggest();
    inspection
}

/// Adds the annotations about members that the pod lacks, as the guard does: first those of its StatefulSet, then those of
/// its namespace.
fn apply_inherited(pod: &mut Pod, owners: &[AnnotatedObject]) {
    for owner in owners.iter().rev() {
        let Ok(annotations) = &owner.annotations else { continue };
        match owner.relation {
            Relation::Namespace => {
                pod.inherit(annotations, &MEMBER_ANNOTATIONS, etcd_pod::inherits_from_namespace);
            }
            Relation::StatefulSet => pod.inherit(annotations, &MEMBER_ANNOTATIONS, |_, _, _| true),
            Relation::Owner => {}
        }
    }
}

/// Gives a pod without an address one of those that are reserved for documentation (RFC 5737): of a pod in a file, or of a
/// pod template. Neither the pod nor the other text contains it, so that the report can tell it from an advertised address.
fn set_placeholder_address(pod: &mut Pod, other: &str) {
    pod.status.pod_ip.clear();
    pod.status.pod_ips.clear();
    let texts = format!("{pod:?} {other}");
    let mut addresses = (1..=u8::MAX).map(|last| format!("192.0.2.{last}"));
    let address = addresses.find(|address| !texts.contains(address)).unwrap_or_default();
    pod.status.pod_ips = vec![PodIp { ip: address.clone() }];
    pod.status.pod_ip = address;
}

/// Returns the result and its reason as a sentence.
fn outcome(pod: &Pod, recognition: &Recognition) -> (InspectionReason, String) {
    let name = &pod.metadata.name;
    if let Some(verdict) = verdict_of_stopped_pod(pod) {
        let reason = match verdict.reason {
            Reason::MirrorPod => InspectionReason::MirrorPod,
            Reason::PodFinished => InspectionReason::Finished,
            _ => InspectionReason::Terminating,
        };
        return (reason, verdict.message);
    }
    match &recognition.container {
        Some(container) if recognition.is_container_unclear => {
            let text = format!("a container of pod {name}, {container} or another one, runs an etcd member");
            (InspectionReason::Recognized, text)
        }
        Some(container) => {
            let text = format!("container {container} of pod {name} runs an etcd member");
            (InspectionReason::Recognized, text)
        }
        None if is_excluded(pod, recognition) => {
            (InspectionReason::Excluded, format!("annotation {MEMBER}=false excludes pod {name}"))
        }
        None => (
            InspectionReason::NotEtcd,
            format!("pod {name} runs no etcd, as far as its commands, images and variables show"),
        ),
    }
}

fn is_excluded(pod: &Pod, recognition: &Recognition) -> bool {
    etcd_pod::is_excluded(pod) || recognition.vetoes.iter().any(|(_, veto)| *veto == Veto::Excluded)
}

// === impl InspectionReason ===

impl InspectionReason {
    /// The code.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Recognized => "Recognized",
            Self::NotEtcd => "NotEtcd",
            Self::Excluded => "Excluded",
            Self::MirrorPod => "MirrorPod",
            Self::Terminating => "Terminating",
            Self::Finished => "Finished",
        }
    }
}

// === impl Inspection ===

impl Inspection {
    /// Returns the Secrets and `ConfigMaps` that the report depends on, without duplicates. Their content can add others.
    pub fn objects(&self) -> Vec<DataObject> {
        let mut objects: Vec<DataObject> = self.credentials.iter().map(InspectedCredential::object).collect();
        objects.sort();
        objects.dedup();
        objects
    }

    /// Records the access to objects and their content, and determines which of them the guard needs. Objects without an
    /// entry are unknown. Only names of keys become part of the report.
    pub fn record(&mut self, states: &BTreeMap<DataObject, ObjectState>) {
        self.apply_config_file(states);
        if let Some(member) = &self.member {
            access::record(&mut self.credentials, member, states);
        }
        self.apply_stop_scripts(states);
        self.suggest();
    }

    /// Records the content of one object, or that it does not exist, as [`Self::record`] does.
    pub fn record_content(&mut self, object: &DataObject, content: Option<Secret>) {
        let content = Some(content.map_or(ObjectContent::Missing, ObjectContent::Found));
        let state = ObjectState { content, ..ObjectState::default() };
        self.record(&BTreeMap::from([(object.clone(), state)]));
    }

    /// Adds the Role and the `RoleBinding` for the needed objects.
    pub fn add_role(&mut self, account: &GuardAccount) {
        let owner = self.specification.controller().map_or(self.pod.as_str(), |owner| &owner.name);
        self.role = role::objects(&self.namespace, owner, &self.credentials, account);
    }

    /// Adds what the scripts of preStop hooks do, as far as their content is known. The Role still contains them, because
    /// the guard reads them as well.
    fn apply_stop_scripts(&mut self, states: &BTreeMap<DataObject, ObjectState>) {
        let Some(mut member) = self.member.clone() else { return };
        while let Some(script) = member.unread_stop_script() {
            let content = states.get(&script.object).and_then(|state| state.content.as_ref());
            let content = match content {
                Some(ObjectContent::Found(content)) => {
                    let named = script.object.describe(&self.namespace);
                    config_text(&named, content, &script.key, false).map(Option::unwrap_or_default)
                }
                Some(ObjectContent::Missing) => {
                    Err(format!("{} does not exist", script.object.describe(&self.namespace)))
                }
                None => Err(format!("{} was not read", script.object.describe(&self.namespace))),
            };
            member.record_stop_script(&self.specification, content);
        }
        self.storage = Some(member.storage.as_str());
        self.warnings.retain(|warning| !warning.starts_with(UNKNOWN_SCRIPT));
        for script in &member.stop_scripts {
            self.warn(format!("{UNKNOWN_SCRIPT}{script}"));
        }
    }

    /// Replaces the settings of the pod by those of etcd's configuration file, if its content is known.
    fn apply_config_file(&mut self, states: &BTreeMap<DataObject, ObjectState>) {
        let Some(member) = &self.member else { return };
        let Some(file) = &member.config_file else { return };
        let content = states.get(&file.object).and_then(|state| state.content.as_ref());
        let Some(ObjectContent::Found(content)) = content else { return };
        let named = file.object.describe(&self.namespace);
        let text = config_text(&named, content, &file.key, member.is_config_file_optional);
        if let (Ok(Some(text)), false) = (&text, self.has_address) {
            set_placeholder_address(&mut self.specification, text);
        }
        let annotations = &self.specification.metadata.annotations;
        let complete = |text: String| member.with_config_file(&self.specification, annotations, &text);
        match text.and_then(|text| text.map(complete).transpose()) {
            Ok(None) => {}
            Ok(Some(complete)) => {
                self.member = Some(complete);
                self.add_member();
            }
            Err(problem) => self.warn(format!("the settings of etcd are unknown: {problem}")),
        }
    }

    /// Describes the member.
    fn add_member(&mut self) {
        let Some(member) = self.member.clone() else { return };
        let has_address = self.has_address;
        let placeholder = self.specification.status.pod_ip.clone();
        let shown = |text: &str| {
            if has_address { text.to_owned() } else { text.replace(&placeholder, POD_IP) }
        };
        self.container = Some(member.container.clone());
        if let Some(endpoint) = &member.endpoint {
            self.endpoint = Some(shown(&endpoint.url));
            self.other_endpoints.clone_from(&endpoint.other_urls);
            self.scheme = Some(match (&endpoint.tls, &member.possible_tls) {
                (Some(_), _) => "https",
                (None, Some(_)) => "probed",
                (None, None) => "http",
            });
            let tls = endpoint.tls.as_ref().or(member.possible_tls.as_ref());
            self.server_name = tls.map(|tls| shown(&tls.server_name));
        }
        self.member_name = member.member_name.as_deref().map(shown);
        self.peer_urls = member.peer_urls.iter().map(|url| shown(url)).collect();
        self.storage = Some(member.storage.as_str());
        self.claims.clone_from(&member.claims);
        self.requires_client_certificate =
            self.server_name.as_ref().map(|_| member.credentials.requires_certificate);
        self.credentials = access::credentials(&member);
        member.problem.into_iter().for_each(|problem| self.warn(problem));
        if let Some(loopback) = member.loopback {
            self.warn(loopback.explanation().to_owned());
        }
        if member.credentials.is_self_signed && !member.credentials.accepts_self_signed {
            self.warn(SELF_SIGNED.to_owned());
        }
    }

    fn warn(&mut self, warning: String) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// Suggests annotations for facts that the specification does not show.
    fn suggest(&mut self) {
        self.suggestions = match self.reason {
            InspectionReason::Recognized => {
                self.member.as_ref().map(|member| suggestions::for_member(&self.specification, member))
            }
            InspectionReason::NotEtcd => Some(suggestions::for_other_pod(&self.specification)),
            _ => None,
        }
        .unwrap_or_default();
    }

    /// Adds the effective policy. The guard may be permitted to read an owner that the caller could not read.
    fn add_policy(&mut self, object: &InspectedObject, policies: &Policies, now: Timestamp) {
        let readable = object.owners.iter().filter_map(|owner| {
            let annotations = owner.annotations.as_ref().ok()?;
            Some(PolicySource { object: owner.object.clone(), annotations })
        });
        let mut sources: Vec<PolicySource<'_>> = readable.collect();
        let own = format!("pod {}", self.pod);
        sources.push(PolicySource { object: own, annotations: &self.specification.metadata.annotations });
        let resolved = resolve(&policies.defaults, &policies.floor, &sources, now);
        self.policy = resolved.settings;
        resolved.warnings.into_iter().for_each(|warning| self.warn(warning));
        for owner in &object.owners {
            if let Err(error) = &owner.annotations {
                self.warn(format!(
                    "the annotations of {} are unknown, and not part of the policy: {error}",
                    owner.object
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests;
