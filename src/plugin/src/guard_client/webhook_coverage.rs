//! Checks whether the API server would send requests of a namespace to the guard. Without a matching webhook the guard
//! does not protect the namespace, however it would answer.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingWebhook, ValidatingWebhookConfiguration},
    core::v1::Namespace,
};
use kube::{
    api::ListParams,
    core::{Selector, SelectorExt},
};

use crate::api_server::ApiServer;

/// Whether a webhook of the guard covers a namespace.
pub(crate) enum WebhookCoverage {
    /// The API server would call the webhook.
    Covered,
    /// It would not, for this reason.
    NotCovered(String),
    /// The user lacks the rights to find out, or the API server did not answer, with the cause.
    Unknown(String),
}

// === impl WebhookCoverage ===

impl WebhookCoverage {
    /// Searches the registered webhooks for one of this name that selects the namespace.
    pub(crate) async fn find(api_server: &ApiServer, webhook: &str, namespace: &str) -> Self {
        let configurations = api_server.all::<ValidatingWebhookConfiguration>();
        let namespaces = api_server.all::<Namespace>();
        let parameters = ListParams::default();
        let (configurations, namespace_object) = tokio::join!(
            api_server.call("failed to list webhook configurations", configurations.list(&parameters)),
            api_server.call(format!("failed to read namespace {namespace}"), namespaces.get(namespace))
        );
        let configurations = match configurations {
            Ok(configurations) => configurations.items,
            Err(error) => return Self::Unknown(error.to_string()),
        };
        let labels = match namespace_object {
            Ok(namespace) => namespace.metadata.labels.unwrap_or_default(),
            Err(error) => return Self::Unknown(error.to_string()),
        };
        let entries =
            configurations.into_iter().flat_map(|configuration| configuration.webhooks.unwrap_or_default());
        let entries: Vec<ValidatingWebhook> = entries.filter(|entry| entry.name == webhook).collect();
        if entries.is_empty() {
            return Self::NotCovered(format!("webhook {webhook} is not registered with the API server"));
        }
        if entries.iter().any(|entry| selects(entry, &labels)) {
            return Self::Covered;
        }
        let text = format!("webhook {webhook} does not select namespace {namespace}");
        Self::NotCovered(match missing_labels(&entries, &labels) {
            Some(missing) => format!("{text}: kubectl label namespace {namespace} {missing} --overwrite"),
            None => format!("{text}: kubectl get validatingwebhookconfigurations -o yaml"),
        })
    }
}

/// Returns the labels that the namespace lacks for the first webhook that selects by labels.
fn missing_labels(entries: &[ValidatingWebhook], labels: &BTreeMap<String, String>) -> Option<String> {
    let missing = entries.iter().filter_map(|entry| {
        let wanted = entry.namespace_selector.as_ref()?.match_labels.as_ref()?.iter();
        let missing = wanted.filter(|(key, value)| labels.get(*key) != Some(*value));
        let missing: Vec<String> = missing.map(|(key, value)| format!("{key}={value}")).collect();
        (!missing.is_empty()).then(|| missing.join(" "))
    });
    missing.into_iter().next()
}

fn selects(webhook: &ValidatingWebhook, labels: &BTreeMap<String, String>) -> bool {
    let selector = webhook.namespace_selector.clone().unwrap_or_default();
    // The API server rejects configurations with an invalid selector, so an error does not occur.
    Selector::try_from(selector).is_ok_and(|selector| selector.matches(labels))
}
