//! Templates that an API server rejects in every pod are errors of the file. tests/mutate/templates.rs creates pods from
//! the same tables.

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::Config;
use crate::config::pod::security_level::PodSecurityLevel;
use etcd_guard_core::config::diagnostic::Diagnostic;

#[derive(Deserialize)]
struct Entry {
    name: String,
    #[serde(default)]
    path: String,
    #[serde(default)]
    level: PodSecurityLevel,
    template: Value,
}

fn entries(text: &str) -> Vec<Entry> {
    serde_saphyr::from_str(text).unwrap()
}

fn diagnostics(mut template: Value) -> Vec<Diagnostic> {
    template["name"] = json!("t");
    let config = json!({"apiVersion": "etcd-guard.io/v1alpha1", "sidecars": {"templates": [template]}});
    Config::read(&config.to_string()).err().unwrap_or_default()
}

#[test]
fn rejects_each_template_that_an_api_server_rejects() {
    let entries =
        entries(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/templates/bad.yaml")));
    assert!(entries.len() >= 90);
    let wrong: Vec<_> = entries
        .into_iter()
        .filter_map(|Entry { name, path, template, .. }| {
            let found = diagnostics(template);
            let expected = format!("sidecars.templates[0].{path}");
            let is_reported = matches!(&found[..], [diagnostic] if diagnostic.path == expected);
            (!is_reported).then(|| format!("{name}: {expected}: {found:#?}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn accepts_templates_that_an_api_server_accepts() {
    for Entry { name, template, .. } in
        entries(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/templates/good.yaml")))
    {
        assert_eq!(diagnostics(template), [], "{name}");
    }
}

#[test]
fn accepts_later_constants_if_unknown_fields_are_allowed() {
    let container =
        json!({"name": "c", "image": "i", "imagePullPolicy": "Later", "livenessProbe": {"later": {}}});
    assert_eq!(diagnostics(json!({"containers": [container], "allowUnknownFields": true})), []);
    assert_eq!(diagnostics(json!({"containers": [container]})).len(), 3);
}

/// `tests/mutate/pod_security.rs` creates pods from the same table.
#[test]
fn computes_pod_security_level_of_each_template() {
    let levels = [PodSecurityLevel::Restricted, PodSecurityLevel::Baseline, PodSecurityLevel::Privileged];
    for Entry { name, level, mut template, .. } in entries(include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/data/templates/pod_security.yaml"
    ))) {
        template["name"] = json!("t");
        let config = json!({"apiVersion": "etcd-guard.io/v1alpha1", "sidecars": {"templates": [template]}});
        let config = Config::read(&config.to_string()).unwrap();
        let template = &config.sidecars.templates[0];
        let is_set = |field: &str| {
            template.security_context.as_ref().is_some_and(|context| context.get(field).is_some())
        };
        let strictest =
            levels.into_iter().find(|level| template.pod_security.violation(*level, is_set).is_none());
        assert_eq!(strictest, Some(level), "{name}: {:?}", template.pod_security);
    }
}

#[test]
fn container_inherits_security_context_of_pod() {
    let context = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    let template =
        json!({"name": "t", "containers": [{"name": "c", "image": "i", "securityContext": context}]});
    let config = json!({"apiVersion": "etcd-guard.io/v1alpha1", "sidecars": {"templates": [template]}});
    let config = Config::read(&config.to_string()).unwrap();
    let security = &config.sidecars.templates[0].pod_security;
    let violation =
        |set: &[&str]| security.violation(PodSecurityLevel::Restricted, |field| set.contains(&field));
    assert_eq!(violation(&["runAsNonRoot", "seccompProfile"]), None);
    assert_eq!(violation(&["seccompProfile"]).as_deref(), Some("containers without runAsNonRoot"));
    assert_eq!(violation(&["runAsNonRoot"]).as_deref(), Some("containers without seccompProfile"));
}
