//! The webhooks of other products that take part in the deletions of members, or without which the guard cannot work.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt};
use serde_json::Value;

use super::etcd::EtcdSets;
use crate::doctor::{
    reader::{Reader, Right, Unread, elements, text},
    report::{Finding, Line, State},
    webhooks::{GuardedNamespace, covers, rules},
};
use etcd_guard_cli::registration::shipped_configurations;

/// The requests of the guard, and of the Deployment for the guard, that a webhook can refuse.
const OWN_REQUESTS: [(&str, &str); 2] = [
    ("CREATE /v1/pods Namespaced", "no replica of the guard starts"),
    ("UPDATE coordination.k8s.io/v1/leases Namespaced", "the guard refuses all deletions"),
];

/// The label of the guard's pods.
const OWN_LABEL: (&str, &str) = ("app.kubernetes.io/name", "etcd-guard");

/// Returns the line about webhooks of others. `namespaces` are all namespaces, as far as they could be read.
pub(super) async fn line(
    reader: &Reader,
    etcd: &EtcdSets,
    namespaces: &[GuardedNamespace],
    guard_namespace: &str,
) -> Line {
    let entries = match others(reader).await {
        Ok(entries) => entries,
        Err(unread) => return Line::not_checked("other-webhooks", &unread),
    };
    let own = own_namespace(namespaces, guard_namespace);
    let mut findings: Vec<Finding> = Vec::new();
    for (name, entry) in &entries {
        let condition = if elements(entry, "/matchConditions").next().is_some() {
            ", unless its matchConditions exclude them"
        } else {
            ""
        };
        let mut found: Vec<&str> = namespaces
            .iter()
            .filter(|namespace| {
                etcd.iter().any(|set| set.namespace == namespace.name && takes_part(entry, &set.labels))
            })
            .filter(|namespace| namespace.is_selected_by(entry))
            .map(|namespace| namespace.name.as_str())
            .collect();
        found.sort_unstable();
        if !found.is_empty() {
            findings.push((State::Warning, format!(
                "{name} takes part in deletions or evictions of etcd pods in {}{condition}: if it refuses or delays one that \
                 the guard approved, the other members wait for a minute",
                found.join(", ")
            )));
        }
        // The API server's default is Fail.
        if text(entry, "/failurePolicy") != Some("Ignore") && own.is_selected_by(entry) {
            let present = rules(entry);
            for (request, effect) in OWN_REQUESTS {
                let labels =
                    BTreeMap::from([OWN_LABEL].map(|(key, value)| (key.to_owned(), value.to_owned())));
                let is_selected =
                    !request.contains("pods") && selects(entry, &BTreeMap::new()) || selects(entry, &labels);
                if is_selected && present.iter().any(|rule| covers(rule, request)) {
                    let text = format!("while {name} does not respond, {effect}{condition}");
                    findings.push((State::Warning, text));
                }
            }
        }
    }
    let message =
        format!("no other webhook takes part in deletions of etcd pods (webhooks: {})", entries.len());
    let remedy = format!(
        "exclude these namespaces in its namespaceSelector if you can: {} get \
         validatingwebhookconfigurations,mutatingwebhookconfigurations",
        reader.kubectl()
    );
    Line::from_findings("other-webhooks", "", &message, &findings, remedy)
}

/// Returns the entries of all configurations that are not the guard's, each with a name for users.
async fn others(reader: &Reader) -> Result<Vec<(String, Value)>, Unread> {
    let shipped = shipped_configurations();
    let mut entries = Vec::new();
    for (kind, plural, resource) in [
        (
            "ValidatingWebhookConfiguration",
            "validatingwebhookconfigurations",
            "validatingwebhookconfigurations.admissionregistration.k8s.io",
        ),
        (
            "MutatingWebhookConfiguration",
            "mutatingwebhookconfigurations",
            "mutatingwebhookconfigurations.admissionregistration.k8s.io",
        ),
    ] {
        let right = Right { verb: "list", resource, namespace: None };
        for object in reader.list(&format!("{}/{plural}", super::ADMISSION), right).await? {
            let name = text(&object, "/metadata/name").unwrap_or_default();
            if shipped.iter().any(|own| own.kind == kind && own.name == name) {
                continue;
            }
            for entry in elements(&object, "/webhooks") {
                let entry_name = text(entry, "/name").unwrap_or_default();
                entries.push((format!("{kind} {name} ({entry_name})"), entry.clone()));
            }
        }
    }
    Ok(entries)
}

/// Returns the namespace of the guard, as it is or as the manifests create it.
fn own_namespace(namespaces: &[GuardedNamespace], name: &str) -> GuardedNamespace {
    let existing = namespaces.iter().find(|namespace| namespace.name == name).cloned();
    existing.unwrap_or_else(|| {
        let labels = [
            ("kubernetes.io/metadata.name", name),
            (OWN_LABEL.0, OWN_LABEL.1),
            ("pod-security.kubernetes.io/enforce", "restricted"),
        ];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        GuardedNamespace { name: name.to_owned(), labels }
    })
}

/// Whether the API server calls an entry for the deletion of a pod with these labels, or for its eviction. An Eviction has no
/// labels.
fn takes_part(entry: &Value, labels: &BTreeMap<String, String>) -> bool {
    let present = rules(entry);
    let is_called = |request: &str, labels: &BTreeMap<String, String>| {
        present.iter().any(|rule| covers(rule, request)) && selects(entry, labels)
    };
    is_called("DELETE /v1/pods Namespaced", labels)
        || is_called("CREATE /v1/pods/eviction Namespaced", &BTreeMap::new())
}

/// Whether the objectSelector of an entry selects an object with these labels.
fn selects(entry: &Value, labels: &BTreeMap<String, String>) -> bool {
    let selector = entry.get("objectSelector").cloned().unwrap_or_default();
    let selector: Option<LabelSelector> = serde_json::from_value(selector).ok();
    let selector = selector.map_or_else(|| Ok(Selector::default()), Selector::try_from);
    selector.is_ok_and(|selector| selector.matches(labels))
}
