//! Webhook configurations of this program by name, kept as JSON: what a newer apiserver knows more of stays in them.

use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::{Value, json};

use super::call::{CallError, call};

/// The name under which writes of this program stand in managed fields.
const FIELD_MANAGER: &str = "etcd-guard";

/// How the names of all entries of this program end.
const ENTRY_SUFFIX: &str = "etcd-guard.io";

/// Kind and name of a webhook configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigurationName {
    /// `ValidatingWebhookConfiguration` or `MutatingWebhookConfiguration`.
    pub kind: String,
    /// The object's name.
    pub name: String,
}

/// A webhook configuration as it was read.
#[derive(Clone, Debug)]
pub struct Configuration {
    name: ConfigurationName,
    object: DynamicObject,
}

/// Reads and writes webhook configurations.
#[derive(Clone)]
pub struct Configurations {
    client: Client,
}

// === impl Configurations ===

impl Configurations {
    /// With this client's identity.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// The configuration as it is stored now, or `None`.
    pub async fn read(&self, name: &ConfigurationName) -> Result<Option<Configuration>, CallError> {
        let object = call(&format!("reading {name}"), self.api(name).get_opt(&name.name)).await?;
        Ok(object.map(|object| Configuration { name: name.clone(), object }))
    }

    /// Writes a configuration if nobody wrote since it was read.
    pub async fn replace(&self, configuration: &Configuration) -> Result<(), CallError> {
        let name = &configuration.name;
        let parameters =
            PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let api = self.api(name);
        let write = api.replace(&name.name, &parameters, &configuration.object);
        call(&format!("writing {name}"), write).await?;
        Ok(())
    }

    /// Applies an object server-side; it may carry the resource version that it is to replace.
    pub async fn apply(&self, name: &ConfigurationName, object: &Value) -> Result<(), CallError> {
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let apply = Patch::Apply(object);
        call(&format!("applying {name}"), self.api(name).patch(&name.name, &parameters, &apply)).await?;
        Ok(())
    }

    /// Deletes a configuration; false where there was none.
    pub async fn delete(&self, name: &ConfigurationName) -> Result<bool, CallError> {
        let parameters = DeleteParams::default();
        match call(&format!("deleting {name}"), self.api(name).delete(&name.name, &parameters)).await {
            Ok(_) => Ok(true),
            Err(CallError::Conflict { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn api(&self, name: &ConfigurationName) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", &name.kind);
        Api::all_with(self.client.clone(), &ApiResource::from_gvk(&kind))
    }
}

// === impl Configuration ===

impl Configuration {
    /// Its resource version.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.object.metadata.resource_version.as_deref()
    }

    /// The `caBundle` of every entry, in base64 as it stands there; empty where an entry has none.
    #[must_use]
    pub fn bundles(&self) -> Vec<&str> {
        let entries = self.object.data.get("webhooks").and_then(Value::as_array);
        let bundles = entries.into_iter().flatten().map(|entry| entry.pointer("/clientConfig/caBundle"));
        bundles.map(|bundle| bundle.and_then(Value::as_str).unwrap_or_default()).collect()
    }

    /// The same with this `caBundle`, in base64, in every entry.
    #[must_use]
    pub fn with_bundle(mut self, bundle: &str) -> Self {
        set_bundle(&mut self.object.data, bundle);
        self
    }

    /// The same without those of this program's entries that `shipped` has no more; `None` if there are none.
    #[must_use]
    pub fn without_former(&self, shipped: &Value) -> Option<Self> {
        let names: Vec<_> = entry_names(shipped).collect();
        let is_former = |name: &str| name.ends_with(ENTRY_SUFFIX) && !names.contains(&name);
        if !entry_names(&self.object.data).any(is_former) {
            return None;
        }
        let mut rest = self.clone();
        if let Some(entries) = rest.object.data.get_mut("webhooks").and_then(Value::as_array_mut) {
            entries.retain(|entry| !entry.get("name").and_then(Value::as_str).is_some_and(is_former));
        }
        Some(rest)
    }
}

fn entry_names(configuration: &Value) -> impl Iterator<Item = &str> {
    let entries = configuration.get("webhooks").and_then(Value::as_array);
    entries.into_iter().flatten().filter_map(|entry| entry.get("name")?.as_str())
}

/// Puts this `caBundle`, in base64, into every entry of a configuration.
pub fn set_bundle(configuration: &mut Value, bundle: &str) {
    let entries = configuration.get_mut("webhooks").and_then(Value::as_array_mut);
    for entry in entries.into_iter().flatten() {
        if let Some(client) = entry.get_mut("clientConfig").and_then(Value::as_object_mut) {
            client.insert(String::from("caBundle"), json!(bundle));
        }
    }
}

// === impl ConfigurationName ===

impl std::fmt::Display for ConfigurationName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} {}", self.kind, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_is_no_longer_shipped_goes_and_one_of_somebody_else_stays() {
        let kind = "ValidatingWebhookConfiguration";
        let entries = |names: &[&str]| {
            let entries: Vec<_> = names.iter().map(|it| json!({"name": it})).collect();
            json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {}, "webhooks": entries})
        };
        let there = entries(&["guard.etcd-guard.io", "former.guard.etcd-guard.io", "mine.example.com"]);
        let there = Configuration {
            name: ConfigurationName { kind: kind.to_owned(), name: String::from("etcd-guard") },
            object: serde_json::from_value(there).unwrap(),
        };
        let shipped = entries(&["guard.etcd-guard.io", "new.guard.etcd-guard.io"]);
        let rest = there.without_former(&shipped).unwrap();
        let names: Vec<_> = entry_names(&rest.object.data).collect();
        assert_eq!(names, ["guard.etcd-guard.io", "mine.example.com"]);
        assert!(rest.without_former(&shipped).is_none());
    }
}
