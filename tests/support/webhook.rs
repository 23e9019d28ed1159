//! The shipped webhook configuration, with the address of one test's guard in it.

use std::path::Path;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::guard_process::GuardProcess;

/// The label that opts a namespace in. A test gives it a value of its own, so that tests do not meet.
pub const LABEL: &str = "etcd-guard.io/guard";

const SHIPPED: &str = "deploy/base/webhooks.yaml";

/// Registers the guard for namespaces whose label has this value, by the shipped configuration. What a test wants
/// to be otherwise it changes in each webhook's entry.
pub async fn register(client: &Client, label: &str, guard: &GuardProcess, change: impl Fn(&mut Value)) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(SHIPPED);
    let text = std::fs::read_to_string(&file).expect(SHIPPED);
    let mut configuration: Value = serde_saphyr::from_str(&text).expect(SHIPPED);
    let name = format!("etcd-guard-{label}");
    configuration["metadata"]["name"] = json!(name);
    for webhook in configuration["webhooks"].as_array_mut().expect("webhooks") {
        let path = webhook["clientConfig"]["service"]["path"].as_str().expect("a path").to_owned();
        webhook["clientConfig"] =
            json!({"url": format!("https://{}{path}", guard.https()), "caBundle": base64(&guard.ca_pem)});
        let chosen =
            webhook["namespaceSelector"]["matchLabels"].get_mut(LABEL).expect("the label that opts in");
        assert_eq!(*chosen, "enabled", "the value that users are told to set");
        *chosen = json!(label);
        change(webhook);
    }
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let parameters = PatchParams::apply("test").force();
    api.patch(&name, &parameters, &Patch::Apply(configuration)).await.expect("the configuration is accepted");
}

/// Takes the registration back.
pub async fn unregister(client: &Client, label: &str) {
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    // What is not there need not be taken back.
    let _ = api.delete(&format!("etcd-guard-{label}"), &DeleteParams::default()).await;
}

fn base64(text: &str) -> Value {
    json!(k8s_openapi::ByteString(text.as_bytes().to_vec()))
}
