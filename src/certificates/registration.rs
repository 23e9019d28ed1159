//! The webhook configurations that this program ships with, for a server that applies them itself.

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::k8s::webhooks::{ConfigurationName, set_bundle};

/// What can be registered: each is one webhook configuration, from the files that are shipped for `kubectl`, so that there
/// is one source for all ways of installing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Deletions and evictions of etcd's pods, and what they follow from.
    Guard,
    /// lxcfs files, sidecars and tolerations for new pods.
    Inject,
    /// Over-commit on nodes' status.
    Nodes,
    /// Words that pods' names must not contain.
    Rules,
}

/// The namespace that the shipped files name.
const SHIPPED_NAMESPACE: &str = "etcd-guard";

/// How the server registers itself.
#[derive(Clone, Debug)]
pub struct Registration {
    /// The namespace of the Service; it is never guarded itself.
    pub namespace: String,
    /// What is registered.
    pub parts: Vec<Part>,
    /// `https://HOST:PORT` of a server that is behind no Service.
    pub url: Option<String>,
}

/// The names of the shipped configurations.
#[must_use]
pub fn own_configurations() -> Vec<ConfigurationName> {
    Part::value_variants().iter().filter_map(|part| name_of(&part.shipped()?)).collect()
}

fn name_of(object: &Value) -> Option<ConfigurationName> {
    let text = |pointer: &str| Some(object.pointer(pointer)?.as_str()?.to_owned());
    Some(ConfigurationName { kind: text("/kind")?, name: text("/metadata/name")? })
}

// === impl Part ===

impl Part {
    /// Whether its configuration is called this.
    #[must_use]
    pub fn is_named(self, name: &ConfigurationName) -> bool {
        self.shipped().and_then(|it| name_of(&it)).as_ref() == Some(name)
    }

    /// The configuration as it is shipped. It is part of the program, and a test reads all of them.
    fn shipped(self) -> Option<Value> {
        let text = match self {
            Self::Guard => include_str!("../../deploy/base/webhooks.yaml"),
            Self::Inject => include_str!("../../deploy/components/inject/webhook.yaml"),
            Self::Nodes => include_str!("../../deploy/components/over-commit/webhook.yaml"),
            Self::Rules => include_str!("../../deploy/components/pod-names/webhook.yaml"),
        };
        serde_saphyr::from_str(text).ok()
    }
}

// === impl Registration ===

impl Registration {
    /// The names of what is registered.
    pub fn names(&self) -> impl Iterator<Item = ConfigurationName> {
        self.parts.iter().filter_map(|part| name_of(&part.shipped()?))
    }

    /// The object to apply under this name, with this `caBundle`; `version` is the one that it may replace. `None` where
    /// that name is not registered.
    #[must_use]
    pub fn object(&self, name: &ConfigurationName, bundle: &str, version: Option<&str>) -> Option<Value> {
        let shipped = self.parts.iter().filter_map(|part| part.shipped());
        let mut object = shipped.into_iter().find(|it| name_of(it).as_ref() == Some(name))?;
        for entry in object.get_mut("webhooks").and_then(Value::as_array_mut).into_iter().flatten() {
            self.localize(entry);
        }
        set_bundle(&mut object, bundle);
        if let (Some(version), Some(metadata)) =
            (version, object.get_mut("metadata").and_then(Value::as_object_mut))
        {
            metadata.insert(String::from("resourceVersion"), json!(version));
        }
        Some(object)
    }

    /// Leads an entry to this server.
    fn localize(&self, entry: &mut Value) {
        let excluded = entry.pointer_mut("/namespaceSelector/matchExpressions/0/values");
        for value in excluded.and_then(Value::as_array_mut).into_iter().flatten() {
            if value == SHIPPED_NAMESPACE {
                *value = json!(self.namespace);
            }
        }
        let Some(client) = entry.get_mut("clientConfig") else { return };
        match &self.url {
            None => {
                if let Some(namespace) = client.pointer_mut("/service/namespace") {
                    *namespace = json!(self.namespace);
                }
            }
            Some(url) => {
                let path = client.pointer("/service/path").and_then(Value::as_str).unwrap_or_default();
                *client = json!({"url": format!("{}{path}", url.trim_end_matches('/'))});
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registered(url: Option<&str>) -> Vec<Value> {
        let parts = Part::value_variants().to_vec();
        let registration =
            Registration { namespace: String::from("ops"), parts, url: url.map(str::to_owned) };
        let objects = registration.names().map(|name| registration.object(&name, "Y2E=", Some("7")).unwrap());
        objects.collect()
    }

    fn entries(objects: &[Value]) -> impl Iterator<Item = &Value> {
        objects.iter().flat_map(|object| object["webhooks"].as_array().unwrap())
    }

    #[test]
    fn every_part_is_a_configuration_of_its_own() {
        let names: Vec<_> = own_configurations().into_iter().map(|it| it.to_string()).collect();
        let wanted = [
            "ValidatingWebhookConfiguration etcd-guard",
            "MutatingWebhookConfiguration etcd-guard-inject",
            "MutatingWebhookConfiguration etcd-guard-nodes",
            "ValidatingWebhookConfiguration etcd-guard-rules",
        ];
        assert_eq!(names, wanted);
    }

    #[test]
    fn every_entry_leads_to_the_service_of_its_namespace_and_spares_that_namespace() {
        let objects = registered(None);
        assert!(objects.iter().all(|it| it["metadata"]["resourceVersion"] == "7"));
        assert!(entries(&objects).count() >= 6);
        for entry in entries(&objects) {
            let service = &entry["clientConfig"]["service"];
            let path = &service["path"];
            assert!(["/validate", "/mutate"].contains(&path.as_str().unwrap()));
            assert_eq!(
                *service,
                json!({"name": "etcd-guard", "namespace": "ops", "port": 443, "path": path})
            );
            assert_eq!(entry["clientConfig"]["caBundle"], "Y2E=");
            // Nodes are in no namespace.
            if entry["name"] != "nodes.etcd-guard.io" {
                let spared = entry["namespaceSelector"]["matchExpressions"][0]["values"].as_array().unwrap();
                assert!(spared.contains(&json!("kube-system")) && spared.contains(&json!("ops")), "{entry}");
                assert!(!spared.contains(&json!("etcd-guard")), "{entry}");
            }
        }
    }

    #[test]
    fn every_entry_leads_to_the_url_instead() {
        for entry in entries(&registered(Some("https://192.0.2.1:8443/"))) {
            let client = entry["clientConfig"].as_object().unwrap();
            assert_eq!(client.keys().collect::<Vec<_>>(), ["caBundle", "url"]);
            let url = client["url"].as_str().unwrap();
            assert!(
                ["/validate", "/mutate"].iter().any(|path| url == format!("https://192.0.2.1:8443{path}"))
            );
        }
    }

    #[test]
    fn what_is_not_asked_for_is_not_applied() {
        let registration =
            Registration { namespace: String::from("ops"), parts: vec![Part::Guard], url: None };
        for name in own_configurations() {
            let is_guard = name.name == "etcd-guard";
            assert_eq!(registration.object(&name, "Y2E=", None).is_some(), is_guard, "{name}");
        }
    }
}
