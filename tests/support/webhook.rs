//! The shipped webhook configuration, with the address of one test's guard in it.

use std::{net::SocketAddr, path::Path};

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::guard_process::GuardProcess;

/// The label that opts a namespace in. A test gives it a value of its own, so that tests do not meet.
pub const LABEL: &str = "etcd-guard.io/guard";

const SHIPPED: &str = "deploy/base/webhooks.yaml";

/// Registers the guard for namespaces whose label has this value, by the shipped configuration. What a test wants
/// to be otherwise it changes in each webhook's entry.
pub async fn register(client: &Client, label: &str, guard: &GuardProcess, change: impl Fn(&mut Value)) {
    register_at(client, label, guard.https(), &guard.ca_pem, change).await;
}

/// The same for whatever listens at this address, with a certificate that leads to this CA.
pub async fn register_at(
    client: &Client,
    label: &str,
    address: SocketAddr,
    ca_pem: &str,
    change: impl Fn(&mut Value),
) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(SHIPPED);
    let text = std::fs::read_to_string(&file).expect(SHIPPED);
    let mut configuration: Value = serde_saphyr::from_str(&text).expect(SHIPPED);
    let name = format!("etcd-guard-{label}");
    configuration["metadata"]["name"] = json!(name);
    for webhook in configuration["webhooks"].as_array_mut().expect("webhooks") {
        let path = webhook["clientConfig"]["service"]["path"].as_str().expect("a path").to_owned();
        webhook["clientConfig"] =
            json!({"url": format!("https://{address}{path}"), "caBundle": base64(ca_pem)});
        let chosen =
            webhook["namespaceSelector"]["matchLabels"].get_mut(LABEL).expect("the label that opts in");
        assert_eq!(*chosen, "enabled", "the value that users are told to set");
        *chosen = json!(label);
        change(webhook);
    }
    apply(client, &name, configuration).await;
}

/// A second webhook for deletions of pods, which never answers and does not matter: what the guard allows happens two
/// seconds later. It lasts as long as the listener.
pub async fn slow_down(client: &Client, label: &str, guard: &GuardProcess) -> TcpListener {
    // Nobody accepts: the system does, and so the apiserver waits for an answer.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}", silent.local_addr().expect("an address"));
    add(client, &format!("slow-{label}"), label, guard, json!({"url": url, "failurePolicy": "Ignore"})).await;
    silent
}

/// A second webhook for deletions of pods, which refuses them all, because nobody listens there. Returns the name of its
/// configuration.
pub async fn refuse(client: &Client, label: &str, guard: &GuardProcess) -> String {
    let name = format!("refusing-{label}");
    add(client, &name, label, guard, json!({"url": "https://127.0.0.1:1", "failurePolicy": "Fail"})).await;
    name
}

async fn add(client: &Client, name: &str, label: &str, guard: &GuardProcess, how: Value) {
    let webhook = json!({
        "name": "other.test.io",
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"]}],
        "clientConfig": {"url": how["url"], "caBundle": base64(&guard.ca_pem)},
        "namespaceSelector": {"matchLabels": {LABEL: label}},
        "failurePolicy": how["failurePolicy"],
        "timeoutSeconds": 2,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    });
    apply(client, name, json!({"metadata": {"name": name}, "webhooks": [webhook]})).await;
}

async fn apply(client: &Client, name: &str, mut configuration: Value) {
    configuration["apiVersion"] = json!("admissionregistration.k8s.io/v1");
    configuration["kind"] = json!("ValidatingWebhookConfiguration");
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let parameters = PatchParams::apply("test").force();
    api.patch(name, &parameters, &Patch::Apply(configuration)).await.expect("the configuration is accepted");
}

fn base64(text: &str) -> Value {
    json!(k8s_openapi::ByteString(text.as_bytes().to_vec()))
}
