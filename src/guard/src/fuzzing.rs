//! Invariants of reading arbitrary pods and arbitrary container settings.

#![allow(clippy::expect_used, reason = "fuzzers detect failures by panics")]

use std::collections::BTreeMap;

use http::Uri;
use k8s_openapi::api::core::v1 as api;
use serde_json::{Value, json};

use crate::credentials::authority_check::assert_no_authority_key;
use etcd_guard_core::{
    annotations::MEMBER,
    discovery::{
        etcd_pod::{include_evident_member, is_excluded, read},
        member_settings::{MAX_EXPANDED_BYTES, MemberSettings},
        recognition::{RecognitionRule, recognize},
    },
    objects::{
        annotations::{KEPT, MAX_VALUE_BYTES, TOO_LONG},
        pod::{ALWAYS, Container, EnvVar, Metadata, Pod, PodSpec, PodStatus},
    },
    snapshot::Storage,
};

/// Checks a pod in JSON. If the types of `k8s_openapi` can parse the pod, the types of this program must read the same
/// values.
///
/// # Panics
///
/// If an invariant is violated.
pub fn pod(body: &[u8]) {
    if let Ok(pod) = serde_json::from_slice::<Pod>(body) {
        assert_reads(&pod);
    }
    let Ok(typed) = serde_json::from_slice::<api::Pod>(body) else { return };
    if !has_possible_ports(&typed) {
        return;
    }
    let sent = serde_json::to_vec(&typed).expect("a pod in JSON");
    let pod: Pod = serde_json::from_slice(&sent).expect("a pod that an API server can send");
    assert_same(&pod, &typed);
    assert_reads(&pod);
}

/// Checks the settings of a container that runs etcd. The text contains one variable per line, an empty line, and one
/// word of the command per line. Flags take precedence over variables, later flags take precedence over earlier ones,
/// and the size of expanded values is limited.
///
/// # Panics
///
/// If an invariant is violated.
pub fn member_settings(text: &[u8]) {
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
    let pod = pod_with_container(container.clone());
    assert_reads(&pod);
    assert_bounded(&MemberSettings::read(&pod, &container), text.len());

    container.env.push(variable("ETCD_NAME=by-variable"));
    container.args.push(String::from("--name=by-flag"));
    let pod = pod_with_container(container.clone());
    assert_eq!(MemberSettings::read(&pod, &container).get("name"), Some("by-flag"), "{container:?}");
}

/// Checks the recognition of a container that runs a script, and the credentials of its member. The text contains the image,
/// the kind of the controller, the variables in one line (`NAME` or `NAME=VALUE`), the volumes in one line (`PATH:SECRET`,
/// each followed by its items `KEY=FILE`), the words of the command in one line, and the script. A script that ends with the
/// start of etcd is always a member, and the key of a CA is no identity.
///
/// # Panics
///
/// If an invariant is violated.
pub fn recognition(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let mut lines = text.splitn(6, '\n');
    let mut line = || lines.next().unwrap_or_default();
    let (image, kind, variables, volumes, words, script) = (line(), line(), line(), line(), line(), line());
    let env = variables.split_whitespace().map(|variable| {
        let (name, value) = variable.split_once('=').unwrap_or((variable, "1"));
        json!({"name": name, "value": value})
    });
    let env: Vec<_> = env.collect();
    let (volumes, mounts) = secret_volumes(volumes);
    let body = |command: &[&str], kind: &str| {
        let owners =
            json!([{"apiVersion": "batch/v1", "kind": kind, "name": "o", "uid": "u", "controller": true}]);
        let container =
            json!({"name": "c", "image": image, "env": env, "command": command, "volumeMounts": mounts});
        let metadata = json!({"name": "p-0", "namespace": "n", "ownerReferences": owners});
        let spec = json!({"containers": [container], "volumes": volumes});
        json!({"metadata": metadata, "spec": spec, "status": {"podIP": "192.0.2.1"}}).to_string()
    };
    let command: Vec<&str> = words.split_whitespace().chain(Some(script)).collect();
    let pod: Pod = serde_json::from_str(&body(&command, kind)).expect("a pod");
    assert_reads(&pod);

    // The empty line ends a continued line.
    let script = format!("{script}\n\nexec etcd --name=a\n");
    let pod: Pod = serde_json::from_str(&body(&["sh", "-c", &script], "StatefulSet")).expect("a pod");
    assert_reads(&pod);
    let rule = recognize(&pod, &pod.metadata.annotations).rule;
    assert_eq!(rule, Some(RecognitionRule::Command), "{script:?}");
}

/// Returns the volumes and the mounts of a line with the words `PATH:SECRET` and `KEY=FILE`.
fn secret_volumes(line: &str) -> (Vec<Value>, Vec<Value>) {
    let (mut volumes, mut mounts) = (Vec::new(), Vec::new());
    for word in line.split_whitespace() {
        if let Some((path, secret)) = word.split_once(':') {
            let name = format!("volume-{}", volumes.len());
            mounts.push(json!({"name": name, "mountPath": path}));
            volumes.push(json!({"name": name, "secret": {"secretName": secret, "items": []}}));
        } else if let Some((key, file)) = word.split_once('=')
            && let Some(items) = volumes.last_mut().and_then(|volume| volume.pointer_mut("/secret/items"))
            && let Some(items) = items.as_array_mut()
        {
            items.push(json!({"key": key, "path": file}));
        }
    }
    (volumes, mounts)
}

fn pod_with_container(container: Container) -> Pod {
    let (name, namespace) = (String::from("etcd-0"), String::from("prod"));
    let annotations = BTreeMap::from([(MEMBER.to_owned(), String::from("true"))]);
    Pod {
        metadata: Metadata { name, namespace, annotations, ..Metadata::default() },
        spec: PodSpec { containers: vec![container], ..PodSpec::default() },
        status: PodStatus { pod_ip: String::from("192.0.2.1"), ..PodStatus::default() },
    }
}

/// Checks the member of a pod: the endpoint is at the pod's address, TLS settings exist exactly for `https`, and a
/// claim is returned only if the data outlives the pod.
fn assert_reads(pod: &Pod) {
    let annotations = &pod.metadata.annotations;
    if let Some(member) = read(pod, annotations) {
        assert_eq!(read(pod, annotations).as_ref(), Some(&member));
        assert!(member.endpoint.is_some() != member.problem.is_some(), "{member:?}");
        assert!(member.member_name.as_ref().is_none_or(|name| !name.is_empty()), "{member:?}");
        let outlives = matches!(member.storage, Storage::Persistent | Storage::RemovedByHook);
        assert!(member.claims.is_empty() || outlives, "{member:?}");
        if let Some(endpoint) = &member.endpoint {
            assert_eq!(endpoint.url.starts_with("https://"), endpoint.tls.is_some(), "{endpoint:?}");
            let may_use_tls = endpoint.tls.is_some() || member.possible_tls.is_some();
            assert!(may_use_tls || member.credentials.tls.is_empty(), "{member:?}");
            assert_no_authority_key(&member);
            if let Ok(ip) = pod.status.pod_ip.parse::<std::net::IpAddr>() {
                let url: Uri = endpoint.url.parse().expect("a URL");
                let host = url.host().map(|host| host.trim_matches(['[', ']']));
                assert_eq!(host.and_then(|host| host.parse().ok()), Some(ip), "{endpoint:?}");
            }
        }
    }
    let mut included = pod.clone();
    include_evident_member(&mut included);
    let is_overruled = is_excluded(pod) && !is_excluded(&included);
    assert!(!is_overruled || read(&included, &included.metadata.annotations).is_some(), "{pod:?}");
}

/// Checks that all fields that affect verdicts equal those of `k8s_openapi`.
fn assert_same(pod: &Pod, typed: &api::Pod) {
    let (metadata, spec, status) = (&typed.metadata, typed.spec.as_ref(), typed.status.as_ref());
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let names =
        |list: &[api::Container]| list.iter().map(|container| container.name.clone()).collect::<Vec<_>>();
    assert_eq!(pod.metadata.name, text(&metadata.name));
    assert_eq!(pod.metadata.namespace, text(&metadata.namespace));
    assert_eq!(pod.metadata.uid, text(&metadata.uid));
    let mut annotations = metadata.annotations.clone().unwrap_or_default();
    annotations.retain(|name, _| KEPT.contains(&name.as_str()));
    for value in annotations.values_mut().filter(|value| value.len() > MAX_VALUE_BYTES) {
        TOO_LONG.clone_into(value);
    }
    assert_eq!(pod.metadata.annotations, annotations);
    assert_eq!(pod.metadata.labels, metadata.labels.clone().unwrap_or_default());
    assert_eq!(pod.is_terminating(), metadata.deletion_timestamp.is_some());
    let owners = metadata.owner_references.as_deref().unwrap_or_default();
    let controller = owners.iter().find(|owner| owner.controller == Some(true));
    assert_eq!(pod.controller().map(|owner| &owner.uid), controller.map(|owner| &owner.uid));
    let containers: Vec<String> = pod.lasting_containers().map(|container| container.name.clone()).collect();
    let expected = spec.map(|spec| {
        let mut lasting = spec.containers.clone();
        let is_sidecar = |container: &&api::Container| container.restart_policy.as_deref() == Some(ALWAYS);
        lasting.extend(spec.init_containers.iter().flatten().filter(is_sidecar).cloned());
        names(&lasting)
    });
    assert_eq!(containers, expected.unwrap_or_default());
    let phase = status.map(|status| text(&status.phase)).unwrap_or_default();
    assert_eq!(pod.is_finished(), matches!(phase.as_str(), "Succeeded" | "Failed"));
    assert_eq!(pod.status.pod_ip, status.map(|status| text(&status.pod_ip)).unwrap_or_default());
    let statuses: Vec<&api::ContainerStatus> = status
        .iter()
        .flat_map(|status| [&status.container_statuses, &status.init_container_statuses])
        .flatten()
        .flatten()
        .collect();
    for name in containers {
        let running = |status: &&api::ContainerStatus| {
            status.state.as_ref().is_some_and(|state| state.running.is_some())
        };
        let is_running = statuses.iter().copied().filter(running).any(|status| status.name == name);
        assert_eq!(pod.is_container_running(&name), is_running, "{name}");
    }
}

/// Returns whether an API server would accept the ports of the pod.
fn has_possible_ports(pod: &api::Pod) -> bool {
    let containers =
        pod.spec.iter().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    ports.all(|port| u16::try_from(port.container_port).is_ok())
}

fn assert_bounded(settings: &MemberSettings, input_size: usize) {
    let size: usize = settings.values().map(str::len).sum();
    assert!(size <= input_size + MAX_EXPANDED_BYTES, "{input_size} bytes were expanded to {size}");
}
