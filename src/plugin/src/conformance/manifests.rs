//! The etcd clusters of the suite, built from the example that the documentation recommends.

use anyhow::Context;
use serde_json::{Value, json};

/// The example.
const MANIFEST: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../etcd-manifests/plain.yaml"));

/// The name of the StatefulSet in the example, and the value of the label `app` of all its objects.
pub(super) const SET: &str = "etcd";

/// The user's choices for the etcd clusters.
pub(super) struct ClusterOptions<'a> {
    pub(super) image: Option<&'a str>,
    pub(super) storage_class: Option<&'a str>,
}

// === impl ClusterOptions ===

impl ClusterOptions<'_> {
    /// The objects of the example with these options.
    pub(super) fn objects(&self) -> anyhow::Result<Vec<Value>> {
        let mut objects: Vec<Value> =
            serde_saphyr::from_multiple(MANIFEST).context("etcd-manifests/plain.yaml")?;
        for set in objects.iter_mut().filter(|object| object["kind"] == "StatefulSet") {
            self.apply(set);
        }
        Ok(objects)
    }

    /// The objects of a cluster with one member, with another name and without a `PodDisruptionBudget`.
    pub(super) fn single_member_objects(&self, name: &str) -> anyhow::Result<Vec<Value>> {
        let mut objects = self.objects()?;
        objects.retain(|object| object["kind"] != "PodDisruptionBudget");
        for object in &mut objects {
            rename(object, name);
            if let Some(replicas) = object.pointer_mut("/spec/replicas") {
                *replicas = json!(1);
            }
        }
        Ok(objects)
    }

    /// Sets the options, and the strictest policies, so that the defaults of the server do not matter.
    fn apply(&self, set: &mut Value) {
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

/// Changes the name of an object of the example, and all references to the name.
fn rename(object: &mut Value, name: &str) {
    for pointer in [
        "/metadata/name",
        "/metadata/labels/app",
        "/spec/serviceName",
        "/spec/selector/app",
        "/spec/selector/matchLabels/app",
        "/spec/template/metadata/labels/app",
    ] {
        if let Some(reference) = object.pointer_mut(pointer) {
            *reference = json!(name);
        }
    }
    let command = object.pointer_mut("/spec/template/spec/containers/0/command");
    for argument in command.and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(text) = argument.as_str() else { continue };
        *argument = match text.split_once('=') {
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
