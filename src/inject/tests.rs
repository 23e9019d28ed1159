//! What pods come to, on configurations and pods as users write them.

mod choice;
mod documented;
mod from_pod;
mod lxcfs;
mod passes;
mod peers;
mod properties;
mod sidecars;
mod small;
mod template_volumes;
mod whole_pod;

use serde_json::{Value, json};

use super::{Denial, Note, Reason, Surroundings, inject};
use crate::{
    config::{Config, Labels},
    json::Json,
    patch::Patch,
};

/// A configuration of these sections.
fn config(sections: &str) -> Config {
    let text = format!("apiVersion: etcd-guard.io/v1alpha1\n{sections}");
    Config::read(&text).unwrap_or_else(|mistakes| panic!("{mistakes:#?}"))
}

/// What became of a pod, with nothing borrowed.
#[derive(Debug)]
struct Injected {
    pod: Option<Value>,
    patch: Patch,
    notes: Vec<Note>,
}

// === impl Injected ===

impl Injected {
    fn of(pod: Json<'_>, surroundings: &Surroundings<'_>, config: &Config) -> Result<Self, Denial> {
        let injection = inject(pod, surroundings, config)?;
        let pod = injection.pod.as_ref().map(Value::from);
        Ok(Self { pod, patch: injection.patch, notes: injection.notes })
    }

    fn is_empty(&self) -> bool {
        self.patch.is_empty()
    }
}

fn inject_with(pod: &Value, namespace: &[(&str, &str)], config: &Config) -> Result<Injected, Denial> {
    inject_read(pod.into(), namespace, config)
}

fn inject_read(pod: Json<'_>, namespace: &[(&str, &str)], config: &Config) -> Result<Injected, Denial> {
    let labels: Labels = namespace.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    let surroundings =
        Surroundings { namespace: "prod", namespace_labels: Ok(&labels), native_sidecars: true };
    Injected::of(pod, &surroundings, config)
}

/// The pod after an injection, which must be all there after one pass.
#[track_caller]
fn injected(pod: &Value, namespace: &[(&str, &str)], config: &Config) -> (Value, Vec<Reason>) {
    let injection = inject_with(pod, namespace, config).unwrap();
    let after = injection.pod.unwrap_or_else(|| pod.clone());
    let second = inject_with(&after, namespace, config).unwrap();
    assert!(second.patch.is_empty(), "a second pass changes it: {:#?}", second.patch);
    (after, injection.notes.into_iter().map(|note| note.reason).collect())
}

/// A pod of one container with these annotations.
#[allow(clippy::needless_pass_by_value, reason = "callers write it in place")]
fn pod(annotations: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "web-", "annotations": annotations},
        "spec": {"containers": [{"name": "web", "image": "web:1"}]}
    })
}

/// A pod that asks for the files of lxcfs.
fn lxcfs_pod() -> Value {
    pod(json!({"sidecar-injector.lxcfs/inject": "true"}))
}

fn mount_paths(container: &Value) -> Vec<&str> {
    let mounts = container["volumeMounts"].as_array().map(Vec::as_slice).unwrap_or_default();
    mounts.iter().filter_map(|it| it["mountPath"].as_str()).collect()
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
        .iter()
        .filter_map(|it| it["name"].as_str())
        .collect()
}
