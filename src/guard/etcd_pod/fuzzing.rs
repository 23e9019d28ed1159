//! What any pod must come to, and whatever its containers are told.

#![allow(clippy::expect_used, reason = "a fuzzer is told by a panic")]

use std::collections::BTreeMap;

use http::Uri;
use k8s_openapi::api::core::v1 as api;

use super::{MEMBER_ANNOTATION, is_disowned, own_up, read, settings::Settings};
use crate::{
    guard::{Glance, settled, snapshot::Storage},
    k8s::pod::{Container, EnvVar, Metadata, Pod, PodSpec, PodStatus},
};

/// A pod in JSON. What Kubernetes' own types make of it is read here as well, and tells the same.
///
/// # Panics
///
/// Where that does not hold.
pub fn pod(body: &[u8]) {
    if let Ok(pod) = serde_json::from_slice::<Pod>(body) {
        assert_reads(&pod);
        assert_glance(body, &pod);
    }
    let Ok(typed) = serde_json::from_slice::<api::Pod>(body) else { return };
    if !has_possible_ports(&typed) {
        return;
    }
    let sent = serde_json::to_vec(&typed).expect("a pod in JSON");
    let pod: Pod = serde_json::from_slice(&sent).expect("whatever an apiserver can send is read");
    assert_same(&pod, &typed);
    assert_reads(&pod);
}

/// Environment and arguments of a container that runs etcd: variables, one a line, then a line without anything, then a
/// word of the command a line. Flags win over variables, the last flag wins, and nothing grows without bound.
///
/// # Panics
///
/// Where that does not hold.
pub fn settings(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let (variables, words) = text.split_once("\n\n").unwrap_or(("", text));
    let variable = |line: &str| {
        let (name, value) = line.split_once('=').unwrap_or((line, ""));
        EnvVar { name: name.to_owned(), value: Some(value.to_owned()), ..EnvVar::default() }
    };
    let mut container = Container {
        name: String::from("etcd"),
        image: String::from("etcd"),
        command: words.lines().map(str::to_owned).collect(),
        env: variables.lines().map(variable).collect(),
        ..Container::default()
    };
    let pod = of_container(container.clone());
    assert_reads(&pod);
    assert_bounded(&Settings::read(&pod, &container), text.len());

    container.env.push(variable("ETCD_NAME=by-variable"));
    container.args.push(String::from("--name=by-flag"));
    let pod = of_container(container.clone());
    assert_eq!(Settings::read(&pod, &container).get("name"), Some("by-flag"), "{container:?}");
}

fn of_container(container: Container) -> Pod {
    let (name, namespace) = (String::from("etcd-0"), String::from("prod"));
    let annotations = BTreeMap::from([(MEMBER_ANNOTATION.to_owned(), String::from("true"))]);
    Pod {
        metadata: Metadata { name, namespace, annotations, ..Metadata::default() },
        spec: PodSpec { containers: vec![container], ..PodSpec::default() },
        status: PodStatus { pod_ip: String::from("192.0.2.1"), ..PodStatus::default() },
    }
}

/// Where the pod has an address, it is dialled there; TLS is where the URL says so; a claim is told of data that outlives
/// the pod.
fn assert_reads(pod: &Pod) {
    let annotations = &pod.metadata.annotations;
    if let Some(member) = read(pod, annotations) {
        assert_eq!(read(pod, annotations).as_ref(), Some(&member));
        assert!(member.endpoint.is_some() != member.gap.is_some(), "{member:?}");
        assert!(member.member_name.as_ref().is_none_or(|it| !it.is_empty()), "{member:?}");
        let outlives = matches!(member.storage, Storage::Persistent | Storage::RemovedByHook);
        assert!(member.claim.is_none() || outlives, "{member:?}");
        if let Some(endpoint) = &member.endpoint {
            assert_eq!(endpoint.url.starts_with("https://"), endpoint.tls.is_some(), "{endpoint:?}");
            assert!(endpoint.tls.is_some() || member.wanted.tls.is_empty(), "{member:?}");
            if let Ok(ip) = pod.status.pod_ip.parse::<std::net::IpAddr>() {
                let url: Uri = endpoint.url.parse().expect("a URL");
                let host = url.host().map(|it| it.trim_matches(['[', ']']));
                assert_eq!(host.and_then(|it| it.parse().ok()), Some(ip), "{endpoint:?}");
            }
        }
    }
    let mut owned_up = pod.clone();
    own_up(&mut owned_up);
    let is_overruled = is_disowned(pod) && !is_disowned(&owned_up);
    assert!(!is_overruled || read(&owned_up, &owned_up.metadata.annotations).is_some(), "{pod:?}");
}

/// Who is passed by at a glance is neither settled otherwise nor a member, and is who it is.
fn assert_glance(body: &[u8], pod: &Pod) {
    let Some(glance) =
        std::str::from_utf8(body).ok().and_then(|it| serde_json::from_str::<Glance<'_>>(it).ok())
    else {
        return;
    };
    if glance.is_bystander() {
        assert_bystander(&glance, pod);
    }
}

/// Who is passed by at a glance is what it looked like.
///
/// # Panics
///
/// Where that does not hold.
pub(crate) fn assert_bystander(glance: &Glance<'_>, pod: &Pod) {
    assert!(settled(pod).is_none() && read(pod, &pod.metadata.annotations).is_none(), "{pod:?}");
    assert_eq!((glance.name(), glance.namespace()), (&*pod.metadata.name, &*pod.metadata.namespace));
    assert_eq!(glance.stateful_set(), pod.stateful_set());
}

/// All that verdicts rest on, as another reader has it.
fn assert_same(pod: &Pod, typed: &api::Pod) {
    let (metadata, spec, status) = (&typed.metadata, typed.spec.as_ref(), typed.status.as_ref());
    let text = |it: &Option<String>| it.clone().unwrap_or_default();
    let names = |list: &[api::Container]| list.iter().map(|it| it.name.clone()).collect::<Vec<_>>();
    assert_eq!(pod.metadata.name, text(&metadata.name));
    assert_eq!(pod.metadata.namespace, text(&metadata.namespace));
    assert_eq!(pod.metadata.uid, text(&metadata.uid));
    assert_eq!(pod.metadata.annotations, metadata.annotations.clone().unwrap_or_default());
    assert_eq!(pod.metadata.labels, metadata.labels.clone().unwrap_or_default());
    assert_eq!(pod.is_terminating(), metadata.deletion_timestamp.is_some());
    let owners = metadata.owner_references.as_deref().unwrap_or_default();
    let controller = owners.iter().find(|it| it.controller == Some(true));
    assert_eq!(pod.controller().map(|it| &it.uid), controller.map(|it| &it.uid));
    let containers: Vec<String> = pod.spec.containers.iter().map(|it| it.name.clone()).collect();
    assert_eq!(containers, spec.map(|it| names(&it.containers)).unwrap_or_default());
    let phase = status.map(|it| text(&it.phase)).unwrap_or_default();
    assert_eq!(pod.is_finished(), matches!(phase.as_str(), "Succeeded" | "Failed"));
    assert_eq!(pod.status.pod_ip, status.map(|it| text(&it.pod_ip)).unwrap_or_default());
    let statuses = status.and_then(|it| it.container_statuses.as_deref()).unwrap_or_default();
    for name in containers {
        let running = |it: &&api::ContainerStatus| it.state.as_ref().is_some_and(|it| it.running.is_some());
        let is_running = statuses.iter().filter(running).any(|it| it.name == name);
        assert_eq!(pod.runs(&name), is_running, "{name}");
    }
}

/// An apiserver has no pod with another port.
fn has_possible_ports(pod: &api::Pod) -> bool {
    let containers = pod.spec.iter().flat_map(|it| &it.containers);
    let mut ports = containers.flat_map(|it| it.ports.iter().flatten());
    ports.all(|it| u16::try_from(it.container_port).is_ok())
}

fn assert_bounded(settings: &Settings, given: usize) {
    let told: usize = settings.all().map(str::len).sum();
    assert!(told <= given + super::settings::MOST_PUT_IN, "{given} bytes became {told}");
}
