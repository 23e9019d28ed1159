//! Probes and lifecycle hooks of containers.

use serde_json::Value;

use super::fields::{Check, Rule, check_fields};
use etcd_guard_core::config::{diagnostic::Validator, syntax::is_port_name};

/// The fields of a container with a probe.
const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];

/// The fields of `lifecycle` with a hook.
const HOOKS: [&str; 2] = ["postStart", "preStop"];

/// The highest port.
pub(super) const MAX_PORT: i64 = 65_535;

/// The highest delay and threshold.
const MAX_COUNT: i64 = 0x7fff_ffff;

/// Rules that probes and hooks share.
const HANDLER: &[Rule] = &[
    ("exec.command", Check::Required),
    ("httpGet|tcpSocket.port", Check::Value(check_port)),
    ("grpc.port", Check::Range(1, MAX_PORT)),
    ("httpGet.scheme", Check::OneOf(&["HTTP", "HTTPS"])),
    ("httpGet.httpHeaders[].name", Check::Text(check_header)),
];

const PROBE: &[Rule] = &[
    ("", Check::ExactlyOne(&["exec", "httpGet", "tcpSocket", "grpc"])),
    (
        "initialDelaySeconds|timeoutSeconds|periodSeconds|successThreshold|failureThreshold",
        Check::Range(0, MAX_COUNT),
    ),
    ("terminationGracePeriodSeconds", Check::Range(1, i64::MAX)),
];

/// A probe that requires only one success. Zero selects the default, which is one.
const SINGLE_SUCCESS: &[Rule] = &[("successThreshold", Check::Range(0, 1))];

const READINESS: &[Rule] = &[(
    "terminationGracePeriodSeconds",
    Check::Absent("a container is not restarted after its readiness probe fails"),
)];

const HOOK: &[Rule] = &[("", Check::ExactlyOne(&["exec", "httpGet", "tcpSocket", "sleep"]))];

/// Checks the probes and hooks of a container. `may_have` is false for init containers that end.
pub(super) fn check_probes(
    container: &Value,
    may_have: bool,
    known_fields_only: bool,
    validator: &mut Validator<'_>,
) {
    let present = |part: &Value, key: &str| part.get(key).filter(|field| !field.is_null()).cloned();
    for field in PROBES.into_iter().chain(["lifecycle"]) {
        if !may_have && present(container, field).is_some() {
            let message = "is not allowed in an init container without restartPolicy: Always";
            validator.at(field).report(message);
        }
    }
    if !may_have {
        return;
    }
    for field in PROBES {
        let Some(probe) = present(container, field) else { continue };
        let own = if field == "readinessProbe" { READINESS } else { SINGLE_SUCCESS };
        for rules in [PROBE, HANDLER, own] {
            check_fields(&probe, rules, known_fields_only, &mut validator.at(field));
        }
    }
    let Some(lifecycle) = present(container, "lifecycle") else { return };
    for field in HOOKS {
        let Some(hook) = present(&lifecycle, field) else { continue };
        for rules in [HOOK, HANDLER] {
            check_fields(&hook, rules, known_fields_only, &mut validator.at("lifecycle").at(field));
        }
    }
}

/// Checks a port, which is a number or the name of a port of the container.
fn check_port(port: &Value, validator: &mut Validator<'_>) {
    match (port.as_i64(), port.as_str()) {
        (Some(number), _) if !(1..=MAX_PORT).contains(&number) => {
            validator.report(format!("{number} is not a port: expected 1 to {MAX_PORT}"));
        }
        (_, Some(name)) if !name.is_empty() => check_port_name(name, validator),
        _ => {}
    }
}

/// Checks the name of a port.
pub(super) fn check_port_name(name: &str, validator: &mut Validator<'_>) {
    if !is_port_name(name) {
        validator.report(format!(
            "{name:?} is not the name of a port: expected at most 15 characters a-z, 0-9 and -, with a letter"
        ));
    }
}

fn check_header(name: &str, validator: &mut Validator<'_>) {
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        validator.report(format!("{name:?} is not the name of an HTTP header"));
    }
}
