//! Injections with configurations and pods in the form that users write.

mod documented;
mod limits;
mod lxcfs;
mod mixed_versions;
mod overrides_and_transfers;
mod passes;
mod peers;
mod pod_settings;
mod properties;
mod selection;
mod sidecars;
mod template_volumes;
mod tolerations;

use json_patch::Patch;
use serde_json::{Value, json};

use super::{Denial, InjectionContext, Note, Reason, inject};
use crate::config::Config;
use etcd_guard_core::config::selector::Labels;

/// A configuration with these sections.
fn config(sections: &str) -> Config {
    let text = format!("apiVersion: etcd-guard.io/v1alpha1\n{sections}");
    Config::read(&text).unwrap_or_else(|diagnostics| panic!("{diagnostics:#?}"))
}

/// An owned result.
#[derive(Debug)]
struct Injected {
    pod: Option<Value>,
    patch: Patch,
    notes: Vec<Note>,
}

// === impl Injected ===

impl Injected {
    fn new(pod: Value, context: &InjectionContext<'_>, config: &Config) -> Result<Self, Denial> {
        let injection = inject(pod, context, config)?;
        Ok(Self { pod: injection.pod, patch: injection.patch, notes: injection.notes })
    }

    fn is_empty(&self) -> bool {
        self.patch.is_empty()
    }
}

fn inject_with(pod: &Value, namespace: &[(&str, &str)], config: &Config) -> Result<Injected, Denial> {
    let labels: Labels = namespace.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    let context =
        InjectionContext { namespace: "prod", namespace_labels: Ok(&labels), native_sidecars: true };
    Injected::new(pod.clone(), &context, config)
}

/// Returns the pod after an injection and its reasons; asserts that a second pass changes nothing.
#[track_caller]
fn injected(pod: &Value, namespace: &[(&str, &str)], config: &Config) -> (Value, Vec<Reason>) {
    let injection = inject_with(pod, namespace, config).unwrap();
    let after = injection.pod.unwrap_or_else(|| pod.clone());
    let second = inject_with(&after, namespace, config).unwrap();
    assert!(second.patch.is_empty(), "a second pass changes the pod: {:#?}", second.patch);
    (after, injection.notes.into_iter().map(|note| note.reason).collect())
}

/// A pod with one container and these annotations.
#[allow(clippy::needless_pass_by_value, reason = "callers write it in place")]
fn pod(annotations: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "web-", "annotations": annotations},
        "spec": {"containers": [{"name": "web", "image": "web:1"}]}
    })
}

/// A pod that requests the files of lxcfs.
fn lxcfs_pod() -> Value {
    pod(json!({"sidecar-injector.lxcfs/inject": "true"}))
}

fn mount_paths(container: &Value) -> Vec<&str> {
    let mounts = container["volumeMounts"].as_array().map(Vec::as_slice).unwrap_or_default();
    mounts.iter().filter_map(|mount| mount["mountPath"].as_str()).collect()
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
        .iter()
        .filter_map(|item| item["name"].as_str())
        .collect()
}
