//! Containers.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    environment::{ENV_FROM, check_variables},
    fields::{Check, Rule, check_fields},
    mounts::{Volumes, check_devices, check_mounts},
    probes::{MAX_PORT, check_port_name, check_probes},
    resources::check_resources,
    security::check_security_context,
};
use crate::config::pod_parts::{items, text};
use etcd_guard_core::config::{diagnostic::Validator, syntax::check_name};

const CONTAINER: &[Rule] = &[
    ("imagePullPolicy", Check::OneOf(&["Always", "IfNotPresent", "Never"])),
    ("ports[].containerPort", Check::Range(1, MAX_PORT)),
    ("ports[].hostPort", Check::Range(0, MAX_PORT)),
    ("ports[].protocol", Check::OneOf(&["TCP", "UDP", "SCTP"])),
    ("ports[].name", Check::Text(check_port_name)),
];

/// A container of a template with its position in the file.
pub(crate) struct Container<'a> {
    /// The key of its list, and its index.
    pub(crate) position: (&'static str, usize),
    pub(crate) value: &'a Value,
    pub(crate) kind: ContainerKind,
}

/// The kind of a container in the pod.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContainerKind {
    /// An init container that ends before the next one starts.
    Init,
    /// An init container that runs until the pod ends.
    NativeSidecar,
    /// A container of the pod, or a native sidecar in clusters that have them.
    Ordinary,
}

/// Checks the containers of a template.
pub(crate) fn check_containers(
    containers: &[Container<'_>],
    volumes: &Volumes<'_>,
    known_fields_only: bool,
    validator: &mut Validator<'_>,
) {
    let (mut names, mut host_ports) = (BTreeSet::new(), BTreeSet::new());
    for Container { position: (list, index), value, kind } in containers {
        let mut validator = validator.at(*list);
        let mut validator = validator.at(*index);
        if let Some(name) = text(value, "name") {
            check_name(name, &mut validator.at("name"));
            if !name.is_empty() && !names.insert(name) {
                validator.at("name").report(format!("container name {name} is used more than once"));
            }
        }
        if text(value, "image") == Some("") {
            validator.at("image").report("is empty");
        }
        match value.get("restartPolicy").filter(|policy| !policy.is_null()) {
            None => {}
            Some(_) if *list == "containers" => {
                validator.at("restartPolicy").report("is valid only in initContainers; see native");
            }
            Some(policy) if policy == "Always" => {}
            Some(_) => validator.at("restartPolicy").report("must be Always"),
        }
        check_fields(value, CONTAINER, known_fields_only, &mut validator);
        check_fields(value, ENV_FROM, known_fields_only, &mut validator);
        check_variables(items(value, "env"), known_fields_only, &mut validator.at("env"));
        check_probes(value, *kind != ContainerKind::Init, known_fields_only, &mut validator);
        let security_context = value.get("securityContext");
        if let Some(context) = security_context {
            check_security_context(context, known_fields_only, &mut validator.at("securityContext"));
        }
        let is_privileged =
            security_context.and_then(|context| context.get("privileged")) == Some(&Value::Bool(true));
        let mounts = items(value, "volumeMounts");
        check_mounts(mounts, volumes, is_privileged, known_fields_only, &mut validator.at("volumeMounts"));
        let devices = items(value, "volumeDevices");
        check_devices(devices, volumes, &mut validator.at("volumeDevices"));
        if let Some(resources) = value.get("resources") {
            check_resources(resources, &mut validator.at("resources"));
        }
        // Init containers do not run at the same time as containers with the same port.
        if *kind != ContainerKind::Ordinary {
            host_ports.clear();
        }
        check_ports(items(value, "ports"), &mut host_ports, &mut validator.at("ports"));
    }
}

/// Checks that names of ports and ports of the node are unique.
fn check_ports(
    ports: &[Value],
    host_ports: &mut BTreeSet<(i64, String, String)>,
    validator: &mut Validator<'_>,
) {
    let mut names = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let mut validator = validator.at(index);
        if let Some(name) = text(port, "name").filter(|name| !name.is_empty() && !names.insert(*name)) {
            validator.at("name").report(format!("port name {name} is used more than once"));
        }
        let text = |key| text(port, key).unwrap_or_default().to_owned();
        let protocol = Some(text("protocol")).filter(|protocol| !protocol.is_empty());
        let protocol = protocol.unwrap_or_else(|| String::from("TCP"));
        let host_port = port.get("hostPort").and_then(Value::as_i64).filter(|port| *port != 0);
        if let Some(host_port) = host_port
            && !host_ports.insert((host_port, protocol, text("hostIP")))
        {
            validator.at("hostPort").report(format!("host port {host_port} is used more than once"));
        }
    }
}
