//! The webhook configurations that are built into the program. The server applies them, and `doctor` compares them with the
//! registered ones.

use clap::ValueEnum;
use serde_json::{Value, json};

use etcd_guard_core::opt_in_label::OptInLabel;

/// The webhook configurations that can be registered. They are built from the manifests for `kubectl`, so that all ways
/// of installation use the same source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WebhookGroup {
    /// Deletions and evictions of etcd pods, and the workload operations that cause them.
    Guard,
    /// The uid of the pod in evictions, which `Guard` implies.
    #[value(hide = true)]
    Uid,
    /// lxcfs files, sidecars and tolerations for new pods.
    Inject,
    /// Over-commit in the status of nodes.
    Nodes,
    /// Forbidden words in the names of pods.
    Rules,
    /// Deletions of nodes with members that a quorum needs.
    NodeDeletions,
}

/// Kind and name of a webhook configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigurationName {
    /// `ValidatingWebhookConfiguration` or `MutatingWebhookConfiguration`.
    pub kind: String,
    /// The object's name.
    pub name: String,
}

/// The namespace in the manifests.
const SHIPPED_NAMESPACE: &str = "etcd-guard";

/// How the server registers its webhooks.
#[derive(Clone, Debug)]
pub struct Registration {
    /// The namespace of the Service. It is excluded from the webhooks.
    pub namespace: String,
    /// The configurations to register, beside those that they imply.
    pub groups: Vec<WebhookGroup>,
    /// `https://HOST:PORT` of a server without a Service.
    pub url: Option<String>,
    /// The label of the namespaces whose requests the API server sends.
    pub opt_in_label: OptInLabel,
}

/// Returns the names of all webhook configurations of this program.
pub fn shipped_configurations() -> Vec<ConfigurationName> {
    WebhookGroup::value_variants().iter().filter_map(|group| configuration_name(&group.shipped()?)).collect()
}

fn configuration_name(object: &Value) -> Option<ConfigurationName> {
    let text = |pointer: &str| Some(object.pointer(pointer)?.as_str()?.to_owned());
    Some(ConfigurationName { kind: text("/kind")?, name: text("/metadata/name")? })
}

/// Sets the `caBundle` (base64) of every webhook of a configuration.
pub fn set_ca_bundle(configuration: &mut Value, bundle: &str) {
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

// === impl WebhookGroup ===

impl WebhookGroup {
    /// Whether the configuration has this name.
    pub fn is_named(self, name: &ConfigurationName) -> bool {
        self.shipped().and_then(|object| configuration_name(&object)).as_ref() == Some(name)
    }

    /// The configuration in the manifests. A test parses all of them.
    fn shipped(self) -> Option<Value> {
        let text = match self {
            Self::Guard => {
                include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/base/webhooks.yaml"))
            }
            Self::Uid => {
                include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/base/uid-webhook.yaml"))
            }
            Self::Inject => include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../deploy/components/inject/webhook.yaml"
            )),
            Self::Nodes => include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../deploy/components/over-commit/webhook.yaml"
            )),
            Self::Rules => include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../deploy/components/pod-names/webhook.yaml"
            )),
            Self::NodeDeletions => include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../deploy/components/node-deletions/webhook.yaml"
            )),
        };
        serde_saphyr::from_str(text).ok()
    }
}

// === impl Registration ===

impl Registration {
    /// The names of the configurations to register.
    pub fn names(&self) -> impl Iterator<Item = ConfigurationName> {
        self.all_groups().filter_map(|group| configuration_name(&group.shipped()?))
    }

    /// The configurations to register, each of them once.
    fn all_groups(&self) -> impl Iterator<Item = WebhookGroup> {
        let is_implied =
            |group: WebhookGroup| group == WebhookGroup::Uid && self.groups.contains(&WebhookGroup::Guard);
        let is_registered = move |group: &WebhookGroup| self.groups.contains(group) || is_implied(*group);
        WebhookGroup::value_variants().iter().copied().filter(is_registered)
    }

    /// Returns the object to apply under this name with this `caBundle`. `version` is the resourceVersion that it
    /// replaces. `None` if the name is not to be registered.
    pub fn object(&self, name: &ConfigurationName, bundle: &str, version: Option<&str>) -> Option<Value> {
        let mut object = self
            .all_groups()
            .filter_map(WebhookGroup::shipped)
            .find(|object| configuration_name(object).as_ref() == Some(name))?;
        for entry in object.get_mut("webhooks").and_then(Value::as_array_mut).into_iter().flatten() {
            self.localize(entry);
        }
        set_ca_bundle(&mut object, bundle);
        if let (Some(version), Some(metadata)) =
            (version, object.get_mut("metadata").and_then(Value::as_object_mut))
        {
            metadata.insert(String::from("resourceVersion"), json!(version));
        }
        Some(object)
    }

    /// Sets the address of this server and the label of the guarded namespaces in an entry.
    fn localize(&self, entry: &mut Value) {
        // The entries of the other groups concern all namespaces.
        if let Some(labels) = entry.pointer_mut("/namespaceSelector/matchLabels") {
            *labels = json!({self.opt_in_label.key(): self.opt_in_label.value()});
        }
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
        let groups = WebhookGroup::value_variants().to_vec();
        let registration = Registration {
            namespace: String::from("ops"),
            groups,
            url: url.map(str::to_owned),
            opt_in_label: "team=etcd".parse().unwrap(),
        };
        let objects = registration.names().map(|name| registration.object(&name, "Y2E=", Some("7")).unwrap());
        objects.collect()
    }

    fn entries(objects: &[Value]) -> impl Iterator<Item = &Value> {
        objects.iter().flat_map(|object| object["webhooks"].as_array().unwrap())
    }

    #[test]
    fn ships_one_configuration_per_group() {
        let names: Vec<_> = shipped_configurations().into_iter().map(|name| name.to_string()).collect();
        let wanted = [
            "ValidatingWebhookConfiguration etcd-guard",
            "MutatingWebhookConfiguration etcd-guard",
            "MutatingWebhookConfiguration etcd-guard-inject",
            "MutatingWebhookConfiguration etcd-guard-nodes",
            "ValidatingWebhookConfiguration etcd-guard-rules",
            "ValidatingWebhookConfiguration etcd-guard-node-deletions",
        ];
        assert_eq!(names, wanted);
    }

    #[test]
    fn sets_service_and_excludes_own_namespace() {
        let objects = registered(None);
        assert!(objects.iter().all(|object| object["metadata"]["resourceVersion"] == "7"));
        assert!(entries(&objects).count() >= 8);
        for entry in entries(&objects) {
            let service = &entry["clientConfig"]["service"];
            let path = &service["path"];
            assert!(["/validate", "/mutate"].contains(&path.as_str().unwrap()));
            assert_eq!(
                *service,
                json!({"name": "etcd-guard", "namespace": "ops", "port": 443, "path": path})
            );
            assert_eq!(entry["clientConfig"]["caBundle"], "Y2E=");
            // Nodes are not namespaced.
            if !["nodes.etcd-guard.io", "nodes.guard.etcd-guard.io"]
                .contains(&entry["name"].as_str().unwrap())
            {
                let excluded =
                    entry["namespaceSelector"]["matchExpressions"][0]["values"].as_array().unwrap();
                assert!(
                    excluded.contains(&json!("kube-system")) && excluded.contains(&json!("ops")),
                    "{entry}"
                );
                assert!(!excluded.contains(&json!("etcd-guard")), "{entry}");
            }
        }
    }

    /// The guard writes events and reservations, but not on a dry run. The mutation of evictions writes nothing.
    #[test]
    fn declares_side_effects_of_every_guard_entry() {
        let objects = registered(None);
        let of_guard = |entry: &&Value| {
            let name = entry["name"].as_str().unwrap();
            name.ends_with("guard.etcd-guard.io") && !name.starts_with("uid.")
        };
        let of_guard: Vec<_> = entries(&objects).filter(of_guard).collect();
        assert_eq!(of_guard.len(), 7);
        for entry in of_guard {
            assert_eq!(entry["sideEffects"], "NoneOnDryRun", "{}", entry["name"]);
        }
    }

    /// One of the two entries for deletions of pods matches each deletion: all conditions but the last are the same, and the last
    /// ones are opposites.
    #[test]
    fn entries_for_deletions_of_pods_complement_each_other() {
        let objects = registered(None);
        let of = |name: &str| entries(&objects).find(|entry| entry["name"] == name).unwrap().clone();
        let [closed, open] = ["guard.etcd-guard.io", "others.guard.etcd-guard.io"].map(of);
        assert_eq!(closed["rules"], open["rules"]);
        assert_eq!(
            (closed["failurePolicy"].as_str(), open["failurePolicy"].as_str()),
            (Some("Fail"), Some("Ignore"))
        );
        let conditions = |entry: &Value| entry["matchConditions"].as_array().unwrap().clone();
        let (closed, open) = (conditions(&closed), conditions(&open));
        let [(may_run, others), (runs_none, other_conditions)] =
            [&closed, &open].map(|conditions| conditions.split_last().unwrap());
        assert_eq!(others, other_conditions);
        let opposite = format!("!({})", may_run["expression"].as_str().unwrap());
        assert_eq!(runs_none["expression"], opposite);
    }

    #[test]
    fn selects_namespaces_with_opt_in_label() {
        let objects = registered(None);
        let with_label = |entry: &&Value| entry["namespaceSelector"].get("matchLabels").is_some();
        let names: Vec<&str> =
            entries(&objects).filter(with_label).map(|entry| entry["name"].as_str().unwrap()).collect();
        let groups = [
            "guard",
            "eviction.guard",
            "intent.guard",
            "resources.guard",
            "others.guard",
            "update.guard",
            "uid.guard",
        ];
        assert_eq!(names, groups.map(|group| format!("{group}.etcd-guard.io")));
        for entry in entries(&objects).filter(with_label) {
            assert_eq!(entry["namespaceSelector"]["matchLabels"], json!({"team": "etcd"}), "{entry}");
        }
    }

    #[test]
    fn sets_url_in_every_entry() {
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
    fn applies_only_selected_groups() {
        let registration = Registration {
            namespace: String::from("ops"),
            groups: vec![WebhookGroup::Guard],
            url: None,
            opt_in_label: OptInLabel::default(),
        };
        for name in shipped_configurations() {
            let is_guard = name.name == "etcd-guard";
            assert_eq!(registration.object(&name, "Y2E=", None).is_some(), is_guard, "{name}");
        }
    }
}
