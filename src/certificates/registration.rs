//! The webhook configurations that this program ships with, for a server that applies them itself.

use serde_json::{Value, json};

use crate::k8s::webhooks::{ConfigurationName, set_bundle};

/// The shipped configurations, as `deploy/base` has them: one source for all ways of installing.
const SHIPPED: [&str; 1] = [include_str!("../../deploy/base/webhooks.yaml")];

/// The namespace that the shipped files name.
const SHIPPED_NAMESPACE: &str = "etcd-guard";

/// How the server registers itself.
#[derive(Clone, Debug)]
pub struct Registration {
    /// The namespace of the Service; it is never guarded itself.
    pub namespace: String,
    /// `https://HOST:PORT` of a server that is behind no Service.
    pub url: Option<String>,
}

/// The names of the shipped configurations.
#[must_use]
pub fn own_configurations() -> Vec<ConfigurationName> {
    shipped().iter().filter_map(name_of).collect()
}

fn shipped() -> Vec<Value> {
    // They are part of the program, and a test reads them.
    SHIPPED.iter().flat_map(|text| serde_saphyr::from_multiple(text).unwrap_or_default()).collect()
}

fn name_of(object: &Value) -> Option<ConfigurationName> {
    let text = |pointer: &str| Some(object.pointer(pointer)?.as_str()?.to_owned());
    Some(ConfigurationName { kind: text("/kind")?, name: text("/metadata/name")? })
}

// === impl Registration ===

impl Registration {
    /// The object to apply under this name, with this `caBundle`; `version` is the one that it may replace.
    #[must_use]
    pub fn object(&self, name: &ConfigurationName, bundle: &str, version: Option<&str>) -> Option<Value> {
        let mut object = shipped().into_iter().find(|it| name_of(it).as_ref() == Some(name))?;
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

    fn object(url: Option<&str>) -> Value {
        let [name] = &own_configurations()[..] else { panic!("{:?}", own_configurations()) };
        let registration = Registration { namespace: String::from("ops"), url: url.map(str::to_owned) };
        registration.object(name, "Y2E=", Some("7")).unwrap()
    }

    #[test]
    fn every_entry_leads_to_the_service_of_its_namespace_and_spares_that_namespace() {
        let object = object(None);
        assert_eq!(object["metadata"]["resourceVersion"], "7");
        let entries = object["webhooks"].as_array().unwrap();
        assert!(entries.len() >= 2);
        for entry in entries {
            let service = json!({"name": "etcd-guard", "namespace": "ops", "port": 443, "path": "/validate"});
            assert_eq!(entry["clientConfig"], json!({"service": service, "caBundle": "Y2E="}));
            let spared = &entry["namespaceSelector"]["matchExpressions"][0]["values"];
            assert_eq!(*spared, json!(["kube-system", "ops"]));
        }
    }

    #[test]
    fn every_entry_leads_to_the_url_instead() {
        for entry in object(Some("https://192.0.2.1:8443/"))["webhooks"].as_array().unwrap() {
            let client = json!({"url": "https://192.0.2.1:8443/validate", "caBundle": "Y2E="});
            assert_eq!(entry["clientConfig"], client);
        }
    }
}
