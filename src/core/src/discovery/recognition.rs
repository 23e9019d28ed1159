//! Recognizes the container of a pod that runs an etcd member, and states the rule.
//!
//! An unrecognized member is approved without a probe, so a veto must be certain. Doubtful containers count as members if
//! their pod confirms it: by its controller, or by a declared port of etcd.

mod evidence;
mod images;
pub(super) mod programs;
pub(super) mod shell;

use std::collections::BTreeMap;

use self::evidence::Doubt;
pub use self::evidence::{Evidence, RecognitionRule, Veto};
use crate::{
    annotations::{MEMBER, MEMBER_OVERRULED},
    discovery::member_settings::MemberSettings,
    objects::pod::{Container, Pod},
};

/// etcd's default client port.
pub const DEFAULT_CLIENT_PORT: u16 = 2379;

/// etcd's default peer port.
const DEFAULT_PEER_PORT: u16 = 2380;

/// Controllers of pods that are usually no members. Other controllers, as StatefulSets and custom resources, confirm
/// a member.
const STATELESS_CONTROLLERS: [&str; 5] = ["ReplicaSet", "ReplicationController", "DaemonSet", "Node", "Job"];

/// Maximum length of a container name: that of a DNS label.
const MAX_CONTAINER_NAME: usize = 63;

/// The container that runs the member of a pod, with the rules that matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recognition {
    /// The container or native sidecar that runs etcd; `None` if the pod runs no member.
    pub container: Option<String>,
    /// The rule that matched.
    pub rule: Option<RecognitionRule>,
    /// The containers that mention etcd and run no member, each with the cause. If an annotation names no container of the
    /// pod, its value takes the place of the name.
    pub vetoes: Vec<(String, Veto)>,
    /// Whether the annotation declares a member, and nothing shows in which of several containers it runs.
    pub is_container_unclear: bool,
}

/// Returns the container of a pod that runs a member. `annotations` are the pod's own, merged with those that the pod
/// inherits from its StatefulSet and its namespace ([`accepts_from_namespace`]).
pub fn recognize(pod: &Pod, annotations: &BTreeMap<String, String>) -> Recognition {
    match annotations.get(MEMBER).map(String::as_str) {
        None | Some(MEMBER_OVERRULED) => by_rules(pod),
        Some("true") => declared(pod),
        Some("false") => {
            let excluded = by_rules(pod).container.map(|container| (container, Veto::Excluded));
            Recognition { vetoes: excluded.into_iter().collect(), ..Recognition::NONE }
        }
        Some(value) => match pod.lasting_containers().find(|container| container.name == value) {
            Some(container) => Recognition::new(container, RecognitionRule::Annotation),
            None => without_named_container(pod, value),
        },
    }
}

/// Whether a pod inherits this value of the annotation [`MEMBER`] from its namespace. A namespace also contains pods that
/// run no etcd, so `"true"` applies only to pods that declare a port of etcd, and the name of a container only to pods with
/// this container. Neither applies to pods of Jobs. `"false"` applies to all pods.
pub fn accepts_from_namespace(pod: &Pod, value: &str) -> bool {
    let accepts = |container: &Container| match value {
        "true" => declares_etcd_port(container) && !matches!(evidence(container), Evidence::Vetoed(_)),
        name => container.name == name,
    };
    value == "false" || (!is_of_job(pod) && pod.lasting_containers().any(accepts))
}

/// Returns a container that declares a port of etcd, in a pod that is not recognized, unless a rule proves that the
/// container runs no member.
pub fn unrecognized_listener(pod: &Pod) -> Option<&str> {
    let Recognition { vetoes, .. } = by_rules(pod);
    let is_vetoed = |name: &str| vetoes.iter().any(|(vetoed, veto)| vetoed == name && veto.is_certain());
    let names = pod.lasting_containers().filter(|container| declares_etcd_port(container));
    let mut names = names.map(|container| container.name.as_str());
    names.find(|name| !is_of_job(pod) && !is_vetoed(name))
}

/// Whether the command, the environment or the image of one of the pod's containers shows that the pod runs etcd, whatever
/// its annotations and its controller are.
pub fn is_evident(pod: &Pod) -> bool {
    by_rules(pod).rule.is_some_and(RecognitionRule::is_evident)
}

/// Returns the names of the containers that run a member each, if there are several: their commands start etcd with different
/// client ports. An annotation that names a container chooses its member.
pub fn several_members<'a>(pod: &'a Pod, annotations: &BTreeMap<String, String>) -> Vec<&'a str> {
    let is_chosen = |value: &String| pod.lasting_containers().any(|container| container.name == *value);
    if annotations.get(MEMBER).is_some_and(is_chosen) {
        return Vec::new();
    }
    let mut places: Vec<String> = Vec::new();
    let mut names = Vec::new();
    for container in pod.lasting_containers() {
        if evidence(container) != Evidence::Member(RecognitionRule::Command) {
            continue;
        }
        let own = client_places(&MemberSettings::read(pod, container));
        // Two processes of a pod cannot listen on one port: the container is a helper that starts etcd at times.
        if !own.iter().any(|place| places.contains(place)) {
            places.extend(own);
            names.push(container.name.as_str());
        }
    }
    if names.len() > 1 { names } else { Vec::new() }
}

/// Returns the ports of `--listen-client-urls`, or the configuration file that contains them.
fn client_places(settings: &MemberSettings) -> Vec<String> {
    if let Some(file) = settings.config_file() {
        return vec![file.to_owned()];
    }
    let urls = settings.get("listen-client-urls").unwrap_or_default().split(',');
    let ports: Vec<String> = urls.filter_map(|url| Some(url.trim().rsplit_once(':')?.1.to_owned())).collect();
    if ports.is_empty() { vec![DEFAULT_CLIENT_PORT.to_string()] } else { ports }
}

/// Returns the words of the command and the arguments. Shell scripts are split too.
pub fn command_words(container: &Container) -> Vec<&str> {
    let parts = container.command.iter().chain(&container.args).map(String::as_str);
    parts
        .flat_map(|part| part.split([' ', '\t', '\n', ';', '&', '|']))
        .map(|word| word.trim_matches(['"', '\'', '\\']))
        .filter(|word| !word.is_empty())
        .collect()
}

/// Applies the rules for pods without an annotation.
fn by_rules(pod: &Pod) -> Recognition {
    let mut found: Option<(&Container, RecognitionRule)> = None;
    let mut vetoes = Vec::new();
    for container in pod.lasting_containers() {
        let rule = match resolve(pod, container) {
            Some(Ok(rule)) => rule,
            Some(Err(veto)) => {
                vetoes.push((container.name.clone(), veto));
                continue;
            }
            None => continue,
        };
        if found.is_none_or(|(_, best)| rank(rule) < rank(best)) {
            found = Some((container, rule));
        }
    }
    match found {
        // The job ends, and its pod is not replaced.
        Some((container, _)) if is_of_job(pod) => {
            vetoes.push((container.name.clone(), Veto::Job));
            Recognition { vetoes, ..Recognition::NONE }
        }
        Some((container, rule)) => Recognition { vetoes, ..Recognition::new(container, rule) },
        None => Recognition { vetoes, ..Recognition::NONE },
    }
}

/// Returns the rule or the veto of a container; `None` if the container does not mention etcd.
fn resolve(pod: &Pod, container: &Container) -> Option<Result<RecognitionRule, Veto>> {
    let doubt = match evidence(container) {
        Evidence::Unrelated => return None,
        Evidence::Vetoed(veto) => return Some(Err(veto)),
        Evidence::Member(rule) => return Some(Ok(rule)),
        Evidence::Doubtful(doubt) => doubt,
    };
    let controller = pod.controller().map(|owner| owner.kind.as_str());
    let is_stateful = controller.is_some_and(|kind| !STATELESS_CONTROLLERS.contains(&kind));
    let declares_peer_port = container.ports.iter().any(|port| port.container_port == DEFAULT_PEER_PORT);
    let is_confirmed = match doubt {
        Doubt::Image => is_stateful || declares_etcd_port(container),
        Doubt::OtherImage(_) => declares_peer_port,
        Doubt::Program => declares_etcd_port(container),
        Doubt::Asleep => is_stateful,
        // A debugging copy has no controller. In a pod with a controller, the next pod starts the member again.
        Doubt::Configured(..) => controller.is_some(),
    };
    Some(if is_confirmed { Ok(doubt.rule()) } else { Err(doubt.veto()) })
}

/// Returns the order of preference between several containers: the rules that show a running etcd precede those that show
/// its configuration, because helpers of etcd have the same variables.
fn rank(rule: RecognitionRule) -> u8 {
    match rule {
        RecognitionRule::Annotation => 0,
        RecognitionRule::Command => 1,
        RecognitionRule::Image => 2,
        RecognitionRule::Flag(_) => 3,
        RecognitionRule::Variable(_) => 4,
        RecognitionRule::PossibleImage => 5,
        RecognitionRule::PossibleProgram => 6,
        RecognitionRule::Configured(_) => 7,
        RecognitionRule::Asleep => 8,
    }
}

/// Returns the most likely etcd container of a pod whose annotation declares it a member: a container that runs etcd, that
/// declares a port of etcd, or that is named `etcd`; otherwise the first container.
fn declared(pod: &Pod) -> Recognition {
    let rule = RecognitionRule::Annotation;
    let by_evidence = |wanted: fn(Evidence) -> bool| {
        pod.lasting_containers().find(move |container| wanted(evidence(container)))
    };
    let shown = by_evidence(|evidence| matches!(evidence, Evidence::Member(_)))
        .or_else(|| by_evidence(Evidence::may_be_member))
        .or_else(|| {
            pod.lasting_containers().find(|container| {
                declares_etcd_port(container) && !matches!(evidence(container), Evidence::Vetoed(_))
            })
        })
        .or_else(|| pod.lasting_containers().find(|container| container.name == "etcd"));
    match (shown, pod.lasting_containers().next()) {
        (Some(container), _) => Recognition::new(container, rule),
        (None, Some(first)) => Recognition {
            is_container_unclear: pod.lasting_containers().nth(1).is_some(),
            ..Recognition::new(first, rule)
        },
        (None, None) => Recognition::NONE,
    }
}

/// Applies an annotation whose value is neither a permitted word nor a container of the pod. The name of a container
/// declares a member, although the container is missing. Any other text has no effect.
fn without_named_container(pod: &Pod, value: &str) -> Recognition {
    let is_name = value.len() <= MAX_CONTAINER_NAME
        && !value.is_empty()
        && value.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    let mut recognition = by_rules(pod);
    if is_name && recognition.container.is_none() {
        recognition = declared(pod);
    }
    recognition.vetoes.push((value.to_owned(), Veto::NoSuchContainer));
    recognition
}

fn evidence(container: &Container) -> Evidence {
    Evidence::new(
        &container.image,
        container.command.iter().map(String::as_str),
        container.args.iter().map(String::as_str),
        container.env.iter().map(|variable| variable.name.as_str()),
    )
}

pub(super) fn declares_etcd_port(container: &Container) -> bool {
    let is_port = |port: u16| matches!(port, DEFAULT_CLIENT_PORT | DEFAULT_PEER_PORT);
    container.ports.iter().any(|port| is_port(port.container_port))
}

/// Whether the controller of the pod is a Job of Kubernetes. Other APIs have a kind `Job` as well.
fn is_of_job(pod: &Pod) -> bool {
    pod.controller().is_some_and(|owner| owner.kind == "Job" && owner.api_version.starts_with("batch/"))
}

// === impl Recognition ===

impl Recognition {
    /// No member.
    const NONE: Self = Self { container: None, rule: None, vetoes: Vec::new(), is_container_unclear: false };

    fn new(container: &Container, rule: RecognitionRule) -> Self {
        Self { container: Some(container.name.clone()), rule: Some(rule), ..Self::NONE }
    }
}

#[cfg(test)]
mod tests;
