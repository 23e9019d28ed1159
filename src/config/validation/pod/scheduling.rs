//! Affinity, and the resolution of names.

use std::net::IpAddr;

use serde_json::Value;

use super::fields::{Check, Rule, check_fields, is_empty};
use crate::{
    config::validation::{
        diagnostic::Validator,
        pod_parts::{MAX_NAME_SERVERS, MAX_SEARCH_DOMAINS, items, text},
        syntax::{check_key, check_label_value, check_name, is_dns_subdomain},
    },
    json::SharedJson,
};

/// Maximum length of all search domains together, with separators.
const MAX_SEARCH_LENGTH: usize = 2048;

const AFFINITY: &[Rule] = &[
    ("nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms", Check::Required),
    (
        "nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[].matchExpressions[]",
        Check::Value(check_node_label),
    ),
    (
        "nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[].matchFields[]",
        Check::Value(check_node_field),
    ),
    ("nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[].weight", Check::Range(1, 100)),
    (
        "nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[].preference.matchExpressions[]",
        Check::Value(check_preferred_node_label),
    ),
    (
        "nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[].preference.matchFields[]",
        Check::Value(check_node_field),
    ),
    (
        "podAffinity|podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[]",
        Check::Value(check_pod_term),
    ),
    (
        "podAffinity|podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[].weight",
        Check::Range(1, 100),
    ),
    (
        "podAffinity|podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[].podAffinityTerm",
        Check::Value(check_pod_term),
    ),
];

const POD_TERM: &[Rule] = &[
    ("topologyKey", Check::Required),
    ("topologyKey", Check::Text(check_key)),
    ("namespaces[]", Check::Text(check_name)),
    ("labelSelector|namespaceSelector.matchLabels", Check::Value(check_labels)),
    ("labelSelector|namespaceSelector.matchExpressions[]", Check::Value(check_pod_label)),
];

const DNS: &[Rule] = &[
    ("nameservers[]", Check::Text(check_address)),
    ("searches[]", Check::Text(check_search_domain)),
    ("options[].name", Check::Required),
];

const HOST_ALIAS: &[Rule] = &[
    ("ip", Check::Required),
    ("ip", Check::Text(check_address)),
    ("hostnames[]", Check::Text(check_host_name)),
];

/// Checks an affinity.
pub(in crate::config) fn check_affinity(
    affinity: &Value,
    known_fields_only: bool,
    validator: &mut Validator<'_>,
) {
    check_fields(affinity, AFFINITY, known_fields_only, validator);
}

/// Checks the settings of name resolution.
pub(in crate::config) fn check_name_resolution(
    dns: Option<&Value>,
    aliases: &[SharedJson],
    validator: &mut Validator<'_>,
) {
    for (index, alias) in aliases.iter().map(SharedJson::value).enumerate() {
        check_fields(alias, HOST_ALIAS, true, &mut validator.at("hostAliases").at(index));
    }
    let Some(dns) = dns else { return };
    let mut validator = validator.at("dnsConfig");
    check_fields(dns, DNS, true, &mut validator);
    for (key, max) in [("nameservers", MAX_NAME_SERVERS), ("searches", MAX_SEARCH_DOMAINS)] {
        if items(dns, key).len() > max {
            validator.at(key).report(format!("has more than {max} items, the maximum of a pod"));
        }
    }
    let lengths = items(dns, "searches").iter().filter_map(Value::as_str).map(|domain| domain.len() + 1);
    if lengths.sum::<usize>() > MAX_SEARCH_LENGTH + 1 {
        let message = format!("has more than {MAX_SEARCH_LENGTH} characters, the maximum of a pod");
        validator.at("searches").report(message);
    }
}

fn check_address(text: &str, validator: &mut Validator<'_>) {
    if text.parse::<IpAddr>().is_err() {
        validator.report(format!("{text:?} is not an IP address"));
    }
}

fn check_host_name(name: &str, validator: &mut Validator<'_>) {
    if !is_dns_subdomain(name) {
        validator.report(format!("{name:?} is not a host name"));
    }
}

/// Checks a search domain. Underscores and the root are allowed since Kubernetes 1.32.
fn check_search_domain(domain: &str, validator: &mut Validator<'_>) {
    let name = domain.strip_suffix('.').unwrap_or(domain).replace('_', "a");
    if domain != "." && !is_dns_subdomain(&name) {
        validator.report(format!("{domain:?} is not a domain"));
    }
}

fn check_node_label(condition: &Value, validator: &mut Validator<'_>) {
    check_preferred_node_label(condition, validator);
    for (index, value) in items(condition, "values").iter().enumerate() {
        if let Some(value) = value.as_str() {
            check_label_value(value, &mut validator.at("values").at(index));
        }
    }
}

/// Checks a condition on a label of a node. The API server does not check the values of a preference.
fn check_preferred_node_label(condition: &Value, validator: &mut Validator<'_>) {
    check_label_key(condition, validator);
    check_values(condition, &["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"], validator);
}

fn check_pod_label(condition: &Value, validator: &mut Validator<'_>) {
    check_label_key(condition, validator);
    check_values(condition, &["In", "NotIn", "Exists", "DoesNotExist"], validator);
    for (index, value) in items(condition, "values").iter().enumerate() {
        if let Some(value) = value.as_str() {
            check_label_value(value, &mut validator.at("values").at(index));
        }
    }
}

fn check_label_key(condition: &Value, validator: &mut Validator<'_>) {
    if let Some(key) = condition.as_object().and_then(|_| text(condition, "key")) {
        check_key(key, &mut validator.at("key"));
    }
}

/// Checks a condition on a field of a node, of which there is one.
fn check_node_field(condition: &Value, validator: &mut Validator<'_>) {
    if let Some(key) = text(condition, "key").filter(|key| *key != "metadata.name") {
        validator.at("key").report(format!("{key:?} is not a field of nodes: expected metadata.name"));
    }
    check_values(condition, &["In", "NotIn"], validator);
    if items(condition, "values").len() > 1 {
        validator.at("values").report("has more than one value");
    }
}

/// Checks the operator of a condition, and the number of its values.
fn check_values(condition: &Value, operators: &[&str], validator: &mut Validator<'_>) {
    let Some(operator) = text(condition, "operator") else { return };
    let values = condition
        .get("values")
        .map_or(0, |values| if is_empty(values) { 0 } else { values.as_array().map_or(1, Vec::len) });
    match operator {
        _ if !operators.contains(&operator) => {
            let message = format!("unknown value {operator:?}: expected one of {}", operators.join(", "));
            validator.at("operator").report(message);
        }
        "In" | "NotIn" if values == 0 => {
            validator.at("values").report(format!("is missing: operator {operator} requires it"));
        }
        "Exists" | "DoesNotExist" if values > 0 => {
            validator.at("values").report(format!("is not allowed for operator {operator}"));
        }
        "Gt" | "Lt" if values != 1 => {
            validator.at("values").report(format!("must have one value for operator {operator}"));
        }
        _ => {}
    }
}

fn check_pod_term(term: &Value, validator: &mut Validator<'_>) {
    check_fields(term, POD_TERM, true, validator);
}

fn check_labels(labels: &Value, validator: &mut Validator<'_>) {
    for (key, value) in labels.as_object().into_iter().flatten() {
        let mut validator = validator.at(json_patch::jsonptr::Token::new(key).into_owned());
        check_key(key, &mut validator);
        if let Some(value) = value.as_str() {
            check_label_value(value, &mut validator);
        }
    }
}
