//! Webhook configurations of this program, as untyped JSON, so that a write preserves fields of newer Kubernetes
//! releases.

use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::Value;

use etcd_guard_cli::registration::{ConfigurationName, set_ca_bundle};
use etcd_guard_kubernetes::{
    call::{call, delete},
    error::CallError,
};

/// The field manager of this program's writes.
const FIELD_MANAGER: &str = "etcd-guard";

/// Suffix of the names of all webhooks of this program.
const ENTRY_SUFFIX: &str = "etcd-guard.io";

/// Maximum number of attempts to delete a configuration. A conflict comes from a concurrent write, and the guard's replicas
/// write a configuration at most every few seconds.
const MAX_DELETE_ATTEMPTS: usize = 3;

/// A stored webhook configuration.
#[derive(Clone, Debug)]
pub(crate) struct Configuration {
    name: ConfigurationName,
    object: DynamicObject,
}

/// Reads and writes webhook configurations.
#[derive(Clone)]
pub(crate) struct Configurations {
    client: Client,
}

// === impl Configurations ===

impl Configurations {
    /// Creates a handle that calls the API server through this client.
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Returns the stored configuration, or `None` if it does not exist.
    pub(crate) async fn read(&self, name: &ConfigurationName) -> Result<Option<Configuration>, CallError> {
        let object = call(&format!("reading {name}"), self.api(name).get_opt(&name.name)).await?;
        Ok(object.map(|object| Configuration { name: name.clone(), object }))
    }

    /// Writes a configuration if it is unchanged since it was read.
    pub(crate) async fn replace(&self, configuration: &Configuration) -> Result<(), CallError> {
        let name = &configuration.name;
        let parameters =
            PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let api = self.api(name);
        let write = api.replace(&name.name, &parameters, &configuration.object);
        call(&format!("writing {name}"), write).await?;
        Ok(())
    }

    /// Applies an object server-side. If the object has a resource version, a concurrent change is a conflict.
    pub(crate) async fn apply(&self, name: &ConfigurationName, object: &Value) -> Result<(), CallError> {
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let apply = Patch::Apply(object);
        call(&format!("applying {name}"), self.api(name).patch(&name.name, &parameters, &apply)).await?;
        Ok(())
    }

    /// Deletes a configuration; false if it does not exist. After a conflict, the deletion is repeated.
    pub(crate) async fn delete(&self, name: &ConfigurationName) -> Result<bool, CallError> {
        let (operation, parameters) = (format!("deleting {name}"), DeleteParams::default());
        let api = self.api(name);
        let mut attempts = 1;
        loop {
            match delete(&operation, api.delete(&name.name, &parameters)).await {
                Err(CallError::Conflict { .. }) if attempts < MAX_DELETE_ATTEMPTS => attempts += 1,
                result => return result,
            }
        }
    }

    fn api(&self, name: &ConfigurationName) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", &name.kind);
        Api::all_with(self.client.clone(), &ApiResource::from_gvk(&kind))
    }
}

// === impl Configuration ===

impl Configuration {
    /// The resource version.
    pub(crate) fn version(&self) -> Option<&str> {
        self.object.metadata.resource_version.as_deref()
    }

    /// The `caBundle` of every webhook, in base64; empty if it is absent.
    pub(crate) fn ca_bundles(&self) -> Vec<&str> {
        let entries = self.object.data.get("webhooks").and_then(Value::as_array);
        let bundles = entries.into_iter().flatten().map(|entry| entry.pointer("/clientConfig/caBundle"));
        bundles.map(|bundle| bundle.and_then(Value::as_str).unwrap_or_default()).collect()
    }

    /// Returns the configuration with this `caBundle` (base64) in every webhook.
    pub(crate) fn with_ca_bundle(mut self, bundle: &str) -> Self {
        set_ca_bundle(&mut self.object.data, bundle);
        self
    }

    /// Returns the configuration without this program's webhooks that `shipped` does not contain; `None` if there are
    /// no such webhooks.
    pub(crate) fn without_obsolete_entries(&self, shipped: &Value) -> Option<Self> {
        let names: Vec<_> = entry_names(shipped).collect();
        let is_obsolete = |name: &str| name.ends_with(ENTRY_SUFFIX) && !names.contains(&name);
        if !entry_names(&self.object.data).any(is_obsolete) {
            return None;
        }
        let mut remaining = self.clone();
        if let Some(entries) = remaining.object.data.get_mut("webhooks").and_then(Value::as_array_mut) {
            entries.retain(|entry| !entry.get("name").and_then(Value::as_str).is_some_and(is_obsolete));
        }
        Some(remaining)
    }
}

fn entry_names(configuration: &Value) -> impl Iterator<Item = &str> {
    let entries = configuration.get("webhooks").and_then(Value::as_array);
    entries.into_iter().flatten().filter_map(|entry| entry.get("name")?.as_str())
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use serde_json::json;

    use super::*;
    use etcd_guard_kubernetes::fake;

    /// Deletes a configuration; the first deletions have these statuses. Returns the result and the number of calls.
    async fn delete_after(statuses: &'static [u16]) -> (Result<bool, String>, usize) {
        let calls = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&calls);
        let client = fake::api_server_with(move |call, _| {
            assert_eq!(call.method, http::Method::DELETE);
            let status = statuses.get(counter.fetch_add(1, Ordering::Relaxed)).copied().unwrap_or(200);
            let success = json!({"kind": "Status", "apiVersion": "v1", "status": "Success"});
            (status, if status == 200 { success } else { fake::status_failure(status, "no") })
        });
        let name = ConfigurationName {
            kind: String::from("ValidatingWebhookConfiguration"),
            name: String::from("etcd-guard"),
        };
        let result = Configurations::new(client).delete(&name).await;
        (result.map_err(|error| error.to_string()), calls.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn repeats_conflicting_deletion_and_reports_absence() {
        assert_eq!(delete_after(&[404]).await, (Ok(false), 1));
        assert_eq!(delete_after(&[409]).await, (Ok(true), 2));
        assert_eq!(delete_after(&[409, 404]).await, (Ok(false), 2));
        let (result, calls) = delete_after(&[409, 409, 409]).await;
        assert_eq!(calls, MAX_DELETE_ATTEMPTS);
        assert!(result.unwrap_err().contains("deleting ValidatingWebhookConfiguration etcd-guard"));
    }

    #[test]
    fn removes_obsolete_webhooks_and_preserves_foreign_ones() {
        let kind = "ValidatingWebhookConfiguration";
        let entries = |names: &[&str]| {
            let entries: Vec<_> = names.iter().map(|name| json!({"name": name})).collect();
            json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {}, "webhooks": entries})
        };
        let stored = entries(&["guard.etcd-guard.io", "former.guard.etcd-guard.io", "mine.example.com"]);
        let stored = Configuration {
            name: ConfigurationName { kind: kind.to_owned(), name: String::from("etcd-guard") },
            object: serde_json::from_value(stored).unwrap(),
        };
        let shipped = entries(&["guard.etcd-guard.io", "new.guard.etcd-guard.io"]);
        let remaining = stored.without_obsolete_entries(&shipped).unwrap();
        let names: Vec<_> = entry_names(&remaining.object.data).collect();
        assert_eq!(names, ["guard.etcd-guard.io", "mine.example.com"]);
        assert!(remaining.without_obsolete_entries(&shipped).is_none());
    }
}
