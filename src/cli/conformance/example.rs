//! The etcd clusters that are started: those of the example that users are told to apply.

use anyhow::Context;
use serde_json::{Value, json};

/// The example.
const MANIFEST: &str = include_str!("../../../etcd-manifests/plain.yaml");

/// Its StatefulSet, and the value of the label `app` on all that belongs to it.
pub(super) const SET: &str = "etcd";

/// How a cluster is to be.
pub(super) struct Wanted<'a> {
    pub(super) image: Option<&'a str>,
    pub(super) storage_class: Option<&'a str>,
}

// === impl Wanted ===

impl Wanted<'_> {
    /// The example, as it is wanted.
    pub(super) fn objects(&self) -> anyhow::Result<Vec<Value>> {
        let mut objects: Vec<Value> =
            serde_saphyr::from_multiple(MANIFEST).context("etcd-manifests/plain.yaml")?;
        for set in objects.iter_mut().filter(|it| it["kind"] == "StatefulSet") {
            self.adapt(set);
        }
        Ok(objects)
    }

    /// The same with one member, under another name and without a budget.
    pub(super) fn single(&self, name: &str) -> anyhow::Result<Vec<Value>> {
        let mut objects = self.objects()?;
        objects.retain(|it| it["kind"] != "PodDisruptionBudget");
        for object in &mut objects {
            rename(object, name);
            if let Some(replicas) = object.pointer_mut("/spec/replicas") {
                *replicas = json!(1);
            }
        }
        Ok(objects)
    }

    /// Under policies that the server's own may not weaken.
    fn adapt(&self, set: &mut Value) {
        if let Some(metadata) = set.get_mut("metadata").and_then(Value::as_object_mut) {
            let policies = json!({
                "etcd-guard.io/leader": "deny",
                "etcd-guard.io/mode": "enforce",
                "etcd-guard.io/single-member": "deny",
                "etcd-guard.io/ephemeral-data": "deny",
            });
            metadata.insert("annotations".to_owned(), policies);
        }
        if let Some(container) = set.pointer_mut("/spec/template/spec/containers/0")
            && let Some(image) = self.image
        {
            container["image"] = json!(image);
        }
        if let Some(claim) = set.pointer_mut("/spec/volumeClaimTemplates/0/spec")
            && let Some(class) = self.storage_class
        {
            claim["storageClassName"] = json!(class);
        }
    }
}

/// Gives an object of the example another name, and all that leads to it.
fn rename(object: &mut Value, name: &str) {
    for pointer in [
        "/metadata/name",
        "/metadata/labels/app",
        "/spec/serviceName",
        "/spec/selector/app",
        "/spec/selector/matchLabels/app",
        "/spec/template/metadata/labels/app",
    ] {
        if let Some(it) = object.pointer_mut(pointer) {
            *it = json!(name);
        }
    }
    let command = object.pointer_mut("/spec/template/spec/containers/0/command");
    for word in command.and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(text) = word.as_str() else { continue };
        *word = match text.split_once('=') {
            Some(("--initial-cluster", _)) => {
                json!(format!("--initial-cluster={name}-0=http://{name}-0.{name}.$(NAMESPACE).svc:2380"))
            }
            Some(("--initial-cluster-token", _)) => {
                json!(format!("--initial-cluster-token=$(NAMESPACE)-{name}"))
            }
            _ => json!(text.replace(&format!(".{SET}.$(NAMESPACE)"), &format!(".{name}.$(NAMESPACE)"))),
        };
    }
}
