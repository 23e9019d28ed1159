//! Affinity, and the resolution of names.

use std::net::IpAddr;

use serde_json::Value;

use super::fields::{Check, Rule, check_fields, is_empty};
use crate::config::pod_parts::text;
use etcd_guard_core::config::{diagnostic::Validator, syntax::is_dns_subdomain};

const AFFINITY: &[Rule] = &[
    ("nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms", Check::Required),
    (
        "nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[].matchExpressions[]",
        Check::Value(check_node_label),
    ),
    (
        "nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[].matchFields[].key",
        Check::OneOf(&["metadata.name"]),
    ),
    (
        "nodeAffinity|podAffinity|podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[].weight",
        Check::Range(1, 100),
    ),
    (
        "podAffinity|podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[].topologyKey",
        Check::Required,
    ),
    (
        "podAffinity|podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[].labelSelector.matchExpressions[]",
        Check::Value(check_pod_label),
    ),
];

const DNS: &[Rule] =
    &[("nameservers[]", Check::Text(check_address)), ("searches[]", Check::Text(check_search_domain))];

const HOST_ALIAS: &[Rule] =
    &[("ip", Check::Text(check_address)), ("hostnames[]", Check::Text(check_host_name))];

/// Checks an affinity.
pub(crate) fn check_affinity(affinity: &Value, known_fields_only: bool, validator: &mut Validator<'_>) {
    check_fields(affinity, AFFINITY, known_fields_only, validator);
}

/// Checks the settings of name resolution.
pub(crate) fn check_name_resolution(dns: Option<&Value>, aliases: &[Value], validator: &mut Validator<'_>) {
    for (index, alias) in aliases.iter().enumerate() {
        check_fields(alias, HOST_ALIAS, true, &mut validator.at("hostAliases").at(index));
    }
    let Some(dns) = dns else { return };
    check_fields(dns, DNS, true, &mut validator.at("dnsConfig"));
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
    check_values(condition, &["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"], validator);
}

fn check_pod_label(condition: &Value, validator: &mut Validator<'_>) {
    check_values(condition, &["In", "NotIn", "Exists", "DoesNotExist"], validator);
}

/// Checks the operator of a condition, and whether it has values.
fn check_values(condition: &Value, operators: &[&str], validator: &mut Validator<'_>) {
    let Some(operator) = text(condition, "operator") else { return };
    let has_values = condition.get("values").is_some_and(|values| !is_empty(values));
    match operator {
        _ if !operators.contains(&operator) => {
            let message = format!("unknown value {operator:?}: expected one of {}", operators.join(", "));
            validator.at("operator").report(message);
        }
        "In" | "NotIn" if !has_values => {
            validator.at("values").report(format!("is missing: operator {operator} requires it"));
        }
        "Exists" | "DoesNotExist" if has_values => {
            validator.at("values").report(format!("is not allowed for operator {operator}"));
        }
        _ => {}
    }
}
