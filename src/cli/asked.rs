//! Whether the apiserver would ask the guard at all: a good answer that nobody asks for protects nothing.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingWebhook, ValidatingWebhookConfiguration},
    core::v1::Namespace,
};
use kube::{
    Api, Client,
    api::ListParams,
    core::{Selector, SelectorExt},
};

/// Why the answer would not be asked for, as far as the user may know.
pub(super) enum Asked {
    Yes,
    /// In words.
    No(String),
    /// Why it is not known.
    Unknown(String),
}

impl Asked {
    /// Looks for a registered webhook of this name that selects the namespace.
    pub(super) async fn find(client: &Client, webhook: &str, namespace: &str) -> Self {
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let parameters = ListParams::default();
        let (configurations, namespace_object) =
            tokio::join!(configurations.list(&parameters), namespaces.get(namespace));
        let configurations = match configurations {
            Ok(configurations) => configurations.items,
            Err(error) => return Self::Unknown(format!("webhook configurations cannot be read: {error}")),
        };
        let labels = match namespace_object {
            Ok(namespace) => namespace.metadata.labels.unwrap_or_default(),
            Err(error) => return Self::Unknown(format!("namespace {namespace} cannot be read: {error}")),
        };
        let entries = configurations.into_iter().flat_map(|it| it.webhooks.unwrap_or_default());
        let entries: Vec<ValidatingWebhook> = entries.filter(|it| it.name == webhook).collect();
        if entries.is_empty() {
            return Self::No(format!("no webhook {webhook} is registered: the apiserver asks nobody"));
        }
        if entries.into_iter().any(|entry| selects(entry, &labels)) {
            return Self::Yes;
        }
        Self::No(format!(
            "webhook {webhook} does not select namespace {namespace}: kubectl label namespace {namespace} \
             etcd-guard.io/guard=enabled"
        ))
    }
}

fn selects(webhook: ValidatingWebhook, labels: &BTreeMap<String, String>) -> bool {
    let selector = webhook.namespace_selector.unwrap_or_default();
    // One that cannot be parsed the apiserver would not have taken.
    Selector::try_from(selector).is_ok_and(|selector| selector.matches(labels))
}
