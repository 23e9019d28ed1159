//! Environment variables, and the fields that they refer to.

use serde_json::Value;

use super::fields::{Check, Rule, check_fields};
use etcd_guard_core::{
    config::{
        diagnostic::Validator,
        syntax::{check_annotation_key, check_key},
    },
    objects::quantity::Quantity,
};

/// Rules for one variable.
const VARIABLE: &[Rule] = &[
    ("name", Check::Required),
    ("name", Check::Text(check_variable_name)),
    ("", Check::AtMostOne(&["value", "valueFrom"])),
    ("valueFrom", Check::ExactlyOne(&["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef"])),
    ("valueFrom.configMapKeyRef|secretKeyRef.key", Check::Required),
    ("valueFrom.fieldRef.fieldPath", Check::Text(check_field)),
    ("valueFrom.resourceFieldRef", Check::Value(check_resource_field)),
];

/// Rules for the variables of a `ConfigMap` or Secret.
pub(super) const ENV_FROM: &[Rule] = &[("envFrom[]", Check::ExactlyOne(&["configMapRef", "secretRef"]))];

/// Fields of a pod that are available as variables.
const FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Resources of a container that are available, below `limits` and `requests`.
const RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// Prefix of the available resources of huge pages.
const HUGE_PAGES: &str = "hugepages-";

/// The units of memory and storage.
const UNITS: [&str; 13] = ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

/// Checks a list of variables.
pub(crate) fn check_variables<'a>(
    variables: impl IntoIterator<Item = &'a Value>,
    known_fields_only: bool,
    validator: &mut Validator<'_>,
) {
    for (index, variable) in variables.into_iter().enumerate() {
        check_fields(variable, VARIABLE, known_fields_only, &mut validator.at(index));
    }
}

/// Checks the name of a variable. Kubernetes before 1.32 allows fewer characters.
fn check_variable_name(name: &str, validator: &mut Validator<'_>) {
    if name.contains('=') {
        validator.report(format!("{name:?} contains '=', which is not allowed in the name of a variable"));
    } else if !name.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
        validator.report(format!("{name:?} is not the name of a variable: expected printable ASCII"));
    }
}

/// Checks the field of the pod that a variable contains.
fn check_field(path: &str, validator: &mut Validator<'_>) {
    let subscript = path.split_once("['").and_then(|(map, rest)| Some((map, rest.strip_suffix("']")?)));
    match subscript {
        Some(("metadata.labels", key)) => check_key(key, validator),
        Some(("metadata.annotations", key)) => check_annotation_key(key, validator),
        None if FIELDS.contains(&path) => {}
        _ => validator.report(format!(
            "{path:?} is not available: expected metadata.labels['KEY'], metadata.annotations['KEY'] or one of {}",
            FIELDS.join(", ")
        )),
    }
}

/// Checks a reference to a resource of a container, and the unit of its value.
fn check_resource_field(reference: &Value, validator: &mut Validator<'_>) {
    let text = |key: &str| reference.get(key).and_then(Value::as_str);
    let Some(resource) = text("resource") else { return };
    let name = resource.strip_prefix("limits.").or_else(|| resource.strip_prefix("requests."));
    let Some(name) = name.filter(|name| RESOURCES.contains(name) || name.starts_with(HUGE_PAGES)) else {
        let message = format!(
            "{resource:?} is not available: expected limits. or requests. and cpu, memory, \
                     ephemeral-storage or {HUGE_PAGES}SIZE"
        );
        validator.at("resource").report(message);
        return;
    };
    let units: &[&str] = if name == "cpu" { &["1m", "1"] } else { &UNITS };
    let Some(divisor) = text("divisor").and_then(Quantity::parse) else { return };
    let is_unit = |unit: &&str| Quantity::parse(unit) == Some(divisor);
    if divisor != Quantity::from_units(0) && !units.iter().any(is_unit) {
        validator
            .at("divisor")
            .report(format!("{divisor} is not a unit of {name}: expected one of {}", units.join(", ")));
    }
}
